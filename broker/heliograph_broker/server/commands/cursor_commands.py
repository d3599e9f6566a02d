"""Commands of a consumer about positions: ACK, redeliver, SEEK, and the question for the last message id."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import remaining_of
from heliograph_api.protocol.frames import parse_entry

from heliograph_broker.messaging.base.errors import (
    BrokerError,
    ConsumerNotFound,
    Done,
    NotAllowed,
    PreconditionFailed,
)
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.server.consumer_sink import SoughtReader
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.usecases.publishing import NO_TRANSACTIONS

from .request_fields import UINT64_MAX, attached_consumer, position_of

_INT64_MAX = 0x7FFFFFFFFFFFFFFF


def ack(session: Session, command: wire.BaseCommand) -> None:
    """Acknowledge one or many ids; ACK_RESPONSE, if asked for, is sent when that is durable."""
    request = command.ack
    consumer_id = request.consumer_id
    consumer = session.consumers.open.get(consumer_id)
    done: Done | None = None
    if request.HasField("request_id"):
        request_id = request.request_id

        def respond(error: BrokerError | None) -> None:
            answer = wire.BaseCommand(type=wire.BaseCommand.ACK_RESPONSE)
            response = answer.ackResponse
            response.consumer_id = consumer_id
            response.request_id = request_id
            if error is not None:
                response.error = error_code(error)
                response.message = str(error)
            session.output.send(answer)

        done = respond
    if consumer is None:
        if done is not None:
            done(ConsumerNotFound(f"consumer {consumer_id} is not open on this connection"))
        return
    if request.HasField("txnid_most_bits"):
        if done is not None:
            done(NotAllowed(NO_TRANSACTIONS))
        return
    cumulative = request.ack_type == wire.CommandAck.Cumulative
    try:
        ids = [
            AckId(i.ledgerId, _signed(i.entryId), remaining_of(i.ack_set) if i.ack_set else None)
            for i in request.message_id
        ]
        if not session.broker.config.batch_index_ack:
            ids = _whole_entries(_stored(consumer), ids, cumulative=cumulative)
    except ValueError as error:
        if done is not None:
            done(PreconditionFailed(str(error)))
        return
    if cumulative:
        if len(ids) != 1:
            if done is not None:
                done(PreconditionFailed(f"a cumulative acknowledgment names one message id, not {len(ids)}"))
            return
        consumer.subscription.acks.acknowledge_cumulative(consumer, ids[0], done)
    else:
        consumer.subscription.acks.acknowledge(consumer, ids, done)


def _whole_entries(subscription: Subscription | None, ids: list[AckId], *, cumulative: bool) -> list[AckId]:
    """Return ``ids`` without those that leave a part of a batch; a cumulative one becomes that of the entry before."""
    whole: list[AckId] = []
    for each in ids:
        if not each.remaining or not _left(subscription, each):
            whole.append(AckId(each.ledger_id, each.entry_id, None))
        elif cumulative:
            whole.append(AckId(each.ledger_id, max(each.entry_id - 1, -1), None))
    return whole


def _left(subscription: Subscription | None, each: AckId) -> int:
    """Return the messages that an acknowledgment leaves, without those that the broker has acknowledged itself."""
    remaining = each.remaining or 0
    offset = None if subscription is None else subscription.topic.log.offset_of(each.ledger_id, each.entry_id)
    if subscription is None or offset is None:
        return remaining
    return remaining & subscription.acks.cursor.partial.get(offset, remaining)


def _signed(number: int) -> int:
    """Return the signed value of a number that is unsigned on the wire: before a ledger's first entry comes -1."""
    return number if number <= _INT64_MAX else number - (1 << 64)


def redeliver(session: Session, command: wire.BaseCommand) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        return
    positions = [(i.ledgerId, i.entryId) for i in request.message_ids] or None
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    consumer.subscription.redeliver(consumer, positions, epoch)


