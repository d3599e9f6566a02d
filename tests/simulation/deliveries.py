"""Rules of each delivery: nothing acknowledged comes again, order, one holder, chunked messages as wholes."""

from __future__ import annotations

from .model import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, ConsumerModel, Message, Position, Violation


def check_delivery(
    consumer: ConsumerModel, message: Message, position: Position, bits: int, now_ms: int
) -> ConsumerModel | None:
    """Check one delivery; return who else seems to hold the message, to be asked again in a moment.

    Raises :class:`Violation`.
    """
    subscription = consumer.subscription
    where = f"{message!r} to consumer {consumer.number} of {subscription!r}"
    if message.topic is not subscription.topic:
        raise Violation("foreign message", f"{where}, published to {message.topic.name}")
    if subscription.unknown or consumer.compacted:
        return None
    # Sent again after a crash it may be there twice: the other one is not acknowledged.
    if len(message.positions) <= 1 and bits & subscription.settled_bits(message):
        raise Violation("acknowledged message came back", f"{where}, bits {bits:b}")
    _check_order(consumer, message, position, now_ms, where)
    _check_chunks(consumer, message, position, where)
    holder = None
    if len(message.positions) > 1:
        # Likewise: each of the two entries may have a holder of its own.
        return None
    for other in subscription.consumers:
        if other is not consumer and message.number in other.hand and message.number not in other.given_back:
            holder = other
    return holder


def _check_order(consumer: ConsumerModel, message: Message, position: Position, now_ms: int, where: str) -> None:
    subscription = consumer.subscription
    if consumer.kind == SHARED:
        return
    if consumer.kind in (EXCLUSIVE, FAILOVER):
        if message.may_have_expired:
            moment, before = consumer.last_released
            if moment == now_ms and position <= before:
                raise Violation("order", f"{where} after {before}: withheld and released in disorder")
            consumer.last_released = (now_ms, position)
        else:
            if position <= consumer.last and message.number not in consumer.given_back:
                raise Violation("order", f"{where} after {consumer.last}")
            consumer.last = max(consumer.last, position)
    if not subscription.durable or message.may_have_expired or message.hostile:
        return
    for earlier in subscription.topic.messages:
        if (
            earlier is not message
            and earlier.receipted
            and (consumer.kind != KEY_SHARED or earlier.key == message.key is not None)
            and not earlier.deliver_at_ms
            and not message.deliver_at_ms
            and earlier.number not in consumer.hand
            and earlier.number not in consumer.given_back
            and earlier.positions
            and max(earlier.positions) < position
            and subscription.owes(earlier)
        ):
            raise Violation("order", f"{where} before {earlier!r}, which is not acknowledged and not in its hands")


def _check_chunks(consumer: ConsumerModel, message: Message, position: Position, where: str) -> None:
    """A chunk comes to whom its message's earlier chunks came, after them: otherwise nobody puts it together."""
    subscription = consumer.subscription
    if message.chunked is None or not subscription.durable or message.may_have_expired:
        return
    for earlier in message.chunked.chunks:
        if earlier is message:
            return
        if (
            earlier.positions
            and max(earlier.positions) < position
            and subscription.owes(earlier)
            and earlier.number not in consumer.hand
            and earlier.number not in consumer.given_back
        ):
            raise Violation("chunks apart", f"{where} without {earlier!r}, which is not acknowledged")


def given_back_before(consumer: ConsumerModel, message: Message) -> bool:
    """Whether it is a chunk that was on its way while the client gave back the chunks before it, and so this one."""
    chunked = message.chunked
    if chunked is None:
        return False
    at = chunked.chunks.index(message)
    return any(chunk.number in consumer.given_back for chunk in chunked.chunks[:at])
