"""Pulsar's topic statistics, letter for letter in names, with this broker's true figures."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from heliograph_broker.messaging.broker import AnyTopic, Broker
from heliograph_broker.messaging.consumer import Consumer
from heliograph_broker.messaging.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.dispatch_shared import SharedDispatcher
from heliograph_broker.messaging.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.producer import Producer
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.protocol import wire_pb2 as wire

from .rates import AnySubscription, RateSampler

_NO_DRAINING = {"drainingHashesCount": 0, "drainingHashesClearedTotal": 0, "drainingHashesUnackedMessages": 0}
_NO_RANGES = {
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "delayedMessageIndexSizeInBytes": 0,
}
_NO_FILTER = {
    "filterProcessedMsgCount": 0,
    "filterAcceptedMsgCount": 0,
    "filterRejectedMsgCount": 0,
    "filterRescheduledMsgCount": 0,
}
_NO_THROTTLING = {
    f"dispatchThrottled{what}EventsBy{level}Limit": 0
    for level in ("Subscription", "Topic", "Broker")
    for what in ("Msg", "Bytes")
}


def iso(ms: int) -> str:
    """Return a wall-clock time (ms) as Pulsar writes it: UTC, no more digits than it has."""
    seconds, millis = divmod(ms, 1000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{millis:03d}".rstrip("0") + "Z" if millis else f"{text}Z"


def _slashed(address: str) -> str:
    """Java writes an unresolved host before the slash; there is none."""
    return address if address.startswith("/") or not address else f"/{address}"


def producer_stats(producer: Producer, rates: RateSampler) -> dict[str, Any]:
    rate_in, throughput_in, chunk_rate = rates.rates(producer)
    return {
        "accessMode": wire.ProducerAccessMode.Name(producer.access_mode),  # type: ignore[arg-type]
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "averageMsgSize": producer.bytes_in / producer.msg_in if producer.msg_in else 0.0,
        "chunkedMessageRate": chunk_rate,
        "producerId": producer.producer_id,
        "supportsPartialProducer": False,
        "producerName": producer.name,
        "address": _slashed(producer.address),
        "connectedSince": iso(producer.connected_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.metadata,
    }


def consumer_stats(consumer: Consumer, ranges: list[tuple[int, int]] | None, rates: RateSampler) -> dict[str, Any]:
    rate_out, throughput_out, redeliver_rate, ack_rate = rates.rates(consumer)
    stats: dict[str, Any] = {
        "msgRateOut": rate_out,
        "msgThroughputOut": throughput_out,
        "bytesOutCounter": consumer.bytes_out,
        "msgOutCounter": consumer.msg_out,
        "msgRateRedeliver": redeliver_rate,
        "messageAckRate": ack_rate,
        "chunkedMessageRate": 0.0,
        "consumerName": consumer.name,
        "availablePermits": consumer.permits,
        "unackedMessages": consumer.unacked,
        "avgMessagesPerEntry": round(consumer.msg_out / consumer.entries_out) if consumer.entries_out else 0,
        "blockedConsumerOnUnackedMsgs": consumer.blocked_on_unacked,
        **_NO_DRAINING,
    }
    if ranges is not None:
        stats["drainingHashes"] = []
    stats |= {
        "address": _slashed(consumer.address),
        "connectedSince": iso(consumer.connected_ms),
        "clientVersion": consumer.client_version,
        "lastAckedTimestamp": consumer.last_acked_ms,
        "lastConsumedTimestamp": consumer.last_consumed_ms,
        "firstMessagesSentTimestamp": consumer.first_sent_ms,
        "lastConsumedFlowTimestamp": consumer.last_flow_ms,
        "firstConsumedFlowTimestamp": consumer.first_flow_ms,
    }
    if ranges is not None:
        stats["keyHashRangeArrays"] = ranges
    stats |= {
        "metadata": consumer.metadata,
        "lastAckedTime": iso(consumer.last_acked_ms),
        "lastConsumedTime": iso(consumer.last_consumed_ms),
    }
    return stats


def delayed_messages(subscription: AnySubscription) -> int:
    """Return the entries that wait for their time."""
    if isinstance(subscription, Subscription) and subscription.dispatcher is not None:
        return subscription.dispatcher.delayed
    return 0


def in_replay(subscription: AnySubscription) -> int:
    """Return the entries that are to be delivered again, or wait for their key's consumer."""
    dispatcher = subscription.dispatcher if isinstance(subscription, Subscription) else None
    if isinstance(dispatcher, SharedDispatcher):
        return len(dispatcher.replay)
    if isinstance(dispatcher, KeySharedDispatcher):
        return dispatcher.waiting_entries
    return 0