def seek(session: Session, command: wire.BaseCommand) -> None:
    """Move a subscription to a message id or publish time; SUCCESS when that is durable."""
    request = command.seek
    consumer = attached_consumer(session, request.consumer_id, request.request_id)
    if consumer is None:
        return
    stored = _stored(consumer)
    if stored is None:
        consumer.subscription.seek(0, None, session.answer_to(request.request_id))
    else:
        _seek_stored(session, consumer, stored, request)


def _stored(consumer: Consumer) -> Subscription | None:
    """Return the consumer's subscription if its topic is persistent."""
    subscription = consumer.subscription
    return subscription if isinstance(subscription, Subscription) else None


def _seek_stored(session: Session, consumer: Consumer, subscription: Subscription, request: wire.CommandSeek) -> None:
    """Move a subscription that has a cursor, and ask for the compacted messages that its consumer is owed."""
    topic = subscription.topic
    remaining: int | None = None
    if request.HasField("message_publish_time"):
        offset = topic.log.first_published_at_or_after(request.message_publish_time)
    elif request.HasField("message_id"):
        offset = position_of(request.message_id).offset(topic)
        stored = topic.log.offset_of(request.message_id.ledgerId, request.message_id.entryId) is not None
        if stored and session.broker.config.batch_index_ack:
            try:
                remaining = remaining_of(request.message_id.ack_set)
            except ValueError as error:
                session.refuse(request.request_id, PreconditionFailed(str(error)))
                return
    else:
        session.output.send_error(
            request.request_id, wire.MetadataError, "Message id and message publish time were not present"
        )
        return

    done = session.answer_to(request.request_id)
    if not subscription.durable:
        session.consumers.sought_readers[request.consumer_id] = SoughtReader(subscription)
    subscription.seek(offset, remaining, done)
    view = subscription.view
    if consumer.read_compacted and view is not None:
        if request.HasField("message_publish_time"):
            view.owe(topic.compaction.trimmed_published_at_or_after(request.message_publish_time))
        else:
            view.owe(position_of(request.message_id).owed_from(topic))


def get_last_message_id(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the id of the last entry kept (its last batch index too) and the consumer's mark-delete position."""
    request = command.getLastMessageId
    consumer = attached_consumer(session, request.consumer_id, request.request_id)
    if consumer is None:
        return
    subscription = _stored(consumer)
    if subscription is None:
        session.refuse(request.request_id, NotAllowed("getLastMessageId is not possible on a non-persistent topic"))
        return
    topic = subscription.topic
    cursor = subscription.acks.cursor

    def answer(ledger_id: int, entry_id: int, batch_index: int) -> None:
        reply = wire.BaseCommand(type=wire.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        response = reply.getLastMessageIdResponse
        response.request_id = request.request_id
        last = response.last_message_id
        last.ledgerId = ledger_id & UINT64_MAX
        last.entryId = entry_id & UINT64_MAX
        last.partition = topic.name.partition
        last.batch_index = batch_index
        ledger, entry_before = topic.log.position(cursor.mark_delete)
        response.consumer_mark_delete_position.ledgerId = ledger & UINT64_MAX
        response.consumer_mark_delete_position.entryId = entry_before & UINT64_MAX
        session.output.send(reply)

    compacted = topic.compaction.last_position() if consumer.read_compacted else None
    if compacted is not None:
        answer(*compacted)
        return
    offset = topic.log.end_offset - 1
    if offset < topic.log.first_offset:
        answer(-1, -1, -1)
        return

    def found(result: list[Entry] | Exception) -> None:
        if isinstance(result, Exception) or not result:
            session.output.send_error(
                request.request_id, wire.PersistenceError, f"cannot read the last entry: {result}"
            )
            return
        last = result[-1]
        metadata = parse_entry(last.frame).metadata
        batch_index = last.messages - 1 if metadata.HasField("num_messages_in_batch") else -1
        answer(last.ledger_id, last.entry_id, batch_index)

    cached = topic.log.tail.get(offset)
    if cached is not None:
        found([cached])
    else:
        topic.log.read(offset, 1, 1, found)
