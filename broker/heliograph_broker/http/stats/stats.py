"""A topic's statistics, with this broker's exact values behind Pulsar's names."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import UNSET
from pyroaring import BitMap64

from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.policies.rate_limits import throttle_counts
from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic
from heliograph_broker.messaging.topic.topic_explanation import explain_delivery

from .stats_documents import (
    CompactionStats,
    ConsumerStats,
    PublisherStats,
    SubscriptionStats,
    SuspendedDuty,
    TopicStats,
)

#: Bytes of memory for a delayed entry: its time and offset in the topic's index, and its place in two bitmaps.
DELAYED_ENTRY_BYTES = 24


class StatsOptions(msgspec.Struct, frozen=True):
    """The requested parts of the statistics; Pulsar's defaults."""

    earliest_publish: bool = False
    subscription_backlog_size: bool = True
    publishers: bool = True
    consumers: bool = True


def iso(ms: int) -> str:
    """Return a wall-clock time (ms) as Pulsar writes it: UTC, no more digits than it has."""
    seconds, millis = divmod(ms, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{millis:03d}".rstrip("0") + "Z" if millis else f"{text}Z"


def _slashed(address: str) -> str:
    """Format an address as Java does for one without a host name: with a slash in front."""
    return address if address.startswith("/") or not address else f"/{address}"


def producer_stats(producer: Producer, rates: RateSampler) -> PublisherStats:
    rate_in, throughput_in, chunk_rate = rates.rates(producer)
    return PublisherStats(
        access_mode=producer.access_mode.label,
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        average_msg_size=producer.bytes_in / producer.msg_in if producer.msg_in else 0.0,
        chunked_message_rate=chunk_rate,
        producer_id=producer.producer_id,
        producer_name=producer.name,
        address=_slashed(producer.client.address),
        connected_since=iso(producer.client.connected_ms),
        client_version=producer.client.version,
        metadata=producer.client.metadata,
        msg_drop_rate=UNSET if producer.topic.persistent else 0.0,
    )


def consumer_stats(consumer: Consumer, ranges: list[tuple[int, int]] | None, rates: RateSampler) -> ConsumerStats:
    rate_out, throughput_out, redeliver_rate, ack_rate = rates.rates(consumer)
    return ConsumerStats(
        msg_rate_out=rate_out,
        msg_throughput_out=throughput_out,
        bytes_out_counter=consumer.bytes_out,
        msg_out_counter=consumer.msg_out,
        msg_rate_redeliver=redeliver_rate,
        message_ack_rate=ack_rate,
        consumer_name=consumer.name,
        available_permits=consumer.permits,
        unacked_messages=consumer.unacked,
        avg_messages_per_entry=round(consumer.msg_out / consumer.entries_out) if consumer.entries_out else 0,
        blocked_consumer_on_unacked_msgs=consumer.blocked_on_unacked,
        address=_slashed(consumer.client.address),
        connected_since=iso(consumer.client.connected_ms),
        client_version=consumer.client.version,
        last_acked_timestamp=consumer.last_acked_ms,
        last_consumed_timestamp=consumer.last_consumed_ms,
        first_messages_sent_timestamp=consumer.first_sent_ms,
        last_consumed_flow_timestamp=consumer.last_flow_ms,
        first_consumed_flow_timestamp=consumer.first_flow_ms,
        metadata=consumer.client.metadata,
        last_acked_time=iso(consumer.last_acked_ms),
        last_consumed_time=iso(consumer.last_consumed_ms),
        draining_hashes=UNSET if ranges is None else [],
        key_hash_range_arrays=UNSET if ranges is None else ranges,
    )


def delayed_messages(subscription: AnySubscription) -> int:
    """Return the entries that wait for their time."""
    return subscription.dispatcher.delayed if subscription.dispatcher is not None else 0


def in_replay(subscription: AnySubscription) -> int:
    """Return the entries that are to be delivered again, or wait for their key's consumer."""
    dispatcher = subscription.dispatcher
    if dispatcher is None:
        return 0
    waiting = dispatcher.waiting_entries if isinstance(dispatcher, KeySharedDispatcher) else 0
    return len(dispatcher.replay) + waiting


def blocked(subscription: AnySubscription) -> bool:
    return not subscription.may_deliver


def in_backlog(subscription: AnySubscription) -> bool:
    """Whether what it has not acknowledged counts as its topic's backlog: readers' and compaction's does not."""
    return subscription.durable and subscription.counts_for_backlog


def ranges_of(acked: BitMap64) -> tuple[int, int]:
    """Return the number of runs of acknowledged entries beyond the mark-delete position, and their size stored."""
    if not acked:
        return 0, 0
    return len(acked) - len(acked & acked.shift(1)), len(acked.serialize())


def _subscription_stats(subscription: AnySubscription, rates: RateSampler, options: StatsOptions) -> SubscriptionStats:
    rate_out, throughput_out, redeliver_rate, ack_rate, expire_rate, drop_rate, _ = rates.rates(subscription)
    kept = subscription if subscription.persistent else None
    dispatcher = kept.dispatcher if kept is not None else None
    key_shared = dispatcher if isinstance(dispatcher, KeySharedDispatcher) else None
    single = dispatcher if isinstance(dispatcher, SingleActiveDispatcher) else None
    delayed = delayed_messages(subscription)
    ranges, ranges_size = ranges_of(kept.acks.cursor.acked) if kept is not None else (0, 0)
    throttled = throttle_counts(kept)
    consumers = subscription.consumers if options.consumers else []
    idle = explain_delivery(subscription)
    return SubscriptionStats(
        idle_reason=idle.reason,
        idle_since_timestamp=idle.since_ms,
        msg_rate_out=rate_out,
        msg_throughput_out=throughput_out,
        bytes_out_counter=subscription.sent.bytes_out,
        msg_out_counter=subscription.sent.msg_out,
        msg_rate_redeliver=redeliver_rate,
        message_ack_rate=ack_rate,
        msg_backlog=subscription.acks.backlog_messages,
        backlog_size=subscription.acks.backlog_bytes if options.subscription_backlog_size else -1,
        earliest_msg_publish_time_in_backlog=_earliest_publish(kept) if options.earliest_publish else 0,
        msg_backlog_no_delayed=max(0, subscription.acks.backlog_messages - delayed),
        blocked_subscription_on_unacked_msgs=blocked(subscription),
        msg_delayed=delayed,
        msg_in_replay=in_replay(subscription),
        unacked_messages=subscription.acks.unacked_messages,
        type="None" if subscription.type is None else subscription.type,  # type: ignore[arg-type]
        active_consumer_name=single.active.name if single is not None and single.active is not None else UNSET,
        msg_rate_expired=expire_rate,
        msg_expired=kept.expiry.msg_expired if kept is not None else 0,
        total_msg_expired=kept.expiry.msg_expired if kept is not None else 0,
        last_expire_timestamp=kept.expiry.last_expire_ms if kept is not None else 0,
        last_consumed_flow_timestamp=kept.last_consumed_flow_ms if kept is not None else 0,
        last_consumed_timestamp=kept.sent.last_consumed_ms if kept is not None else 0,
        last_acked_timestamp=kept.acks.last_acked_ms if kept is not None else 0,
        last_mark_delete_advanced_timestamp=kept.acks.last_mark_delete_ms if kept is not None else 0,
        consumers=tuple(
            consumer_stats(each, key_shared.ranges(each) if key_shared is not None else None, rates)
            for each in consumers
        ),
        is_durable=subscription.durable,
        allow_out_of_order_delivery=key_shared.allow_out_of_order if key_shared is not None else False,
        key_shared_mode=UNSET if key_shared is None else "STICKY" if key_shared.sticky else "AUTO_SPLIT",
        subscription_properties=kept.properties if kept is not None else {},
        msg_drop_rate=drop_rate if kept is None else UNSET,
        non_contiguous_deleted_messages_ranges=ranges,
        non_contiguous_deleted_messages_ranges_serialized_size=ranges_size,
        delayed_message_index_size_in_bytes=DELAYED_ENTRY_BYTES * delayed,
        dispatch_throttled_msg_events_by_subscription_limit=throttled.messages,
        dispatch_throttled_bytes_events_by_subscription_limit=throttled.bytes,
        dispatch_throttled_msg_events_by_topic_limit=throttled.messages_by_topic,
        dispatch_throttled_bytes_events_by_topic_limit=throttled.bytes_by_topic,
        skipped_entries=kept.acks.skipped_entries if kept is not None else 0,
        skipped_messages=kept.acks.skipped_messages if kept is not None else 0,
        durable=subscription.durable,
    )


def _earliest_publish(subscription: Subscription | None) -> int:
    """Return the client's publish time of the oldest unacknowledged entry, 0 if there is none."""
    if subscription is None:
        return 0
    topic = subscription.topic
    offset = max(subscription.acks.cursor.first_unacked(), topic.log.first_offset)
    header = topic.log.header(offset) if offset < topic.log.end_offset else None
    return header.publish_ms if header is not None else 0


def quota_limits(topic: AnyTopic) -> tuple[tuple[int, int], int]:
    """Return the backlog's limits in bytes and seconds, as they are shown, and the second one in ms; -1 without."""
    size, age = topic.effective.backlog_quota_size, topic.effective.backlog_quota_age
    age_ms = age.limit if age is not None else -1
    return (size.limit if size is not None else -1, age_ms // 1000 if age_ms >= 0 else -1), age_ms


def _compaction(topic: AnyTopic) -> CompactionStats:
    if not topic.persistent:
        return CompactionStats()
    compaction = topic.compaction
    return CompactionStats(
        last_compaction_removed_event_count=compaction.removed,
        last_compaction_succeed_timestamp=compaction.succeeded_ms,
        last_compaction_failed_timestamp=compaction.failed_ms,
        last_compaction_duration_time_in_mills=compaction.duration_ms,
    )


def suspended_of(topic: AnyTopic) -> tuple[SuspendedDuty, ...]:
    """Return the suspended tasks of a topic and its subscriptions."""
    containment = topic.host.containment
    if containment.idle:
        return ()
    return tuple(
        SuspendedDuty(each.names[1], each.task, each.reason, each.since_ms, each.last_ms, each.failures)
        for owner in (topic, *topic.subscriptions.values())
        for each in containment.of(owner)
    )


def _deduplication(topic: AnyTopic) -> Literal["Enabled", "Disabled"]:
    return "Enabled" if topic.effective.deduplication else "Disabled"


def topic_stats(
    topic: AnyTopic,
    rates: RateSampler,
    owner: str,
    options: StatsOptions = StatsOptions(),  # noqa: B008
) -> TopicStats:
    """Return the stats of one topic that is not partitioned, or of one partition."""
    rate_in, throughput_in = rates.rates(topic.statistics)
    subscriptions = {
        name: _subscription_stats(subscription, rates, options) for name, subscription in topic.subscriptions.items()
    }
    each = subscriptions.values()
    (limit_size, limit_time), _ = quota_limits(topic)
    oldest = topic.statistics.oldest_backlog()
    by_ledger = topic.statistics.kept_by_ledgers()
    producers = topic.producers.values()
    times = [sub.earliest_msg_publish_time_in_backlog for sub in each]
    return TopicStats(
        msg_rate_in=rate_in,
        msg_throughput_in=throughput_in,
        msg_rate_out=sum(sub.msg_rate_out for sub in each),
        msg_throughput_out=sum(sub.msg_throughput_out for sub in each),
        bytes_in_counter=topic.statistics.bytes_in,
        msg_in_counter=topic.statistics.msg_in,
        bytes_out_counter=sum(sub.bytes_out_counter for sub in each),
        msg_out_counter=sum(sub.msg_out_counter for sub in each),
        average_msg_size=topic.statistics.bytes_in / topic.statistics.msg_in if topic.statistics.msg_in else 0.0,
        msg_chunk_published=any(producer.chunks_in for producer in producers),
        storage_size=topic.statistics.stored_bytes,
        kept_by_ledger_messages=by_ledger[0],
        kept_by_ledger_size=by_ledger[1],
        damaged_entries=topic.statistics.damaged_entries,
        suspended=suspended_of(topic),
        backlog_size=topic.statistics.backlog_size(),
        backlog_quota_limit_size=limit_size,
        backlog_quota_limit_time=limit_time,
        oldest_backlog_message_age_seconds=oldest[1] // 1000 if oldest is not None else -1,
        oldest_backlog_message_subscription_name=oldest[0].name if oldest is not None else UNSET,
        publish_rate_limited_times=topic.limits.publish_throttled,
        earliest_msg_publish_time_in_backlogs=min((time for time in times if time), default=0),
        publishers=tuple(producer_stats(producer, rates) for producer in producers) if options.publishers else (),
        waiting_publishers=len(topic.producer_registry.waiting),
        subscriptions=subscriptions,
        deduplication_status=_deduplication(topic) if topic.persistent else UNSET,
        non_contiguous_deleted_messages_ranges=sum(sub.non_contiguous_deleted_messages_ranges for sub in each),
        non_contiguous_deleted_messages_ranges_serialized_size=sum(
            sub.non_contiguous_deleted_messages_ranges_serialized_size for sub in each
        ),
        delayed_message_index_size_in_bytes=sum(sub.delayed_message_index_size_in_bytes for sub in each),
        compaction=_compaction(topic),
        owner_broker=owner,
        topic_creation_time_stamp=topic.created_ms,
        last_publish_time_stamp=topic.statistics.last_publish_ms,
        msg_drop_rate=UNSET if topic.persistent else 0.0,
    )
