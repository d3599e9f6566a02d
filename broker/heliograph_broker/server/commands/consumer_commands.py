"""SUBSCRIBE and everything a consumer says: FLOW, ACK, redeliver, seek, unsubscribe, close, stats."""

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
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.usecases import consumers
from heliograph_broker.usecases.consumers import ConsumerRequest
from heliograph_broker.usecases.positions import EARLIEST, MessagePosition, Start

from .request_fields import client_info, parse_topic, properties_of
from .schema_commands import schema_record

_UINT64 = 0xFFFFFFFFFFFFFFFF
_INT64_MAX = 0x7FFFFFFFFFFFFFFF


def subscribe(session: Session, command: wire.BaseCommand) -> None:
    """Attach a consumer; SUCCESS is sent when a new subscription is durable. A refusal leaves nothing behind."""
    request = command.subscribe
    broker = session.broker
    if request.consumer_id in session.consumers.open:
        # Said again, perhaps before the first answer: the same holds for both.
        attached = session.consumers.open[request.consumer_id].subscription.topic
        broker.when_durable(attached, session.answer_to(request.request_id))
        return
    try:
        if request.consumer_id not in session.consumers.sought_readers:
            session.check_handles()
        opened = consumers.subscribe(
            broker,
            session.consumers,
            _consumer_request(session, request),
            lambda: subscribe(session, command) if session.connection.alive else None,
        )
    except BrokerError as error:
        session.refuse(request.request_id, error)
        return
    if opened is None:
        return
    consumer, creation = opened
    session.consumers.open[request.consumer_id] = consumer
    session.consumers.sought_readers.pop(request.consumer_id, None)

    def durable(error: BrokerError | None) -> None:
        if error is None:
            session.succeed(request.request_id)
            return
        if session.consumers.open.get(request.consumer_id) is consumer:
            # A retry must not find the consumer id taken by the refused consumer.
            del session.consumers.open[request.consumer_id]
            consumer.subscription.remove_consumer(consumer)
        session.refuse(request.request_id, error)

    creation.when_durable(durable)


def _consumer_request(session: Session, request: wire.CommandSubscribe) -> ConsumerRequest:
    """Return what a SUBSCRIBE asks for. Raises :class:`InvalidTopicName`."""
    policy = request.keySharedMeta
    sub_type = SubscriptionType(request.subType)
    named = not request.durable and request.HasField("start_message_id")
    return ConsumerRequest(
        parse_topic(request.topic),
        request.subscription,
        sub_type,
        request.consumer_id,
        request.consumer_name,
        create_topic=request.force_topic_creation,
        durable=request.durable,
        start=Start(
            earliest=request.initialPosition == wire.CommandSubscribe.Earliest,
            position=_position(request.start_message_id) if named else None,
            rollback_s=request.start_message_rollback_duration_sec,
        ),
        subscription_properties=properties_of(request.subscription_properties),
        priority=request.priority_level,
        epoch=request.consumer_epoch,
        key_shared=KeySharedPolicy(
            sticky=sub_type is SubscriptionType.KEY_SHARED and policy.keySharedMode == wire.STICKY,
            ranges=tuple(KeyRange(part.start, part.end) for part in policy.hashRanges),
            allow_out_of_order=policy.allowOutOfOrderDelivery,
        ),
        read_compacted=request.read_compacted,
        schema=schema_record(session, request.schema) if request.HasField("schema") else None,
        client=client_info(session, request.metadata),
        host=session.connection.host,
    )


def _position(message_id: wire.MessageIdData) -> MessagePosition:
    """Return the position that a message id names; an id of -1 comes as the largest unsigned number."""
    if message_id.ledgerId == _UINT64:
        return EARLIEST
    return MessagePosition(message_id.ledgerId, 0 if message_id.entryId == _UINT64 else message_id.entryId)


def flow(session: Session, command: wire.BaseCommand) -> None:
    consumer = session.consumers.open.get(command.flow.consumer_id)
    if consumer is not None:
        consumer.subscription.flow(consumer, command.flow.messagePermits)


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
    if request.HasField("txnid_most_bits") and request.txnid_most_bits:
        if done is not None:
            done(NotAllowed("transactions are not supported by this broker"))
        return
    try:
        ids = [
            AckId(i.ledgerId, _signed(i.entryId), remaining_of(i.ack_set) if i.ack_set else None)
            for i in request.message_id
        ]
    except ValueError as error:
        if done is not None:
            done(PreconditionFailed(str(error)))
        return
    if request.ack_type == wire.CommandAck.Cumulative:
        if len(ids) != 1:
            if done is not None:
                done(PreconditionFailed(f"a cumulative acknowledgment names one message id, not {len(ids)}"))
            return
        consumer.subscription.acks.acknowledge_cumulative(consumer, ids[0], done)
    else:
        consumer.subscription.acks.acknowledge(consumer, ids, done)