def blocked(subscription: AnySubscription) -> bool:
    return isinstance(subscription, Subscription) and not subscription.may_deliver


def subscription_stats(
    subscription: AnySubscription, rates: RateSampler, earliest_publish: bool = False
) -> dict[str, Any]:
    """Return one subscription's part. The backlog counts messages, not entries as a real Pulsar does."""
    rate_out, throughput_out, redeliver_rate, ack_rate, expire_rate, drop_rate = rates.rates(subscription)
    durable = subscription if isinstance(subscription, Subscription) else None
    dispatcher = durable.dispatcher if durable is not None else None
    delayed = delayed_messages(subscription)
    stats: dict[str, Any] = {
        "msgRateOut": rate_out,
        "msgThroughputOut": throughput_out,
        "bytesOutCounter": subscription.bytes_out,
        "msgOutCounter": subscription.msg_out,
        "msgRateRedeliver": redeliver_rate,
        "messageAckRate": ack_rate,
        "chunkedMessageRate": 0.0,
        "msgBacklog": subscription.backlog_messages,
        "backlogSize": subscription.backlog_bytes,
        "earliestMsgPublishTimeInBacklog": _earliest_publish(subscription) if earliest_publish else 0,
        "msgBacklogNoDelayed": max(0, subscription.backlog_messages - delayed),
        "blockedSubscriptionOnUnackedMsgs": blocked(subscription),
        "msgDelayed": delayed,
        "msgInReplay": in_replay(subscription),
        "unackedMessages": subscription.unacked_messages,
    }
    if subscription.type is not None:
        stats["type"] = subscription.type
    if isinstance(dispatcher, SingleActiveDispatcher) and dispatcher.active is not None:
        stats["activeConsumerName"] = dispatcher.active.name
    key_shared = dispatcher if isinstance(dispatcher, KeySharedDispatcher) else None
    stats |= {
        "msgRateExpired": expire_rate,
        "msgExpired": durable.msg_expired if durable is not None else 0,
        "totalMsgExpired": durable.msg_expired if durable is not None else 0,
        "lastExpireTimestamp": durable.last_expire_ms if durable is not None else 0,
        "lastConsumedFlowTimestamp": durable.last_consumed_flow_ms if durable is not None else 0,
        "lastConsumedTimestamp": durable.last_consumed_ms if durable is not None else 0,
        "lastAckedTimestamp": durable.last_acked_ms if durable is not None else 0,
        "lastMarkDeleteAdvancedTimestamp": durable.last_mark_delete_ms if durable is not None else 0,
        "consumers": [
            consumer_stats(consumer, key_shared.ranges(consumer) if key_shared else None, rates)
            for consumer in subscription.consumers
        ],
        "isDurable": subscription.durable,
        "isReplicated": False,
        "allowOutOfOrderDelivery": key_shared.allow_out_of_order if key_shared else False,
    }
    if key_shared is not None:
        stats["keySharedMode"] = "STICKY" if key_shared.sticky else "AUTO_SPLIT"
    if durable is None:
        stats["msgDropRate"] = drop_rate
    stats |= {
        "consumersAfterMarkDeletePosition": {},
        **_NO_DRAINING,
        **_NO_RANGES,
        "subscriptionProperties": durable.properties if durable is not None else {},
        **_NO_FILTER,
        **_NO_THROTTLING,
        "durable": subscription.durable,
        "replicated": False,
    }
    return stats


