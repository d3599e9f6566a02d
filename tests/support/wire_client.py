"""A raw client of the binary protocol: sends exact commands, shows exactly what the broker answers.

A thread reads; every wait has a deadline. :meth:`WireClient.fence` (PING, then everything up to the PONG)
makes "nothing was sent" an assertion instead of a wait.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from heliograph_api.protocol import encoder, frames
from heliograph_api.protocol import wire_pb2 as wire

from .entries import make_entry

TIMEOUT_S = 60.0
Type = wire.BaseCommand

_FIELD_BY_LETTERS = {f.name.replace("_", "").lower(): f.name for f in Type.DESCRIPTOR.fields}
_IRREGULAR = {
    "LOOKUP": "lookupTopic",
    "LOOKUP_RESPONSE": "lookupTopicResponse",
    "PARTITIONED_METADATA": "partitionMetadata",
    "PARTITIONED_METADATA_RESPONSE": "partitionMetadataResponse",
}
#: The field of BaseCommand that carries each type of command. Names follow the types except for a few old ones.
_FIELD_OF_TYPE: dict[int, str] = {
    number: _IRREGULAR.get(name) or _FIELD_BY_LETTERS[name.replace("_", "").lower()]
    for name, number in Type.Type.items()
}


class ConnectionEndedError(Exception):
    """The broker closed the connection."""


class WireError(Exception):
    """The broker answered a request with an error; ``code`` is a ServerError."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{wire.ServerError.Name(code)}: {message}")  # type: ignore[arg-type]
        self.code = code


class Frame(NamedTuple):
    """One frame from the broker: its command and, for MESSAGE, the entry's bytes."""

    command: wire.BaseCommand
    entry: bytes

    @property
    def body(self) -> Any:
        """The message inside the command."""
        return getattr(self.command, _FIELD_OF_TYPE[self.command.type])


def take_frames(buffer: bytearray) -> Iterator[Frame]:
    """Take the complete frames out of the bytes that have been read, and yield each."""
    while len(buffer) >= 8:
        end = 4 + int.from_bytes(buffer[:4], "big")
        if len(buffer) < end:
            return
        body = 8 + int.from_bytes(buffer[4:8], "big")
        frame = Frame(wire.BaseCommand.FromString(bytes(buffer[8:body])), bytes(buffer[body:end]))
        del buffer[:end]
        yield frame


def payload_of(frame: Frame) -> bytes:
    """Return the payload of a MESSAGE frame, its checksum verified."""
    return frame.entry[frames.parse_entry(frame.entry).payload_offset :]


