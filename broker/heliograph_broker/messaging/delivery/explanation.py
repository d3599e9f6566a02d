"""Explains from a subscription's state why it delivers nothing now. Nothing is changed, and nothing is kept for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.log.damaged import received_from
from heliograph_broker.messaging.messages.key_hash import SLOTS
from heliograph_broker.messaging.policies.delayed_topics import TASK as RELEASE_DELAYED
from heliograph_broker.messaging.policies.expiry import EXPIRE, STORE_LETTERS

from .delivery_reasons import CAUGHT_UP, DeliveryReason, Explanation
from .dispatch_key_shared import LOOK_AHEAD, KeySharedDispatcher, first_held, first_waiting
from .dispatch_shared import SharedDispatcher
from .dispatch_single import SingleActiveDispatcher
from .dispatcher import DISPATCH, READ, DelayingDispatcher, Dispatcher

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.messaging.base.containment import Suspension
    from heliograph_broker.messaging.clients.consumer import Consumer

    from .dispatch_key_shared import WaitingEntry
    from .subscription import Subscription

#: The duties without which nothing can be delivered.
_DELIVERING = (DISPATCH, READ, RELEASE_DELAYED)
#: Delayed entries that are looked at for the one to name.
_LOOKED_AT = 50_000


def explain(subscription: Subscription) -> Explanation:
    """Return why ``subscription`` delivers nothing now."""
    if subscription.name == COMPACTION:
        since_ms = subscription.acks.last_mark_delete_ms
        return Explanation(DeliveryReason.COMPACTION, since_ms, "compaction reads the topic up to this cursor itself")
    dispatcher = subscription.dispatcher
    unacked = _unacked_entries(subscription)
    view = subscription.view
    owed = view is not None and view.owed_from >= 0
    if dispatcher is None or not dispatcher.consumers:
        return _all_acknowledged(subscription) if not unacked and not owed else _without_consumer(subscription)
    in_view = view is not None and _reads_view(dispatcher) and view.unread(dispatcher)
    held = sum(consumer.held.range_cardinality(*_unacked_range(subscription)) for consumer in dispatcher.consumers)
    if not in_view:
        if not unacked:
            return _all_acknowledged(subscription)
        if unacked <= held:
            return _all_delivered(subscription)
    suspended = _suspended(subscription)
    if suspended is not None:
        return suspended
    if dispatcher.reading:
        return Explanation(
            DeliveryReason.READING, dispatcher.reading_since_ms, "the next messages are being read from the disk"
        )
    if isinstance(dispatcher, KeySharedDispatcher):
        found = _key_shared(subscription, dispatcher)
    elif isinstance(dispatcher, SharedDispatcher):
        found = _shared(subscription, dispatcher)
    else:
        found = _single(subscription, dispatcher, in_view=in_view)
    return found or _passed(subscription, dispatcher, held)


def explain_consumer(subscription: Subscription, consumer: Consumer, of_all: Explanation) -> Explanation:
    """Return why ``consumer`` gets nothing now: the subscription's reason, ``of_all``, unless it has one of its own."""
    if of_all.reason in CAUGHT_UP or of_all.reason in (DeliveryReason.SUSPENDED, DeliveryReason.READING):
        return of_all
    active = active_consumer(subscription)
    if active is not None and active is not consumer:
        text = f"consumer '{active.name}' is the active one and gets every message"
        return Explanation(DeliveryReason.STANDBY, consumer.client.connected_ms, text, active)
    own = consumer_hold(consumer)
    if own is not None:
        return own
    preferred = _preferred(subscription, consumer)
    if preferred is not None:
        text = f"consumer '{preferred.name}' has a higher priority (a lower level) and room for messages"
        return Explanation(DeliveryReason.STANDBY, consumer.client.connected_ms, text, preferred)
    return of_all


def active_consumer(subscription: Subscription) -> Consumer | None:
    """Return the consumer that gets every message of an Exclusive or Failover subscription, None on others."""
    dispatcher = subscription.dispatcher
    return dispatcher.active if isinstance(dispatcher, SingleActiveDispatcher) else None


