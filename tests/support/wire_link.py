"""An asynchronous connection of the binary protocol for load and fault tests: full control over every receipt.

Callbacks, not futures, for receipts and messages: a test sees them in exactly the order they arrived, and a load
generator pays for no task per message.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from heliograph_api.protocol import wire_pb2 as wire

from .entries import make_entry
from .wire_client import ConnectionEndedError, Frame, WireError, encode, take_frames

Type = wire.BaseCommand
REQUEST_TIMEOUT_S = 60.0

OnReceipt = Callable[[wire.CommandSendReceipt], None]
OnMessage = Callable[[wire.CommandMessage, bytes], None]


class AckAnswer(NamedTuple):
    """An ACK_RESPONSE: ``error`` is the server's text, empty if the acknowledgment is durable."""

    request_id: int
    error: str


#: Those that somebody still holds.
_links: weakref.WeakSet[WireLink] = weakref.WeakSet()
T = TypeVar("T")


async def closing_links(work: Awaitable[T]) -> T:
    """Await ``work`` and close every connection that it left open."""
    try:
        return await work
    finally:
        for link in list(_links):
            link.close()
        # A transport that is aborted is closed by the next turn of the loop.
        await asyncio.sleep(0)


class WireLink(asyncio.Protocol):
    """One connection. What arrives after the peer was killed is still handled: it was sent, so it was promised."""

    def __init__(self) -> None:
        self.on_receipt: OnReceipt | None = None
        self.on_message: OnMessage | None = None
        self.on_ack: Callable[[AckAnswer], None] | None = None
        self.send_errors: list[wire.CommandSendError] = []
        #: Producers that the broker has closed.
        self.closed_producers: list[int] = []
        #: Set when the broker is known to be gone: what still arrives counts, but nothing is sent any more.
        self.muted = False
        #: The error that a callback raised; see :meth:`check`.
        self.failure: Exception | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._request_ids = itertools.count(1)
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._connected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pong: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.ended = asyncio.Event()
        _links.add(self)

    @classmethod
    async def connect(cls, service_url: str) -> WireLink:
        """Open a connection and finish the CONNECT handshake."""
        address = urlsplit(service_url)
        assert address.hostname is not None
        assert address.port is not None
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(cls, address.hostname, address.port)
        link.send(Type.CONNECT, client_version="wire-link", protocol_version=21)
        await asyncio.wait_for(link._connected, REQUEST_TIMEOUT_S)
        return link

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self.ended.set()
        for future in (*self._waiting.values(), self._connected, self._pong):
            if future is not None and not future.done():
                future.set_exception(ConnectionEndedError(str(exc or "end of stream")))
                # The waiting task may have been cancelled with the test; that is not an error of its own.
                future.exception()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for command, entry in take_frames(self._buffer):
            try:
                self._take(command, entry)
            except Exception as failure:
                self.failure = self.failure or failure
                self.close()
                return

    def check(self) -> None:
        """Raise what a callback raised (the loop would only log it), or the first SEND_ERROR as a WireError."""
        if self.failure is not None:
            raise self.failure
        if self.send_errors:
            raise WireError(self.send_errors[0].error, self.send_errors[0].message)

    def _take(self, command: wire.BaseCommand, entry: bytes) -> None:
        kind = command.type
        if kind == Type.SEND_RECEIPT:
            if self.on_receipt is not None:
                self.on_receipt(command.send_receipt)
        elif kind == Type.MESSAGE:
            if self.on_message is not None:
                self.on_message(command.message, entry)
        elif kind == Type.ACK_RESPONSE:
            if self.on_ack is not None:
                answer = command.ackResponse
                self.on_ack(AckAnswer(answer.request_id, answer.message if answer.HasField("error") else ""))
        elif kind in (Type.SEND_ERROR, Type.CLOSE_PRODUCER):
            self._note_refused(command)
        elif kind == Type.PING:
            self.send(Type.PONG)
        elif kind == Type.PONG:
            if self._pong is not None and not self._pong.done():
                self._pong.set_result(None)
        elif kind == Type.CONNECTED:
            self._connected.set_result(command.connected)
        else:
            body = Frame(command, entry).body
            future = self._waiting.pop(getattr(body, "request_id", -1), None)
            if future is not None and not future.done():
                if kind == Type.ERROR:
                    future.set_exception(WireError(body.error, body.message))
                else:
                    future.set_result(body)

    def _note_refused(self, command: wire.BaseCommand) -> None:
        if command.type == Type.SEND_ERROR:
            self.send_errors.append(command.send_error)
        else:
            self.closed_producers.append(command.close_producer.producer_id)

    # Commands

    def write(self, data: bytes) -> None:
        """Send bytes as they are; silently nothing once the connection has ended (``ended``) or is being closed."""
        if self._transport is not None and not self._transport.is_closing() and not self.muted:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait while the socket's buffer is over its high-water mark."""
        await self._writable.wait()

    def send(self, kind: int, entry: bytes = b"", **fields: Any) -> None:
        """Send one command; ``fields`` are those of the message that ``kind`` carries."""
        self.write(encode(kind, entry, **fields))

    async def request(self, kind: int, **fields: Any) -> Any:
        """Send a request and return its answer's body. Raises WireError or ConnectionEndedError."""
        if self._transport is None:
            raise ConnectionEndedError("the connection has ended")
        request_id = next(self._request_ids)
        future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self.send(kind, request_id=request_id, **fields)
        return await asyncio.wait_for(future, REQUEST_TIMEOUT_S)

    async def ping(self) -> None:
        """Wait for the answer to a PING: everything sent before it has been read by the broker."""
        if self._transport is None:
            raise ConnectionEndedError("the connection has ended")
        self._pong = asyncio.get_running_loop().create_future()
        self.send(Type.PING)
        await asyncio.wait_for(self._pong, REQUEST_TIMEOUT_S)

    async def producer(self, topic: str, **fields: Any) -> int:
        """Open a producer and return its id."""
        producer_id = next(self._ids)
        await self.request(Type.PRODUCER, topic=topic, producer_id=producer_id, **fields)
        return producer_id

    def publish(self, producer_id: int, entry: bytes, *, sequence_id: int, messages: int = 1) -> None:
        """Send an entry; its receipt is for ``on_receipt``."""
        self.send(Type.SEND, entry, producer_id=producer_id, sequence_id=sequence_id, num_messages=messages)

    async def subscribe(self, topic: str, subscription: str, **fields: Any) -> int:
        """Subscribe and return the consumer id; permits must still be given with FLOW."""
        consumer_id = next(self._ids)
        fields.setdefault("subType", wire.CommandSubscribe.Exclusive)
        fields.setdefault("initialPosition", wire.CommandSubscribe.Earliest)
        await self.request(Type.SUBSCRIBE, topic=topic, subscription=subscription, consumer_id=consumer_id, **fields)
        return consumer_id

    def flow(self, consumer_id: int, permits: int) -> None:
        """Allow the broker ``permits`` more messages."""
        self.send(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)

    def ack(
        self, consumer_id: int, ids: list[wire.MessageIdData], *, cumulative: bool = False, receipt: bool = False
    ) -> int:
        """Acknowledge; returns the request id that ``on_ack`` will report, 0 if no receipt was asked for."""
        request_id = next(self._request_ids) if receipt else 0
        fields: dict[str, Any] = {"request_id": request_id} if receipt else {}
        kind = wire.CommandAck.Cumulative if cumulative else wire.CommandAck.Individual
        self.send(Type.ACK, consumer_id=consumer_id, ack_type=kind, message_id=ids, **fields)
        return request_id

    def pause(self) -> None:
        """Read no more from the socket."""
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """Drop the connection without any further command."""
        if self._transport is not None:
            self._transport.abort()


async def publish_one(service_url: str, topic: str, producer_name: str) -> None:
    """Publish an empty message over a connection of its own, and wait until it is stored."""
    link = await WireLink.connect(service_url)
    receipted = asyncio.Event()
    link.on_receipt = lambda receipt: receipted.set()
    producer_id = await link.producer(topic, producer_name=producer_name, user_provided_producer_name=True)
    link.publish(producer_id, make_entry(b"", producer_name=producer_name, sequence_id=1), sequence_id=1)
    await asyncio.wait_for(receipted.wait(), REQUEST_TIMEOUT_S)
    link.close()