class WireClient:
    """One connection. Frames that a test does not ask for stay in ``inbox``."""

    def __init__(self, service_url: str, *, connect: bool = True, protocol_version: int = 21) -> None:
        address = urlsplit(service_url)
        assert address.hostname is not None
        assert address.port is not None
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._stream = self._socket.makefile("rb")
        self._arrived: queue.SimpleQueue[Frame | ConnectionEndedError] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._request_ids = itertools.count(1)
        self._ids = itertools.count(1)
        self.inbox: list[Frame] = []
        self.connected: wire.CommandConnected | None = None
        if connect:
            self.send(
                Type.CONNECT,
                client_version="wire-test",
                protocol_version=protocol_version,
                feature_flags=wire.FeatureFlags(supports_topic_watchers=True, supports_partial_producer=True),
            )
            self.connected = self.expect(Type.CONNECTED).body

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection silently, as a killed client does."""
        with contextlib.suppress(OSError):  # the broker may have dropped it first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(TIMEOUT_S)
        self._stream.close()
        self._socket.close()

    def authenticate(self, token: str, **fields: Any) -> None:
        """Send CONNECT with a token and further ``fields``, and wait until the broker accepts it."""
        given: dict[str, Any] = {"client_version": "wire-test", "protocol_version": 21} | fields
        self.send(Type.CONNECT, auth_method_name="token", auth_data=token.encode(), **given)
        self.connected = self.expect(Type.CONNECTED).body

    # Frames

    def send(self, kind: int, entry: bytes = b"", **fields: Any) -> None:
        """Send one command; ``fields`` are those of the message that ``kind`` carries."""
        self.send_raw(encode(kind, entry, **fields))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def end_sending(self) -> None:
        """Tell the broker that nothing follows; its answers are still read."""
        self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        """Read until the end, answering PINGs at once: a broker may take who does not answer for dead."""
        try:
            while True:
                size = int.from_bytes(self._take(4), "big")
                body = self._take(size)
                (command_size,) = struct.unpack_from(">I", body)
                frame = Frame(wire.BaseCommand.FromString(body[4 : 4 + command_size]), body[4 + command_size :])
                if frame.command.type == Type.PING:
                    # One that has ended sending cannot answer, and still reads.
                    with contextlib.suppress(BrokenPipeError):
                        self.send(Type.PONG)
                else:
                    self._arrived.put(frame)
        except OSError as error:
            self._arrived.put(ConnectionEndedError(str(error)))
        except EOFError:
            self._arrived.put(ConnectionEndedError("end of stream"))

    def _take(self, count: int) -> bytes:
        taken = self._stream.read(count)
        if len(taken) < count:
            raise EOFError
        return taken

    def read_frame(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """Return the next frame. Raises ConnectionEndedError, or TimeoutError."""
        try:
            arrived = self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no frame in time; in the inbox: {[f.command for f in self.inbox]}") from None
        if isinstance(arrived, ConnectionEndedError):
            self._arrived.put(arrived)
            raise arrived
        return arrived

    def expect(self, kind: int, timeout_s: float = TIMEOUT_S) -> Frame:
        """Return the first frame of that type, from the inbox or the socket."""
        for index, frame in enumerate(self.inbox):
            if frame.command.type == kind:
                return self.inbox.pop(index)
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self.read_frame(max(0.0, deadline - time.monotonic()))
            if frame.command.type == kind:
                return frame
            self.inbox.append(frame)

    def expect_end(self) -> str:
        """Read until the broker closes the connection; return how it ended."""
        try:
            while True:
                self.inbox.append(self.read_frame())
        except ConnectionEndedError as end:
            return str(end)

    def fence(self) -> list[Frame]:
        """Return (and forget) everything that the broker had sent before it read a PING sent now."""
        self.send(Type.PING)
        while (frame := self.read_frame()).command.type != Type.PONG:
            self.inbox.append(frame)
        found, self.inbox = self.inbox, []
        return found

    # Requests

    def request(self, kind: int, answer: int, **fields: Any) -> Any:
        """Send a command with a fresh request id and return the body of its answer; raises WireError."""
        request_id = next(self._request_ids)
        self.send(kind, request_id=request_id, **fields)
        return self.answer_to(request_id, answer)

    def answer_to(self, request_id: int, answer: int) -> Any:
        """Wait for the answer to a request; raises WireError if it is an ERROR."""
        wanted = {answer, Type.ERROR}
        index = 0
        while True:
            while index < len(self.inbox):
                frame = self.inbox[index]
                if frame.command.type in wanted and frame.body.request_id == request_id:
                    del self.inbox[index]
                    if frame.command.type == Type.ERROR:
                        raise WireError(frame.body.error, frame.body.message)
                    return frame.body
                index += 1
            self.inbox.append(self.read_frame())

    def producer(self, topic: str, **fields: Any) -> int:
        """Open a producer and return its id."""
        producer_id = next(self._ids)
        self.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer_id, **fields)
        return producer_id

    def subscribe(self, topic: str, subscription: str = "s", **fields: Any) -> int:
        """Subscribe and return the consumer id; permits must still be given with :meth:`flow`."""
        consumer_id = next(self._ids)
        fields.setdefault("subType", wire.CommandSubscribe.Exclusive)
        self.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=topic,
            subscription=subscription,
            consumer_id=consumer_id,
            **fields,
        )
        return consumer_id

    def flow(self, consumer_id: int, permits: int) -> None:
        """Allow the broker ``permits`` more messages."""
        self.send(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)

    def publish(self, producer_id: int, entry: bytes, *, sequence_id: int = 0, num_messages: int = 1) -> Any:
        """Send one entry and return the message id of its receipt; raises WireError on SEND_ERROR."""
        self.send(Type.SEND, entry, producer_id=producer_id, sequence_id=sequence_id, num_messages=num_messages)
        while True:
            for index, frame in enumerate(self.inbox):
                if frame.command.type == Type.SEND_RECEIPT:
                    return self.inbox.pop(index).body.message_id
                if frame.command.type == Type.SEND_ERROR:
                    raise WireError(frame.body.error, self.inbox.pop(index).body.message)
            self.inbox.append(self.read_frame())

    def publish_numbers(self, topic: str, count: int) -> list[Any]:
        """Publish the texts of numbers from 0 on; returns their message ids."""
        producer = self.producer(topic)
        return [self.publish(producer, make_entry(b"%d" % i, sequence_id=i), sequence_id=i) for i in range(count)]

    def messages(self, count: int) -> list[Frame]:
        """Return the next ``count`` MESSAGE frames."""
        return [self.expect(Type.MESSAGE) for _ in range(count)]

    def ack(self, consumer_id: int, *message_ids: Any, ack_type: int = wire.CommandAck.Individual) -> Any:
        """Acknowledge and return the ACK_RESPONSE."""
        request_id = next(self._request_ids)
        self.send(
            Type.ACK,
            consumer_id=consumer_id,
            ack_type=ack_type,
            message_id=list(message_ids),
            request_id=request_id,
        )
        return self.answer_to(request_id, Type.ACK_RESPONSE)


def encode(kind: int, entry: bytes = b"", **fields: Any) -> bytes:
    """Return the frame of one command, followed by ``entry``."""
    command = wire.BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(command, _FIELD_OF_TYPE[kind])
    body.SetInParent()
    for name, value in fields.items():
        if isinstance(value, (list, tuple)):
            getattr(body, name).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(body, name).CopyFrom(value)
        else:
            setattr(body, name, value)
    if not entry:
        return encoder.encode_command(command)
    return encoder.encode_command_with_entry(command, len(entry)) + entry