def consumer_hold(consumer: Consumer) -> Explanation | None:
    """Return why ``consumer`` can be sent nothing, None exactly if it is ``ready``."""
    if consumer.permits <= 0:
        since_ms = consumer.last_consumed_ms or consumer.client.connected_ms
        text = f"consumer '{consumer.name}' has {consumer.permits} permits: its client's receiver queue is full"
        if not consumer.first_flow_ms and consumer.subscription.persistent:
            text = f"consumer '{consumer.name}' has not asked for messages yet: its client gave no permits"
        return Explanation(DeliveryReason.NO_PERMITS, since_ms, text, consumer)
    sink = consumer.sink
    if not sink.writable and sink.held_until_ms:
        text = f"the dispatch rate of the role of consumer '{consumer.name}' is reached"
        return Explanation(DeliveryReason.DISPATCH_RATE, sink.unwritable_since_ms, text, until_ms=sink.held_until_ms)
    if not sink.writable:
        text = f"the client of consumer '{consumer.name}' does not read the data sent to it"
        return Explanation(DeliveryReason.CONNECTION_FULL, sink.unwritable_since_ms, text, consumer)
    gate = consumer.subscription.dispatch_gate
    if gate is not None and gate.closed:
        clock = consumer.subscription.topic.host.clock
        now_ms = monotonic_ms(clock)
        until_ms = clock.now_ms() + gate.free_at(now_ms) - now_ms
        text = "the dispatch rate of the subscription or its topic is reached"
        return Explanation(DeliveryReason.DISPATCH_RATE, gate.closed_ms, text, until_ms=until_ms)
    if consumer.blocked_on_unacked:
        limit = consumer.subscription.unacked_limit
        text = (
            f"consumer '{consumer.name}' holds {consumer.unacked} unacknowledged messages, at most {limit} are allowed"
        )
        return Explanation(DeliveryReason.UNACKED_LIMIT_OF_CONSUMER, consumer.last_consumed_ms, text, consumer)
    return None


#: How far a consumer is from being ready: the one that needs least is the one to name.
_FURTHEST = (
    DeliveryReason.NO_PERMITS,
    DeliveryReason.CONNECTION_FULL,
    DeliveryReason.DISPATCH_RATE,
    DeliveryReason.UNACKED_LIMIT_OF_CONSUMER,
)


def hold_of_all(consumers: list[Consumer]) -> Explanation | None:
    """Return why none of ``consumers`` can be sent anything, None if one can."""
    found: Explanation | None = None
    for consumer in consumers:
        hold = consumer_hold(consumer)
        if hold is None:
            return None
        if found is None or _FURTHEST.index(hold.reason) > _FURTHEST.index(found.reason):
            found = hold
    return found


# -- by the type of the subscription ------------------------------------------------------------------------------


def _single(subscription: Subscription, dispatcher: Dispatcher, *, in_view: bool) -> Explanation | None:
    active = active_consumer(subscription)
    if active is None or not (in_view or _replayed(subscription, dispatcher) or _new(subscription, dispatcher)):
        return None
    return consumer_hold(active) or _none(subscription)


def _shared(subscription: Subscription, dispatcher: SharedDispatcher) -> Explanation | None:
    waiting = {
        consumer: offset
        for consumer, held in dispatcher.chunks_wait_for.items()
        if (offset := _first_unacked_of(subscription, held)) is not None
    }
    if not (waiting or _replayed(subscription, dispatcher) or _new(subscription, dispatcher)):
        return None
    hold = _limit(subscription) or hold_of_all(dispatcher.consumers)
    if hold is not None:
        return hold
    for consumer, offset in waiting.items():
        hold = consumer_hold(consumer)
        if hold is not None:
            text = f"chunks wait for consumer '{consumer.name}', which has the others of their message: {hold.text}"
            position = subscription.topic.log.position(offset)
            return Explanation(DeliveryReason.CHUNK_WAITS, hold.since_ms, text, consumer, position)
    return _none(subscription)


def _key_shared(subscription: Subscription, dispatcher: KeySharedDispatcher) -> Explanation | None:
    waiting = first_waiting(dispatcher)
    more = _replayed(subscription, dispatcher) or _new(subscription, dispatcher)
    if waiting is None and not more:
        return None
    hold = _limit(subscription) or hold_of_all(dispatcher.consumers)
    if hold is not None:
        return hold
    if waiting is None or (more and dispatcher.waiting_entries < LOOK_AHEAD):
        return _none(subscription)
    return _waits_for_key(subscription, dispatcher, waiting)


