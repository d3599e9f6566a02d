"""Commands of a consumer's life: SUBSCRIBE, FLOW, UNSUBSCRIBE, CONSUMER_STATS, CLOSE_CONSUMER."""

from __future__ import annotations

from functools import partial

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import BrokerError, ConsumerAssignError
from heliograph_broker.messaging.base.records import SchemaRecord
from heliograph_broker.messaging.clients.consumer import KeyRange, KeySharedPolicy
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.messages.key_hash import SLOTS
from heliograph_broker.server.session import Session
from heliograph_broker.usecases import consumers
from heliograph_broker.usecases.consumers import ConsumerRequest
from heliograph_broker.usecases.positions import Start

from .request_fields import attached_consumer, client_info, parse_topic, position_of, properties_of
from .schema_commands import schema_record

#: How long (s) the subscription of a reader that is closed after its seek waits for the reader to subscribe again.
_READER_RETURNS_WITHIN_S = 10.0
#: The time (s) after which a consumer that asks for no messages is notified whether it is active; Pulsar takes as long.
_NOTIFIED_WITHIN_S = 1.0


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
            session.check_consumer()
        session.consumers.unnotified[request.consumer_id] = None
        opened = consumers.subscribe(
            broker,
            session.consumers,
            _consumer_request(session, request),
            partial(_again, session, command),
        )
    except BrokerError as error:
        session.consumers.unnotified.pop(request.consumer_id, None)
        session.refuse(request.request_id, error)
        return
    if opened is None:
        return
    consumer, creation = opened
    session.consumers.open[request.consumer_id] = consumer
    session.consumers.returned(request.consumer_id)

    def durable(error: BrokerError | None) -> None:
        if error is None:
            session.succeed(request.request_id)
            _notify_active_later(session, request.consumer_id)
            return
        session.consumers.unnotified.pop(request.consumer_id, None)
        if session.consumers.open.get(request.consumer_id) is consumer:
            # A retry must not find the consumer id taken by the refused consumer.
            del session.consumers.open[request.consumer_id]
            consumer.subscription.remove_consumer(consumer)
        session.refuse(request.request_id, error)

    creation.when_durable(durable)


def _again(session: Session, command: wire.BaseCommand) -> None:
    """Handle a SUBSCRIBE as when it came: meanwhile the client may have lost the right."""
    if session.connection.alive:
        session.connection.listener.handlers[command.type](session, command)


def _notify_active_later(session: Session, consumer_id: int) -> None:
    """Notify the consumer whether it is active at its first FLOW: the Go client forgets what comes earlier.

    One without a queue asks for nothing until it is used, perhaps because it is active: it is notified after a moment.
    """
    if session.consumers.unnotified.get(consumer_id) is None:
        session.consumers.unnotified.pop(consumer_id, None)
        return
    session.connection.listener.loop.call_later(_NOTIFIED_WITHIN_S, session.consumers.notify_active, consumer_id)


def _consumer_request(session: Session, request: wire.CommandSubscribe) -> ConsumerRequest:
    """Return the request of a SUBSCRIBE. Raises :class:`InvalidTopicName` or :class:`ConsumerAssignError`."""
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
            position=position_of(request.start_message_id) if named else None,
            rollback_s=request.start_message_rollback_duration_sec,
        ),
        subscription_properties=properties_of(request.subscription_properties),
        priority=request.priority_level,
        epoch=request.consumer_epoch,
        key_shared=_key_shared(sub_type, request.keySharedMeta),
        read_compacted=request.read_compacted,
        schema=_schema_read(session, request),
        client=client_info(session, request.metadata),
        host=session.connection.host,
    )


def _key_shared(sub_type: SubscriptionType, policy: wire.KeySharedMeta) -> KeySharedPolicy:
    """Return the terms of a consumer; ranges only where they count, as a client may send very many."""
    sticky = sub_type is SubscriptionType.KEY_SHARED and policy.keySharedMode == wire.STICKY
    ranges: tuple[KeyRange, ...] = ()
    if sticky or sub_type is SubscriptionType.EXCLUSIVE:
        if len(policy.hashRanges) > SLOTS:
            raise ConsumerAssignError(f"{len(policy.hashRanges)} ranges overlap: there are {SLOTS} slots")
        ranges = tuple(KeyRange(part.start, part.end) for part in policy.hashRanges)
    return KeySharedPolicy(sticky, ranges, policy.allowOutOfOrderDelivery)


def _schema_read(session: Session, request: wire.CommandSubscribe) -> SchemaRecord | None:
    """Return the schema that a consumer reads with, None if it takes whichever the topic has."""
    if not request.HasField("schema") or request.schema.type == wire.Schema.AutoConsume:
        return None
    return schema_record(session, request.schema)


def flow(session: Session, command: wire.BaseCommand) -> None:
    consumer = session.consumers.open.get(command.flow.consumer_id)
    if consumer is not None:
        if session.consumers.unnotified:
            session.consumers.notify_active(command.flow.consumer_id)
        consumer.subscription.flow(consumer, command.flow.messagePermits)


def unsubscribe(session: Session, command: wire.BaseCommand) -> None:
    """Delete the subscription; only its sole consumer may, or any one by force, which disconnects the others."""
    request = command.unsubscribe
    consumer = attached_consumer(session, request.consumer_id, request.request_id)
    if consumer is None:
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
    reader = session.consumers.sought_readers.get(request.consumer_id)
    if reader is not None and reader.timer is None:
        # The Rust client closes a consumer that the broker has closed, and then subscribes again.
        loop = session.connection.listener.loop
        stays_away = session.consumers.stays_away
        reader.timer = loop.call_later(_READER_RETURNS_WITHIN_S, stays_away, request.consumer_id, reader)
    session.succeed(request.request_id)
