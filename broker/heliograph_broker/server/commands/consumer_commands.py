"""SUBSCRIBE and everything a consumer says: FLOW, ACK, redeliver, seek, unsubscribe, close, stats."""

from __future__ import annotations

from functools import partial

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import remaining_of
from heliograph_api.protocol.frames import parse_entry

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import (
    BrokerError,
    ConsumerNotFound,
    NotAllowed,
    PreconditionFailed,
    SubscriptionNotFound,
)
from heliograph_broker.messaging.broker.admission import check_consumer, check_new_subscription, may_auto_subscribe
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import AckId, Done, Subscription
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.server.error_codes import error_code
from heliograph_broker.server.session import Session
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.usecases.unconfirmed import AnySubscription, Creation

from .compacted_reading import check_compaction, owed_from_seek, owed_from_start
from .lookup_commands import parse_topic
from .properties import properties_of
from .schema_commands import store_schema

_UINT64 = 0xFFFFFFFFFFFFFFFF
_INT64_MAX = 0x7FFFFFFFFFFFFFFF


def subscribe(session: Session, command: wire.BaseCommand) -> None:
    """Attach a consumer; SUCCESS is sent when a new subscription is durable. A refusal leaves nothing behind."""
    request = command.subscribe
    broker = session.broker
    if request.consumer_id in session.consumers:
        # Said again, perhaps before the first answer: the same holds for both.
        attached = session.consumers[request.consumer_id].subscription.topic
        broker.when_durable(attached, partial(_confirm, session, request.request_id))
        return
    creation = Creation(broker)
    try:
        if request.consumer_id not in session.sought_readers:
            session.check_handles()
        topic = creation.topic(parse_topic(request.topic), create=request.force_topic_creation)
        existing = topic.subscriptions.get(request.subscription)
        if isinstance(existing, Subscription) and existing.waits_for_seek(
            lambda: subscribe(session, command) if session.alive else None
        ):
            return
        consumer = _attach(session, topic, existing, request, creation)
    except BrokerError as error:
        creation.refused()
        session.refuse(request.request_id, error)
        return
    except Exception:
        creation.refused()
        raise
    session.consumers[request.consumer_id] = consumer
    session.sought_readers.pop(request.consumer_id, None)

    def committed(error: Exception | None) -> None:
        if error is None:
            creation.confirmed()
        else:
            if session.consumers.get(request.consumer_id) is consumer:
                # Whoever asks again must not find the place taken by what was refused.
                del session.consumers[request.consumer_id]
                consumer.subscription.remove_consumer(consumer)
            creation.refused()
        _confirm(session, request.request_id, error)

    broker.when_durable(topic, committed)


def _confirm(session: Session, request_id: int, error: Exception | None) -> None:
    if error is not None:
        session.send_error(request_id, wire.PersistenceError, f"not stored: {error}")
    else:
        session.succeed(request_id)


def _attach(
    session: Session,
    topic: AnyTopic,
    existing: AnySubscription | None,
    request: wire.CommandSubscribe,
    creation: Creation,
) -> Consumer:
    """Attach a new consumer to its subscription, which is created if there is none. If it raises, none is attached."""
    broker = session.broker
    metadata = properties_of(request.metadata, "consumer metadata")
    sub_type = SubscriptionType(request.subType)
    check_consumer(topic, request.subscription, sub_type)
    check_compaction(topic, request)
    if isinstance(existing, Subscription):
        existing.check_durability(durable=request.durable)
    if topic.subscribe_limit is not None:
        # A consumer without a name of its own is identified by its id.
        who = request.consumer_name or str(request.consumer_id)
        topic.subscribe_limit.subscribing(session.host, who, monotonic_ms(broker.clock))
    if request.HasField("schema"):
        store_schema(broker, topic.name, request.schema, None, reads_only=True)
    subscription = existing if existing is not None else _subscription(session, topic, request)
    creation.subscription(subscription, created=existing is None)
    policy = request.keySharedMeta
    sticky = sub_type is SubscriptionType.KEY_SHARED and policy.keySharedMode == wire.STICKY
    consumer = Consumer(
        subscription,
        session,
        request.consumer_id,
        request.consumer_name or broker.generate_producer_name(),
        priority=request.priority_level,
        epoch=request.consumer_epoch,
        key_ranges=[KeyRange(part.start, part.end) for part in policy.hashRanges],
        allow_out_of_order=policy.allowOutOfOrderDelivery,
        metadata=metadata,
        address=session.address,
        client_version=session.client_version,
        connected_ms=broker.clock.now_ms(),
    )
    consumer.read_compacted = request.read_compacted
    subscription.add_consumer(consumer, sub_type, sticky=sticky)
    if request.HasField("schema"):
        try:
            store_schema(broker, topic.name, request.schema, creation, reads_only=True)
        except Exception:
            subscription.remove_consumer(consumer)
            raise
    view = subscription.view if isinstance(subscription, Subscription) else None
    if existing is None and view is not None and isinstance(topic, Topic):
        view.owe(owed_from_start(topic, request, broker.clock.now_ms()))
    return consumer


