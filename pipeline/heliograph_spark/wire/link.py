"""One connection to one broker: commands and entries out, answers and entries in.

There is no thread that reads: a caller that waits for something reads for all, and hands everybody what is theirs. So
an entry crosses no thread on its way to the one reader that a task has, and still many readers, in several threads, can
share a connection. Between such waits :meth:`Link.keep_alive` is called from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import Encoder, encode_command
from heliograph_api.protocol.frames import FRAME_OVERHEAD

from heliograph_spark.plan.credentials import presented
from heliograph_spark.plan.errors import PulsarSourceError

from .failures import LinkLost, NoAnswer, Refused, refusal
from .message_heads import MessageHeads
from .outbox import Outbox, read_receipt
from .receiver import Receiver
from .stream import LONGEST_WAIT_S, WRITTEN_WITHIN_S, Address, Stream

_Type = wire.BaseCommand
_sizes = struct.Struct(">II").unpack_from
#: The largest message of a broker that does not say it; that of Pulsar.
_MAX_MESSAGE_BYTES = 5 << 20
#: Entries of so many bytes are handed out as views of what was received, shorter ones as copies. A view takes longer
#: than a short copy, and keeps all that was received with it.
_VIEWED_FROM_BYTES = 64 << 10
#: The most permits of one command: brokers read a number of 32 bits with a sign.
_MOST_PERMITS = (1 << 31) - 1
#: A peer that was silent for this time (s) is asked whether it is there; after the same time again it is given up.
_SILENT_FOR_S = 30.0

#: Each request by its field of ``BaseCommand``, with its answer's field, and each answer's field by its type.
_REQUESTS: dict[str, tuple[wire.BaseCommand.Type.ValueType, str]] = {
    "lookupTopic": (_Type.LOOKUP, "lookupTopicResponse"),
    "partitionMetadata": (_Type.PARTITIONED_METADATA, "partitionMetadataResponse"),
    "getTopicsOfNamespace": (_Type.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespaceResponse"),
    "getSchema": (_Type.GET_SCHEMA, "getSchemaResponse"),
    "subscribe": (_Type.SUBSCRIBE, "success"),
    "seek": (_Type.SEEK, "success"),
    "getLastMessageId": (_Type.GET_LAST_MESSAGE_ID, "getLastMessageIdResponse"),
    "ack": (_Type.ACK, "ackResponse"),
    "close_consumer": (_Type.CLOSE_CONSUMER, "success"),
    "producer": (_Type.PRODUCER, "producer_success"),
    "close_producer": (_Type.CLOSE_PRODUCER, "success"),
}
_ANSWERS: dict[int, str] = {
    _Type.SUCCESS: "success",
    _Type.ERROR: "error",
    _Type.LOOKUP_RESPONSE: "lookupTopicResponse",
    _Type.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    _Type.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    _Type.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    _Type.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    _Type.ACK_RESPONSE: "ackResponse",
    _Type.PRODUCER_SUCCESS: "producer_success",
}
#: The beginning of a SEND_RECEIPT: its type is the first field.
_RECEIPT = bytes((0x08, _Type.SEND_RECEIPT))


class Link:
    """A connection, made when the object is; ``settings`` are those of the client.

    When it breaks, everybody who waits gets :class:`LinkLost`; it is of no more use then. Raises
    :class:`PulsarSourceError` if the broker refuses the credentials or TLS cannot be agreed on, and :class:`LinkLost`
    if there is no broker within ``within_s``.
    """

    def __init__(self, address: Address, settings: Mapping[str, Any], *, secured: bool, within_s: float) -> None:
        self.address = address
        self.max_message_size = _MAX_MESSAGE_BYTES
        self._settings = settings
        self._secured = secured
        self._encoder = Encoder()
        self._request_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._answers: dict[int, wire.BaseCommand | None] = {}
        self._receivers: dict[int, Receiver] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._heads = MessageHeads()
        self._connected = False
        self._lost: str | None = None
        #: The last error that answers no request: brokers give it before they end a connection.
        self._complaint: Refused | None = None
        #: The beginning of a frame, and the bytes that it lacks as far as is known.
        self._begun: list[bytes | memoryview] = []
        self._lacking = 0
        self._heard_at = time.monotonic()
        self._asked_at = 0.0
        #: Guards who reads.
        self._turn = threading.Condition()
        self._reading = False
        self._followers = 0
        until = time.monotonic() + within_s
        self._stream = Stream(address, settings, secured=secured, within_s=within_s)
        try:
            self._shake_hands(until)
        except BaseException:
            self._lose("the handshake failed")
            raise

    # Requests

    @property
    def lost(self) -> bool:
        """Whether the connection is gone, as far as is known."""
        return self._lost is not None

    def request(self, field: str, body: Any, what: str, within_s: float) -> Any:
        """Send a request, and return the body of its answer.

        Raises :class:`Refused` for an ERROR, :class:`NoAnswer` and :class:`LinkLost`, with ``what`` was asked.
        """
        what = f"{what}: {self.address}"
        kind, answered = _REQUESTS[field]
        body.request_id = request_id = next(self._request_ids)
        self._answers[request_id] = None
        try:
            self.send(encode_command(wire.BaseCommand(type=kind, **{field: body})))
            if not self.wait(lambda: self._answers[request_id] is not None, time.monotonic() + within_s):
                raise NoAnswer(f"{what}: there was no answer in time ({within_s:g} s)")
            answer = self._answers[request_id]
        except LinkLost as error:
            raise LinkLost(f"{what}: {self._lost or error}") from error
        finally:
            del self._answers[request_id]
        assert answer is not None
        if answer.type == _Type.ERROR:
            raise refusal(what, answer.error.error, answer.error.message)
        if _ANSWERS[answer.type] != answered:
            self._lose("this is no answer of Pulsar's protocol")
            raise LinkLost(f"{what}: {self._lost}")
        return getattr(answer, answered)

    def attach(self, receiver: Receiver) -> int:
        """Return the id of a new consumer, whose entries ``receiver`` gets."""
        consumer_id = next(self._consumer_ids)
        self.attach_again(consumer_id, receiver)
        return consumer_id

    def attach_again(self, consumer_id: int, receiver: Receiver) -> None:
        """Give ``receiver`` the entries of a consumer that subscribes again under the same id."""
        self._receivers[consumer_id] = receiver

    def detach(self, consumer_id: int) -> None:
        """Forget a consumer: what still arrives for it is dropped."""
        self._receivers.pop(consumer_id, None)

    def flow(self, consumer_id: int, permits: int) -> None:
        """Let the broker send that many more messages. Raises :class:`LinkLost`."""
        command = wire.BaseCommand(type=_Type.FLOW)
        command.flow.consumer_id = consumer_id
        while permits > 0:
            # A batch that says it has a billion messages has taken as many permits.
            command.flow.messagePermits = min(permits, _MOST_PERMITS)
            permits -= command.flow.messagePermits
            self.send(encode_command(command))

    def leave(self, consumer_id: int) -> None:
        """Close a consumer without waiting for the broker's answer."""
        self.detach(consumer_id)
        command = wire.BaseCommand(type=_Type.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer_id
        command.close_consumer.request_id = next(self._request_ids)
        with contextlib.suppress(LinkLost):
            self.send(encode_command(command))

    def attach_producer(self, producer_id: int, outbox: Outbox) -> None:
        """Give ``outbox`` the answers to what a producer sends, whose id no other one on this connection has."""
        self._outboxes[producer_id] = outbox

    def detach_producer(self, producer_id: int) -> None:
        """Forget a producer: what still arrives for it is dropped."""
        self._outboxes.pop(producer_id, None)

    def leave_producer(self, producer_id: int) -> None:
        """Close a producer without waiting for the broker's answer."""
        self.detach_producer(producer_id)
        command = wire.BaseCommand(type=_Type.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer_id
        command.close_producer.request_id = next(self._request_ids)
        with contextlib.suppress(LinkLost):
            self.send(encode_command(command))

    def close(self) -> None:
        """End the connection; callers that still wait get :class:`LinkLost`."""
        self._lose("the connection was closed here")

    # Frames out

    def send(self, frames: bytes | memoryview, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Send frames. Raises :class:`LinkLost`, also if the broker does not take them in time."""
        self._check()
        try:
            self._stream.send(frames, within_s)
        except OSError as error:
            self._lose(str(error))
            self._check()
        except BaseException:
            # The task was ended here: the broker may have a part of a frame.
            self._lose("sending was interrupted")
            raise

    # Frames in

    def wait(self, done: Callable[[], object], until: float) -> bool:
        """Read, or let another thread read, until ``done``; False at the time ``until`` (monotonic) if it is not.

        Raises :class:`LinkLost`.
        """
        while True:
            with self._turn:
                while self._reading and not done():
                    self._check()
                    left = until - time.monotonic()
                    if left <= 0:
                        return False
                    self._followers += 1
                    self._turn.wait(min(left, LONGEST_WAIT_S))
                    self._followers -= 1
                if done():
                    return True
                self._check()
                self._reading = True
            try:
                while not done():
                    left = until - time.monotonic()
                    if not self._read(max(0.0, left)) and left <= 0:
                        return False
                return True
            finally:
                self._stop_reading()

    def _stop_reading(self) -> None:
        with self._turn:
            self._reading = False
            if self._lost is not None:
                self._stream.close()
            self._turn.notify_all()

    def _read(self, within_s: float) -> bool:
        """Read once and hand out what is complete; False if nothing came. Raises :class:`LinkLost`."""
        try:
            data = self._stream.receive(within_s)
        except OSError as error:
            self._lose(str(error))
            data = b""
        self._check()
        if not data:
            return False
        self._heard_at = time.monotonic()
        try:
            self._take(data)
        except (DecodeError, struct.error):
            self._lose("this is no frame of Pulsar's protocol; service.url is the port for clients, not the REST API")
            self._check()
        except BaseException:
            # The task was ended here: what was not handed out yet is lost to the others.
            self._lose("reading was interrupted")
            raise
        if self._followers:
            with self._turn:
                self._turn.notify_all()
        return True

    def _take(self, data: bytes) -> None:
        """Complete the frame that has begun, hand out the frames that are whole, and keep the beginning of the next.

        Only the frame that has begun is put together: most reads end within a frame, so joining all that was read
        would copy nearly every byte once more.
        """
        at = 0
        view = memoryview(data)
        while self._begun:
            end = at + self._lacking
            self._begun.append(view[at:end])
            if end > len(data):
                self._lacking = end - len(data)
                return
            at = end
            joined = b"".join(self._begun)
            self._begun.clear()
            # Eight bytes say how long the frame is; it is handed out when the rest has come, too.
            if not self._hand_out(joined, 0):
                self._begun.append(joined)
        handled = self._hand_out(data, at)
        if handled < len(data):
            self._begun.append(view[handled:])

    def _hand_out(self, data: bytes, at: int) -> int:
        """Give the complete frames from ``at`` on to those whom they are for; return where the last one ends.

        ``data`` is handed out in part: nobody may change it, which its type assures.
        """
        receivers, read = self._receivers, self._heads.read
        end = len(data)
        limit = self.max_message_size + FRAME_OVERHEAD
        while True:
            if end - at < 8:
                self._lacking = 8 - (end - at)
                return at
            total, size = _sizes(data, at)
            command_at = at + 8
            entry_at = command_at + size
            following = at + 4 + total
            if total > limit or entry_at > following:
                raise DecodeError("a frame does not fit")
            if following > end:
                self._lacking = following - end
                return at
            command = data[command_at:entry_at]
            if command.startswith(_RECEIPT):
                self._take_receipt(command)
                at = following
                continue
            head = read(command)
            if head is None:
                self._handle(wire.BaseCommand.FromString(command))
            else:
                receiver = receivers.get(head[0])
                if receiver is not None:
                    viewed = following - entry_at >= _VIEWED_FROM_BYTES
                    receiver.arrived.append((head, (memoryview(data) if viewed else data)[entry_at:following]))
                    receiver.size += total
                    if receiver.size > receiver.limit:
                        receiver.closed = True
                        self.leave(head[0])
            at = following

    def _take_receipt(self, command: bytes) -> None:
        producer_id, receipt = read_receipt(command)
        outbox = self._outboxes.get(producer_id)
        if outbox is not None:
            outbox.answers.append(receipt)

    def _handle(self, command: wire.BaseCommand) -> None:
        kind = command.type
        field = _ANSWERS.get(kind)
        if field is not None:
            request_id = getattr(command, field).request_id
            if request_id in self._answers:
                self._answers[request_id] = command
            elif kind == _Type.ERROR:
                self._complaint = refusal(f"connecting to {self.address}", command.error.error, command.error.message)
        elif kind == _Type.PING:
            self.send(self._encoder.pong())
        elif kind == _Type.CLOSE_CONSUMER:
            closed = command.close_consumer
            receiver = self._receivers.pop(closed.consumer_id, None)
            if receiver is not None:
                receiver.assigned = self._assigned(closed)
                receiver.closed = True
        elif kind == _Type.SEND_ERROR:
            if (refused := self._outboxes.get(command.send_error.producer_id)) is not None:
                refused.answers.append(command.send_error)
        elif kind == _Type.CLOSE_PRODUCER:
            left = command.close_producer
            # Receipts of what it sent before may still come.
            outbox = self._outboxes.get(left.producer_id)
            if outbox is not None:
                outbox.assigned = self._assigned(left)
                outbox.closed = True
        elif kind == _Type.CONNECTED:
            self.max_message_size = command.connected.max_message_size or _MAX_MESSAGE_BYTES
            self._connected = True
        elif kind == _Type.AUTH_CHALLENGE:
            self._authenticate_again()

    def _assigned(self, closed: wire.CommandCloseConsumer | wire.CommandCloseProducer) -> str:
        """Return the URL of the broker that has the topic now; empty if it is to be looked up."""
        if self.address.behind:
            return ""
        return closed.assignedBrokerServiceUrlTls if self._secured else closed.assignedBrokerServiceUrl

    # Its life

    def _shake_hands(self, until: float) -> None:
        method, data = presented(self._settings)
        command = wire.BaseCommand(type=_Type.CONNECT)
        connect = command.connect
        connect.client_version = "heliograph-spark"
        connect.protocol_version = wire.v19
        connect.auth_method_name = method
        connect.auth_data = data
        connect.feature_flags.supports_auth_refresh = True
        if self.address.behind:
            connect.proxy_to_broker_url = self.address.behind
        self.send(encode_command(command))
        if not self.wait(lambda: self._connected or self._complaint, until):
            raise LinkLost(f"connecting to {self.address}: there was no answer in time (service.url)")
        if self._complaint is not None:
            raise self._complaint

    def _authenticate_again(self) -> None:
        command = wire.BaseCommand(type=_Type.AUTH_RESPONSE)
        answer = command.authResponse
        answer.client_version = "heliograph-spark"
        answer.protocol_version = wire.v19
        try:
            answer.response.auth_method_name, answer.response.auth_data = presented(self._settings)
        except PulsarSourceError as error:
            self._lose(f"the broker asked for the credentials again: {error}")
        self.send(encode_command(command))

    def keep_alive(self) -> None:
        """Read what has come while nobody waits, answer the broker's PING, and see whether it is still there."""
        with self._turn:
            mine = not self._reading and self._lost is None
            self._reading = self._reading or mine
        try:
            with contextlib.suppress(LinkLost):
                while mine and self._read(0.0):
                    pass
                silent_s = time.monotonic() - self._heard_at
                if silent_s > 2 * _SILENT_FOR_S:
                    self._lose(f"the broker was silent for {silent_s:.0f} s")
                elif silent_s > _SILENT_FOR_S and self._asked_at < self._heard_at and self._lost is None:
                    self._asked_at = time.monotonic()
                    self.send(self._encoder.ping())
        finally:
            if mine:
                self._stop_reading()

    def forget(self) -> None:
        """Leave the connection to the process of which this one is a copy: nothing may be sent over it."""
        self._turn = threading.Condition()
        self._reading = False
        self._lost = "the connection is that of the process before the fork"
        self._close_all()
        self._stream.close()

    def _close_all(self) -> None:
        for receiver in list(self._receivers.values()):
            receiver.closed = True
        for outbox in list(self._outboxes.values()):
            outbox.closed = True

    def _lose(self, why: str) -> None:
        """Take the connection for gone; what it has brought for its consumers and producers stays with them."""
        with self._turn:
            if self._lost is None:
                self._lost = why if self._complaint is None else f"{why} ({self._complaint.reason})"
                self._stream.end()
            self._close_all()
            if not self._reading:
                self._stream.close()
            self._turn.notify_all()

    def _check(self) -> None:
        if self._lost is not None:
            raise LinkLost(f"{self.address}: {self._lost}")