def _signed(number: int) -> int:
    """Return what a client meant by a number that is unsigned on the wire: before a ledger's first entry comes -1."""
    return number if number <= _INT64_MAX else number - (1 << 64)


def redeliver(session: Session, command: wire.BaseCommand) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        return
    positions = [(i.ledgerId, i.entryId) for i in request.message_ids] or None
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    consumer.subscription.redeliver(consumer, positions, epoch)


def _unknown_consumer(session: Session, request_id: int) -> None:
    """Refuse a request about a consumer that is not open on the connection, with Pulsar's error."""
    session.output.send_error(request_id, wire.MetadataError, "Consumer not found")


def unsubscribe(session: Session, command: wire.BaseCommand) -> None:
    """Delete the subscription; only its sole consumer may, or any one by force, which disconnects the others."""
    request = command.unsubscribe
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
        return
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not request.force:
        session.output.send_error(
            request.request_id, wire.MetadataError, "Unconnected or shared consumer attempting to unsubscribe"
        )
        return
    del session.consumers.open[request.consumer_id]
    subscription.remove_consumer(consumer)

    done = session.answer_to(request.request_id)
    if subscription.name in subscription.topic.subscriptions:
        subscription.topic.delete_subscription(subscription.name, force=request.force, done=done)
    else:
        done(None)


def seek(session: Session, command: wire.BaseCommand) -> None:
    """Move a subscription to a message id or publish time; SUCCESS when that is durable."""
    request = command.seek
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
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
        offset = _position(request.message_id).offset(topic)
        if topic.log.offset_of(request.message_id.ledgerId, request.message_id.entryId) is not None:
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
        session.consumers.sought_readers[request.consumer_id] = subscription
    subscription.seek(offset, remaining, done)
    view = subscription.view
    if consumer.read_compacted and view is not None:
        if request.HasField("message_publish_time"):
            view.owe(topic.compaction.trimmed_published_at_or_after(request.message_publish_time))
        else:
            view.owe(_position(request.message_id).owed_from(topic))


def get_last_message_id(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the id of the last entry kept (its last batch index too) and the consumer's mark-delete position."""
    request = command.getLastMessageId
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
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
        last.ledgerId = ledger_id & _UINT64
        last.entryId = entry_id & _UINT64
        last.partition = topic.name.partition
        last.batch_index = batch_index
        ledger, entry_before = topic.log.position(cursor.mark_delete)
        response.consumer_mark_delete_position.ledgerId = ledger & _UINT64
        response.consumer_mark_delete_position.entryId = entry_before & _UINT64
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


def consumer_stats(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the counters of one consumer."""
    request = command.consumerStats
    answer = wire.BaseCommand(type=wire.BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    consumer = session.consumers.open.get(request.consumer_id)
    if consumer is None:
        response.error_code = wire.ConsumerNotFound
        response.error_message = f"Consumer {request.consumer_id} not found"
    else:
        subscription = consumer.subscription
        seconds = max(1.0, (session.broker.clock.now_ms() - consumer.client.connected_ms) / 1000)
        response.msgRateOut = consumer.msg_out / seconds
        response.msgThroughputOut = consumer.bytes_out / seconds
        response.msgRateRedeliver = consumer.msg_redelivered / seconds
        response.consumerName = consumer.name
        response.availablePermits = max(0, consumer.permits)
        response.unackedMessages = max(0, consumer.unacked)
        response.blockedConsumerOnUnackedMsgs = consumer.blocked_on_unacked
        response.address = consumer.client.address
        response.connectedSince = str(consumer.client.connected_ms)
        response.type = subscription.type or ""
        response.msgRateExpired = 0.0
        response.msgBacklog = subscription.acks.backlog_messages
        response.messageAckRate = consumer.messages_acked / seconds
    session.output.send(answer)


def close_consumer(session: Session, command: wire.BaseCommand) -> None:
    request = command.close_consumer
    consumer = session.consumers.open.pop(request.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove_consumer(consumer)
    session.consumers.stays_away(request.consumer_id)
    session.succeed(request.request_id)