def _waits_for_key(subscription: Subscription, dispatcher: KeySharedDispatcher, waiting: WaitingEntry) -> Explanation:
    log = subscription.topic.log
    received_ms = _received(subscription, waiting.offset)
    if waiting.held:
        text = "earlier messages of the key of the next message are at another consumer, unacknowledged"
        first = first_held(dispatcher, waiting.key_hash)
        if first is None:
            return Explanation(DeliveryReason.KEY_HELD, received_ms, text)
        holder, offset = first
        position = log.position(offset)
        text = (
            f"the key of the next message is held by consumer '{holder.name}', which has unacknowledged messages of "
            f"it, the first is {position[0]}:{position[1]}"
        )
        since_ms = max(subscription.acks.pending[offset].sent_ms, received_ms)
        return Explanation(DeliveryReason.KEY_HELD, since_ms, text, holder, position)
    position = log.position(waiting.offset)
    if waiting.target is None:
        slot = waiting.key_hash % SLOTS
        text = f"no consumer declared a range with {slot}, the slot of the next message's key"
        return Explanation(DeliveryReason.KEY_WITHOUT_CONSUMER, received_ms, text, position=position)
    hold = consumer_hold(waiting.target)
    if hold is None:
        return _none(subscription)
    text = f"the key of the next message is assigned to one consumer: {hold.text}"
    return hold._replace(text=text, consumer=waiting.target, position=position)


# -- what is left to deliver ----------------------------------------------------------------------------------------


def _unacked_range(subscription: Subscription) -> tuple[int, int]:
    log = subscription.topic.log
    first = max(subscription.acks.cursor.first_unacked(), log.first_offset)
    return first, max(first, log.end_offset)


def _unacked_bitmap(subscription: Subscription) -> BitMap64:
    left = BitMap64()
    left.add_range(*_unacked_range(subscription))
    left -= subscription.acks.cursor.acked
    return left


def _unacked_entries(subscription: Subscription) -> int:
    first, end = _unacked_range(subscription)
    return end - first - subscription.acks.cursor.acked.range_cardinality(first, end)


def _first_unacked_of(subscription: Subscription, offsets: BitMap64) -> int | None:
    """Return the first of ``offsets`` that is not acknowledged or trimmed, None if none is."""
    if not offsets:
        return None
    left = _unacked_bitmap(subscription) & offsets
    return left.min() if left else None


def _replayed(subscription: Subscription, dispatcher: Dispatcher) -> bool:
    """Whether something is to be delivered again."""
    return _first_unacked_of(subscription, dispatcher.replay) is not None


def _new(subscription: Subscription, dispatcher: Dispatcher) -> bool:
    """Whether there are entries that were never offered and do not wait for their time."""
    first, end = _unacked_range(subscription)
    first = max(first, dispatcher.read_offset)
    if first >= end:
        return False
    acked = subscription.acks.cursor.acked
    left = end - first - acked.range_cardinality(first, end)
    if left and isinstance(dispatcher, DelayingDispatcher):
        waiting = subscription.topic.timing.timed.waiting
        left -= (waiting - acked).range_cardinality(first, end)
    return left > 0


def _reads_view(dispatcher: Dispatcher) -> bool:
    active = dispatcher.active if isinstance(dispatcher, SingleActiveDispatcher) else None
    return active is not None and active.read_compacted


def _preferred(subscription: Subscription, consumer: Consumer) -> Consumer | None:
    """Return a consumer that gets messages of a Shared subscription before ``consumer``, None if there is none."""
    if not isinstance(subscription.dispatcher, SharedDispatcher):
        return None
    return next((other for other in subscription.consumers if other.priority < consumer.priority and other.ready), None)


# -- reasons of the whole subscription ---------------------------------------------------------------------------------


def wall_ms(clock: Clock, at_ms: int) -> int:
    """Return the wall-clock time (ms) of a monotonic one."""
    return clock.now_ms() - (monotonic_ms(clock) - at_ms)


def _received(subscription: Subscription, offset: int) -> int:
    return received_from(subscription.topic.log, offset) or 0


def _all_acknowledged(subscription: Subscription) -> Explanation:
    acks = subscription.acks
    since_ms = max(acks.last_mark_delete_ms, acks.last_acked_ms) or subscription.created_ms
    text = "every message of the topic is acknowledged"
    if not subscription.consumers:
        text += "; no consumer is connected"
    return Explanation(DeliveryReason.ALL_ACKNOWLEDGED, since_ms, text)


