"""PRODUCER, SEND and CLOSE_PRODUCER."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FrameError

from heliograph_broker.messaging.base.errors import BrokerError, NotAllowed
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.waiting_room import WaitingRoom
from heliograph_broker.messaging.schemas.schema_registry import encode_version
from heliograph_broker.server.session import Session
from heliograph_broker.usecases.producers import ProducerRequest, open_producer
from heliograph_broker.usecases.publishing import NO_TRANSACTIONS, publish

from .request_fields import client_info, parse_topic
from .schema_commands import schema_record


def create_producer(session: Session, command: wire.BaseCommand) -> None:
    """Admit a producer to its topic; PRODUCER_SUCCESS is sent when all it changed is durable."""
    request = command.producer
    broker = session.broker
    existing = session.producers.open.get(request.producer_id)
    if existing is not None:
        _answer_again(session, existing, request.request_id)
        return
    session.producers.stop_holding(request.producer_id)
    try:
        session.check_producer()
        opened = open_producer(broker, session.producers, _producer_request(session, request))
    except BrokerError as error:
        session.refuse(request.request_id, error)
        return
    if isinstance(opened, WaitingRoom):
        _hold(session, opened, command)
        return
    producer, ready, version, creation = opened
    session.producers.open[request.producer_id] = producer
    session.producers.closed.pop(request.producer_id, None)

    def durable(error: BrokerError | None) -> None:
        if error is None:
            version_bytes = encode_version(version) if version is not None else None
            session.producers.answer(producer, request.request_id, version_bytes, ready=ready)
            return
        if session.producers.open.get(request.producer_id) is producer:
            # A retry must not find the producer name taken by the refused producer.
            session.producers.forget(producer)
        session.refuse(request.request_id, error)

    creation.when_durable(durable)


def _producer_request(session: Session, request: wire.CommandProducer) -> ProducerRequest:
    """Return the request of a PRODUCER. Raises :class:`InvalidTopicName`."""
    return ProducerRequest(
        parse_topic(request.topic),
        request.producer_id,
        request.producer_name,
        generated_name=not request.user_provided_producer_name,
        epoch=request.epoch,
        access_mode=AccessMode(request.producer_access_mode),
        topic_epoch=_topic_epoch(request),
        encrypted=request.encrypted,
        schema=schema_record(session, request.schema) if request.HasField("schema") else None,
        initial_subscription=request.initial_subscription_name,
        client=client_info(session, request.metadata),
        request_id=request.request_id,
    )


def _answer_again(session: Session, producer: Producer, request_id: int) -> None:
    """Answer a repeated request for a producer that is there, perhaps before the first answer; both say the same."""

    def durable(error: BrokerError | None) -> None:
        if error is not None:
            session.refuse(request_id, error)
        else:
            ready = producer in producer.topic.producers.values()
            session.producers.answer(producer, request_id, None, ready=ready)

    session.broker.when_durable(producer.topic, durable)


def _hold(session: Session, room: WaitingRoom, command: wire.BaseCommand) -> None:
    """Answer a producer that comes back to a full topic or disk when there is room, or one that replaced it."""
    request = wire.BaseCommand()
    request.CopyFrom(command)

    def resume() -> None:
        session.producers.resumed(request.producer.producer_id)
        # As when it came: meanwhile the client may have lost the right.
        session.connection.listener.handlers[request.type](session, request)

    room.hold(resume)
    session.producers.hold(request.producer.producer_id, request.ByteSize(), lambda: room.drop_held(resume))


def _topic_epoch(request: wire.CommandProducer) -> int | None:
    """Return the epoch a returning producer holds, None from a new one (a Java client's -1 counts as none)."""
    if not request.HasField("topic_epoch") or request.topic_epoch >= 1 << 63:
        return None
    return request.topic_epoch


def send(session: Session, command: wire.BaseCommand, entry: bytes) -> None:
    """Publish one entry; its topic answers by receipt or error."""
    request = command.send
    producer = session.producers.open.get(request.producer_id)
    if producer is None:
        if request.producer_id in session.producers.closed:
            return
        raise FrameError(f"SEND for producer {request.producer_id}, which is not open on this connection")
    if request.HasField("txnid_most_bits"):
        producer.topic.refuse(producer, request.sequence_id, NotAllowed(NO_TRANSACTIONS))
        return
    messages = publish(
        producer,
        request.sequence_id,
        request.highest_sequence_id,
        entry,
        request.is_chunk,
        session.broker.config.max_message_size,
    )
    rates = session.rates
    if rates is not None and rates.publish is not None:
        # One that was refused has cost its bytes.
        rates.published(messages, len(entry))


def close_producer(session: Session, command: wire.BaseCommand) -> None:
    """Close when everything the producer sent before is durable, as its client expects of a graceful close."""
    request = command.close_producer
    session.producers.stop_holding(request.producer_id)
    producer = session.producers.open.get(request.producer_id)
    if producer is None:
        session.succeed(request.request_id)
        return

    def committed(error: Exception | None) -> None:
        session.succeed(request.request_id)

    session.producers.forget(producer)
    session.producers.remember_closed(producer.producer_id)
    session.broker.store.writer.after_commit(committed)