def _subscription(session: Session, topic: AnyTopic, request: wire.CommandSubscribe) -> AnySubscription:
    """Create the subscription a SUBSCRIBE names, where that is allowed."""
    if not isinstance(topic, Topic):
        check_new_subscription(topic)
        return topic.create_subscription(request.subscription)
    if request.durable and not may_auto_subscribe(session.broker, topic):
        raise SubscriptionNotFound(
            f"Subscription does not exist: {request.subscription} has to be created on {topic.name} first"
        )
    check_new_subscription(topic)
    start: int | None = None
    if not request.durable and request.HasField("start_message_id"):
        start = _position_to_offset(topic, request.start_message_id)
    if request.start_message_rollback_duration_sec > 0:
        since = session.broker.clock.now_ms() - request.start_message_rollback_duration_sec * 1000
        start = topic.first_published_at_or_after(since)
    earliest = request.initialPosition == wire.CommandSubscribe.Earliest
    return topic.create_subscription(
        request.subscription,
        "earliest" if earliest else "latest",
        durable=request.durable,
        start_offset=start,
        properties=properties_of(request.subscription_properties, "subscription properties"),
    )


def _position_to_offset(topic: Topic, position: wire.MessageIdData) -> int:
    """Return the offset of the entry a message id names; -1:-1 is the earliest, the largest ids are the latest."""
    if position.ledgerId == _UINT64 or position.entryId == _UINT64:
        if position.ledgerId == _UINT64:
            return topic.first_offset
        return topic.offset_at_or_after(position.ledgerId, 0)
    if position.ledgerId >= _INT64_MAX:
        return topic.end_offset
    return topic.offset_at_or_after(position.ledgerId, position.entryId)


def flow(session: Session, command: wire.BaseCommand) -> None:
    consumer = session.consumers.get(command.flow.consumer_id)
    if consumer is not None:
        consumer.subscription.flow(consumer, command.flow.messagePermits)


def ack(session: Session, command: wire.BaseCommand) -> None:
    """Acknowledge one or many ids; ACK_RESPONSE, if asked for, is sent when that is durable."""
    request = command.ack
    consumer_id = request.consumer_id
    consumer = session.consumers.get(consumer_id)
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
            session.send(answer)

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
        consumer.subscription.acknowledge_cumulative(consumer, ids[0], done)
    else:
        consumer.subscription.acknowledge(consumer, ids, done)


def _signed(number: int) -> int:
    """Return what a client meant by a number that is unsigned on the wire: before a ledger's first entry comes -1."""
    return number if number <= _INT64_MAX else number - (1 << 64)


def redeliver(session: Session, command: wire.BaseCommand) -> None:
    request = command.redeliverUnacknowledgedMessages
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        return
    positions = [(i.ledgerId, i.entryId) for i in request.message_ids] or None
    epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
    consumer.subscription.redeliver(consumer, positions, epoch)


def _unknown_consumer(session: Session, request_id: int) -> None:
    """Refuse a request about a consumer that is not open on the connection, with Pulsar's error."""
    session.send_error(request_id, wire.MetadataError, "Consumer not found")


def unsubscribe(session: Session, command: wire.BaseCommand) -> None:
    """Delete the subscription; only its sole consumer may, or any one by force, which disconnects the others."""
    request = command.unsubscribe
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
        return
    subscription = consumer.subscription
    if len(subscription.consumers) > 1 and not request.force:
        session.send_error(
            request.request_id, wire.MetadataError, "Unconnected or shared consumer attempting to unsubscribe"
        )
        return
    del session.consumers[request.consumer_id]
    subscription.remove_consumer(consumer)

    done = session.answer_to(request.request_id)
    if subscription.name in subscription.topic.subscriptions:
        subscription.topic.delete_subscription(subscription.name, force=request.force, done=done)
    else:
        done(None)


