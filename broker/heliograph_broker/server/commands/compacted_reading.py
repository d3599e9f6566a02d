"""``readCompacted`` on the wire: who may ask for it, and where in the compacted view a position lies."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.topic import Topic

_UINT64 = 0xFFFFFFFFFFFFFFFF
_INT64_MAX = 0x7FFFFFFFFFFFFFFF


def check_compaction(topic: AnyTopic, request: wire.CommandSubscribe) -> None:
    """Raises :class:`NotAllowed` for a consumer that cannot read the compacted view, or takes the compaction's name."""
    if request.subscription == COMPACTION:
        raise NotAllowed(f"{COMPACTION} is the broker's own subscription")
    if not request.read_compacted:
        return
    if not isinstance(topic, Topic):
        raise NotAllowed("readCompacted only valid on persistent topics")
    if request.subType not in (wire.CommandSubscribe.Exclusive, wire.CommandSubscribe.Failover):
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")


def owed_from_start(topic: Topic, request: wire.CommandSubscribe, now_ms: int) -> int:
    """Return the offset from which on a new subscription is owed what is compacted and trimmed, -1 for nothing."""
    if request.start_message_rollback_duration_sec > 0:
        since = now_ms - request.start_message_rollback_duration_sec * 1000
        return topic.compaction.trimmed_published_at_or_after(since)
    if not request.durable and request.HasField("start_message_id"):
        return _owed_from_id(topic, request.start_message_id)
    if request.initialPosition == wire.CommandSubscribe.Earliest:
        return topic.compaction.trimmed_from(-1, -1)
    return -1


def owed_from_seek(topic: Topic, request: wire.CommandSeek) -> int:
    """As :func:`owed_from_start`, after a seek."""
    if request.HasField("message_publish_time"):
        return topic.compaction.trimmed_published_at_or_after(request.message_publish_time)
    return _owed_from_id(topic, request.message_id)


def _owed_from_id(topic: Topic, position: wire.MessageIdData) -> int:
    if position.ledgerId == _UINT64:
        return topic.compaction.trimmed_from(-1, -1)
    if position.ledgerId >= _INT64_MAX:
        return -1
    return topic.compaction.trimmed_from(position.ledgerId, 0 if position.entryId == _UINT64 else position.entryId)
