"""Fields that several requests of clients have, decoded, and properties of the client."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import InvalidName, TopicName

from heliograph_broker.messaging.base.errors import InvalidTopicName
from heliograph_broker.messaging.clients.client_info import ClientInfo
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.server.session import Session
from heliograph_broker.usecases.positions import EARLIEST, MessagePosition

#: The largest number of an id on the wire, where it means -1.
UINT64_MAX = 0xFFFFFFFFFFFFFFFF


def parse_topic(text: str) -> TopicName:
    """Return the name a client sent. Raises :class:`InvalidTopicName`."""
    try:
        return TopicName.parse(text)
    except InvalidName as error:
        raise InvalidTopicName(str(error)) from error


def properties_of(pairs: Iterable[wire.KeyValue]) -> dict[str, str]:
    """Return the pairs as a dict."""
    return {pair.key: pair.value for pair in pairs}


def client_info(session: Session, metadata: Iterable[wire.KeyValue]) -> ClientInfo:
    """Return the properties of the client of a producer or consumer that connects now."""
    now_ms = session.broker.clock.now_ms()
    return ClientInfo(session.connection.address, session.connection.client_version, properties_of(metadata), now_ms)


def position_of(message_id: wire.MessageIdData) -> MessagePosition:
    """Return the position that a message id names; an id of -1 comes as the largest unsigned number."""
    if message_id.ledgerId == UINT64_MAX:
        return EARLIEST
    return MessagePosition(message_id.ledgerId, 0 if message_id.entryId == UINT64_MAX else message_id.entryId)


def attached_consumer(session: Session, consumer_id: int, request_id: int) -> Consumer | None:
    """Return the consumer that a request is about; refuse the request, with Pulsar's error, if it is not open."""
    consumer = session.consumers.open.get(consumer_id)
    if consumer is None:
        session.output.send_error(request_id, wire.MetadataError, "Consumer not found")
    return consumer