def _all_delivered(subscription: Subscription) -> Explanation:
    unacked = subscription.acks.unacked_messages
    oldest = min(
        (consumer for consumer in subscription.consumers if consumer.held),
        key=lambda each: each.held.min(),
        default=None,
    )
    text = f"consumers have all messages that are not acknowledged: {unacked}"
    if oldest is None:
        return Explanation(DeliveryReason.ALL_DELIVERED, subscription.sent.last_consumed_ms, text)
    position = subscription.topic.log.position(oldest.held.min())
    text += f", the first of them, {position[0]}:{position[1]}, is at consumer '{oldest.name}'"
    return Explanation(DeliveryReason.ALL_DELIVERED, subscription.sent.last_consumed_ms, text, oldest, position)


def _without_consumer(subscription: Subscription) -> Explanation:
    since_ms = wall_ms(subscription.topic.host.clock, subscription.last_used_ms)
    if subscription.seeking:
        return Explanation(DeliveryReason.SEEKING, since_ms, "the subscription is being moved to another position")
    return Explanation(DeliveryReason.NO_CONSUMER, since_ms, "no consumer is connected")


def _limit(subscription: Subscription) -> Explanation | None:
    if subscription.may_deliver:
        return None
    text = (
        f"consumers hold {subscription.acks.unacked_messages} unacknowledged messages, "
        f"at most {subscription.max_unacked_messages} are allowed on the subscription"
    )
    return Explanation(DeliveryReason.UNACKED_LIMIT_OF_SUBSCRIPTION, subscription.sent.last_consumed_ms, text)


def _suspension(subscription: Subscription, duties: tuple[str, ...]) -> Suspension | None:
    containment = subscription.topic.host.containment
    if not containment.suspended:
        return None
    found = [each for owner in (subscription, subscription.topic) for each in containment.of(owner)]
    return next((each for each in found if each.task in duties), None)


def _suspended(subscription: Subscription) -> Explanation | None:
    found = _suspension(subscription, _DELIVERING)
    if found is None:
        return None
    clock = subscription.topic.host.clock
    text = f"the duty '{found.task}' failed {found.failures} times: {found.reason}"
    return Explanation(DeliveryReason.SUSPENDED, found.since_ms, text, until_ms=wall_ms(clock, found.due_ms))


def _none(subscription: Subscription) -> Explanation:
    return Explanation(DeliveryReason.NONE, subscription.sent.last_consumed_ms, "nothing holds the delivery back")


def _passed(subscription: Subscription, dispatcher: Dispatcher, held: int) -> Explanation:
    """Return why what the dispatcher has passed is not delivered: it waits for its time, or has expired."""
    topic = subscription.topic
    if isinstance(dispatcher, DelayingDispatcher):
        waiting = _unacked_bitmap(subscription) & topic.timing.timed.waiting
        for consumer in dispatcher.consumers:
            waiting -= consumer.held
        if waiting:
            return _delayed(subscription, waiting)
    withheld = subscription.expiry.withheld
    if withheld:
        offset = withheld.min()
        position = topic.log.position(offset)
        text = f"everything that is left has expired and is about to be acknowledged, entries: {len(withheld)}"
        trouble = _suspension(subscription, (STORE_LETTERS, EXPIRE))
        since_ms = subscription.sent.last_consumed_ms or _received(subscription, offset)
        if trouble is not None:
            text = f"everything that is left has expired and cannot be acknowledged yet: {trouble.reason}"
            since_ms = trouble.since_ms
        return Explanation(DeliveryReason.EXPIRED, since_ms, text, position=position)
    active = active_consumer(subscription)
    if active is not None and active.key_shared.ranges:
        text = f"the keys of all that is left are in none of the ranges that consumer '{active.name}' declared"
        since_ms = active.last_consumed_ms or active.client.connected_ms
        return Explanation(DeliveryReason.KEY_WITHOUT_CONSUMER, since_ms, text, active)
    # What compaction left out is acknowledged with the message before it.
    return _all_delivered(subscription) if held else _none(subscription)


def _delayed(subscription: Subscription, waiting: BitMap64) -> Explanation:
    topic = subscription.topic
    timed = topic.timing.timed
    until_ms, offset = timed.first_due(waiting, _LOOKED_AT) or (timed.next_due_ms, waiting.min())
    text = f"everything that is left is delayed, entries: {len(waiting)}"
    return Explanation(
        DeliveryReason.DELAYED,
        _received(subscription, offset),
        text,
        position=topic.log.position(offset),
        until_ms=until_ms,
    )
