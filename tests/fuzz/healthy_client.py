"""A client that behaves, beside those that do not: it publishes, receives and acknowledges whatever the others do."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.entries import make_frame
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type, payload_of

from .target import Finding

#: No input can name it by chance.
TOPIC = "persistent://public/default/3f9c41d0aa"
#: Less than a keep-alive interval.
_STEP_MS = 20_000
_BY_ID: dict[str, Any] = {"consumer_id": 7}


class HealthyClient:
    """A producer and a consumer between which every message has to pass."""

    def __init__(self, server: VirtualServer, far: FarSide) -> None:
        """``far`` is its connection, on which CONNECT is accepted."""
        self._server = server
        self._far = far
        self._sent = 0
        fields = {"topic": TOPIC, "producer_id": 7, "producer_name": "healthy"}
        self._expect(self._far.request(Type.PRODUCER, **fields), "producer_name", "healthy")
        exclusive = wire.CommandSubscribe.Exclusive
        self._far.request(Type.SUBSCRIBE, topic=TOPIC, subscription="healthy", subType=exclusive, **_BY_ID)
        self._far.send(Type.FLOW, messagePermits=1000, **_BY_ID)

    def _expect(self, body: object, field: str, value: object) -> None:
        if getattr(body, field, None) != value:
            raise Finding(f"the healthy client got {body}")

    def advance(self, ms: int) -> None:
        """Let time pass, in which this client is never silent for long."""
        while ms > 0:
            self._far.send(Type.PONG)
            self._server.advance(min(ms, _STEP_MS))
            ms -= _STEP_MS

    def beat(self) -> None:
        """Publish, receive and acknowledge one message. Raises :class:`Finding`."""
        self._sent += 1
        payload = b"beat %d" % self._sent
        self._far.take()
        _, entry = make_frame(payload, sequence_id=self._sent, producer="healthy")
        self._far.send(Type.SEND, entry, producer_id=7, sequence_id=self._sent, num_messages=1)
        self._server.core.commit()
        frames = {frame.command.type: frame for frame in self._far.take()}
        if Type.SEND_RECEIPT not in frames or Type.MESSAGE not in frames:
            raise Finding(f"the healthy client got {frames} for its message")
        message = frames[Type.MESSAGE]
        if payload_of(message) != payload:
            raise Finding(f"the healthy client got {payload_of(message)!r} for {payload!r}")
        self._far.send(Type.ACK, message_id=[message.body.message_id], ack_type=wire.CommandAck.Individual, **_BY_ID)