def seek(session: Session, command: wire.BaseCommand) -> None:
    """Move a subscription to a message id or publish time; SUCCESS when that is durable."""
    request = command.seek
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
        return
    subscription = consumer.subscription
    topic = subscription.topic
    remaining: int | None = None
    offset = 0
    if isinstance(topic, Topic):
        if request.HasField("message_publish_time"):
            offset = topic.first_published_at_or_after(request.message_publish_time)
        elif request.HasField("message_id"):
            offset = _position_to_offset(topic, request.message_id)
            if topic.offset_of(request.message_id.ledgerId, request.message_id.entryId) is not None:
                try:
                    remaining = remaining_of(request.message_id.ack_set)
                except ValueError as error:
                    session.refuse(request.request_id, PreconditionFailed(str(error)))
                    return
        else:
            session.send_error(
                request.request_id, wire.MetadataError, "Message id and message publish time were not present"
            )
            return

    done = session.answer_to(request.request_id)
    if isinstance(subscription, Subscription) and not subscription.durable:
        session.sought_readers[request.consumer_id] = subscription
    subscription.seek(offset, remaining, done)
    view = subscription.view if isinstance(subscription, Subscription) else None
    if consumer.read_compacted and view is not None and isinstance(topic, Topic):
        view.owe(owed_from_seek(topic, request))


def get_last_message_id(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the id of the last entry kept (its last batch index too) and the consumer's mark-delete position."""
    request = command.getLastMessageId
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        _unknown_consumer(session, request.request_id)
        return
    subscription = consumer.subscription
    topic = subscription.topic

    def answer(ledger_id: int, entry_id: int, batch_index: int) -> None:
        reply = wire.BaseCommand(type=wire.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        response = reply.getLastMessageIdResponse
        response.request_id = request.request_id
        last = response.last_message_id
        last.ledgerId = ledger_id & _UINT64
        last.entryId = entry_id & _UINT64
        last.partition = topic.name.partition
        last.batch_index = batch_index
        if isinstance(topic, Topic) and isinstance(subscription, Subscription):
            ledger, entry_before = topic.position(subscription.cursor.mark_delete)
            response.consumer_mark_delete_position.ledgerId = ledger & _UINT64
            response.consumer_mark_delete_position.entryId = entry_before & _UINT64
        session.send(reply)

    if not isinstance(topic, Topic):
        session.refuse(request.request_id, NotAllowed("getLastMessageId is not possible on a non-persistent topic"))
        return
    compacted = topic.compaction.last_position() if consumer.read_compacted else None
    if compacted is not None:
        answer(*compacted)
        return
    offset = topic.end_offset - 1
    if offset < topic.first_offset:
        answer(-1, -1, -1)
        return

    def found(result: list[Entry] | Exception) -> None:
        if isinstance(result, Exception) or not result:
            session.send_error(request.request_id, wire.PersistenceError, f"cannot read the last entry: {result}")
            return
        last = result[-1]
        metadata = parse_entry(last.frame).metadata
        batch_index = last.messages - 1 if metadata.HasField("num_messages_in_batch") else -1
        answer(last.ledger_id, last.entry_id, batch_index)

    cached = topic.tail.get(offset)
    if cached is not None:
        found([cached])
    else:
        topic.read(offset, 1, 1, found)


def consumer_stats(session: Session, command: wire.BaseCommand) -> None:
    """Answer with the counters of one consumer."""
    request = command.consumerStats
    answer = wire.BaseCommand(type=wire.BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    consumer = session.consumers.get(request.consumer_id)
    if consumer is None:
        response.error_code = wire.ConsumerNotFound
        response.error_message = f"Consumer {request.consumer_id} not found"
    else:
        subscription = consumer.subscription
        seconds = max(1.0, (session.broker.clock.now_ms() - consumer.connected_ms) / 1000)
        response.msgRateOut = consumer.msg_out / seconds
        response.msgThroughputOut = consumer.bytes_out / seconds
        response.msgRateRedeliver = consumer.msg_redelivered / seconds
        response.consumerName = consumer.name
        response.availablePermits = max(0, consumer.permits)
        response.unackedMessages = max(0, consumer.unacked)
        response.blockedConsumerOnUnackedMsgs = consumer.blocked_on_unacked
        response.address = consumer.address
        response.connectedSince = str(consumer.connected_ms)
        response.type = subscription.type or ""
        response.msgRateExpired = 0.0
        response.msgBacklog = subscription.backlog_messages
        response.messageAckRate = consumer.messages_acked / seconds
    session.send(answer)


def close_consumer(session: Session, command: wire.BaseCommand) -> None:
    request = command.close_consumer
    consumer = session.consumers.pop(request.consumer_id, None)
    if consumer is not None:
        consumer.subscription.remove_consumer(consumer)
    session.stays_away(request.consumer_id)
    session.succeed(request.request_id)