def _earliest_publish(subscription: AnySubscription) -> int:
    """Return the client's publish time of the oldest unacknowledged entry, 0 if there is none."""
    if not isinstance(subscription, Subscription):
        return 0
    topic = subscription.topic
    offset = max(subscription.cursor.first_unacked(), topic.first_offset)
    header = topic.header(offset) if offset < topic.end_offset else None
    return header.publish_ms if header is not None else 0


def oldest_backlog_age_s(topic: AnyTopic) -> int:
    """Return the age (s) of the oldest message a durable subscription has not acknowledged, -1 without."""
    ages = [sub.oldest_unacked_age_ms() for sub in topic.subscriptions.values() if sub.durable]
    oldest = max(ages, default=-1)
    return oldest // 1000 if oldest >= 0 else -1


def quota_limits(broker: Broker, topic: AnyTopic) -> tuple[int, int]:
    """Return the backlog quota's limits in bytes and seconds, -1 without."""
    policies = broker.effective_policies(topic.name)
    size, age = policies.backlog_quota_size, policies.backlog_quota_age
    seconds = -1 if age is None else age.limit // 1000 if age.limit > 0 else age.limit
    return size.limit if size is not None else -1, seconds


def out_counters(topic: AnyTopic) -> tuple[int, int]:
    """Return messages and bytes delivered to the subscriptions there are."""
    subscriptions = topic.subscriptions.values()
    return sum(sub.msg_out for sub in subscriptions), sum(sub.bytes_out for sub in subscriptions)


def topic_stats(
    broker: Broker, topic: AnyTopic, rates: RateSampler, owner: str, earliest_publish: bool = False
) -> dict[str, Any]:
    """Return the stats of one topic that is not partitioned, or of one partition."""
    rate_in, throughput_in = rates.rates(topic)
    subscriptions = {
        name: subscription_stats(subscription, rates, earliest_publish)
        for name, subscription in topic.subscriptions.items()
    }
    msg_out, bytes_out = out_counters(topic)
    limit_size, limit_time = quota_limits(broker, topic)
    times = [sub["earliestMsgPublishTimeInBacklog"] for sub in subscriptions.values()]
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum(sub["msgRateOut"] for sub in subscriptions.values()),
        "msgThroughputOut": sum(sub["msgThroughputOut"] for sub in subscriptions.values()),
        "bytesInCounter": topic.bytes_in,
        "msgInCounter": topic.msg_in,
        "systemTopicBytesInCounter": 0,
        "bytesOutCounter": bytes_out,
        "msgOutCounter": msg_out,
        "bytesOutInternalCounter": 0,
        "averageMsgSize": topic.bytes_in / topic.msg_in if topic.msg_in else 0.0,
        "msgChunkPublished": any(producer.chunks_in for producer in topic.producers.values()),
        "storageSize": topic.stored_bytes,
        "backlogSize": topic.backlog_size(),
        "backlogQuotaLimitSize": limit_size,
        "backlogQuotaLimitTime": limit_time,
        "oldestBacklogMessageAgeSeconds": oldest_backlog_age_s(topic),
        "publishRateLimitedTimes": 0,
        "earliestMsgPublishTimeInBacklogs": min((time for time in times if time), default=0),
        "offloadedStorageSize": 0,
        "lastOffloadLedgerId": 0,
        "lastOffloadSuccessTimeStamp": 0,
        "lastOffloadFailureTimeStamp": 0,
        "ongoingTxnCount": 0,
        "abortedTxnCount": 0,
        "committedTxnCount": 0,
        "publishers": [producer_stats(producer, rates) for producer in topic.producers.values()],
        "waitingPublishers": len(topic.producer_registry.waiting),
        "subscriptions": subscriptions,
        "replication": {},
        "deduplicationStatus": "Enabled" if broker.effective_policies(topic.name).deduplication else "Disabled",
        **_NO_RANGES,
        "compaction": {
            "lastCompactionRemovedEventCount": 0,
            "lastCompactionSucceedTimestamp": 0,
            "lastCompactionFailedTimestamp": 0,
            "lastCompactionDurationTimeInMills": 0,
        },
        "ownerBroker": owner,
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimeStamp": topic.last_publish_ms,
    }
