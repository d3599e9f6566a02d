"""One client connection: bytes in, frames out to the handlers; commands and entries back, in few writes.

A :class:`asyncio.BufferedProtocol`: the socket is read into one buffer and every complete frame in it is handled
in the same wake-up. What goes out is collected and written once at the end of the loop iteration. An entry's bytes
are copied once, from the buffer; the same object then serves the store, the tail cache and every consumer.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import structlog
from google.protobuf.message import DecodeError

from heliograph_broker.messaging.consumer import Consumer
from heliograph_broker.messaging.errors import BrokerError
from heliograph_broker.messaging.producer import Producer, Receipt
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.messaging.topic_list import TopicListWatcher
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import (
    FRAME_OVERHEAD,
    FrameError,
    check_text,
    encode_command,
    encode_command_with_entry,
)
from heliograph_broker.storage.entry import Entry

if TYPE_CHECKING:
    from .listener import Listener

log = structlog.get_logger(__name__)

Handler = Callable[["Session", wire.BaseCommand, bytes], None]

_UINT64 = 0xFFFFFFFFFFFFFFFF
_SIZES = struct.Struct(">II")
_SEND = wire.BaseCommand.SEND
#: Frequent commands that have no text field to check.
_WITHOUT_TEXT = frozenset({wire.BaseCommand.ACK, wire.BaseCommand.FLOW, wire.BaseCommand.PING, wire.BaseCommand.PONG})

#: What refuses one message, and would refuse it again.
_OF_ONE_MESSAGE = (wire.NotAllowedError, wire.UnknownError)
#: The C++ client, which the Python and Node.js ones are made of, fails a single message for a ChecksumError only.
#: For any other error it reconnects and sends the same message again, without end.
_CPP = "Pulsar-CPP"


class Session(asyncio.BufferedProtocol):
    """Also the sink of its producers and consumers (see ``ProducerSink`` and ``ConsumerSink``)."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.broker = listener.broker
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        #: Subscriptions that are not durable, kept over a seek for a reader that was to come back.
        self.sought_readers: set[Subscription] = set()
        self.watchers: dict[int, TopicListWatcher] = {}
        #: Producers that the broker closed: what is still on the way from them is dropped, not an error.
        self.closed_producers: set[int] = set()
        #: Producers whose opening waits for room in the topic's backlog quota, and how to give that up.
        self.held_producers: dict[int, Callable[[], None]] = {}
        self.connected = False
        self.protocol_version = 0
        self.client_version = ""
        self.address = ""
        self.writable = True
        self.heard_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._closing = False
        #: Why nothing is taken from the socket now, and the timers that end it.
        self._holds: dict[object, asyncio.TimerHandle | None] = {}
        #: Closing or held: no further frame is handled.
        self._stopped = False
        self._buffer_bytes = self.broker.config.receive_buffer_bytes
        self._buffer = bytearray(self._buffer_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._out: list[bytes] = []
        self._flush_scheduled = False
        self._message = wire.BaseCommand(type=wire.BaseCommand.MESSAGE)
        self._receipt = wire.BaseCommand(type=wire.BaseCommand.SEND_RECEIPT)

    # -- connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.broker.config.max_connection_write_bytes)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else ""
        self.heard_at = self.broker.clock.monotonic()
        self.listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closing = self._stopped = True
        for timer in self._holds.values():
            if timer is not None:
                timer.cancel()
        self._holds.clear()
        self.writable = False
        for producer_id in list(self.held_producers):
            self.stop_holding(producer_id)
        self.listener.lost(self)
        for watcher in self.watchers.values():
            self.broker.watchers.discard(watcher)
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
        for consumer in list(self.consumers.values()):
            del self.consumers[consumer.consumer_id]
            consumer.subscription.remove_consumer(consumer)
        for subscription in self.sought_readers:
            if not subscription.consumers and not subscription.closed:
                subscription.topic.drop_subscription(subscription)

    @property
    def alive(self) -> bool:
        """Whether the client can still hear an answer."""
        return self._transport is not None

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.address.rpartition(":")[0].removeprefix("/")

    @property
    def unwritten_bytes(self) -> int:
        """Bytes sent to the client that its connection has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def local_address(self) -> tuple[str, int]:
        """The address the client connected to."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return (name[0], name[1]) if name else ("127.0.0.1", 0)

    def close(self, reason: str) -> None:
        """End the connection after what is queued has been written."""
        if self._transport is not None:
            log.info("closing connection", client=self.address, reason=reason)
            self._flush()
            self._closing = self._stopped = True
            self._transport.close()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for consumer in list(self.consumers.values()):
            consumer.subscription.notify()

    @property
    def held(self) -> bool:
        """Whether the client is kept waiting on purpose."""
        return bool(self._holds)

    def hold(self, reason: object, ms: int | None = None) -> None:
        """Take nothing more from the client until :meth:`release` of the same ``reason``, or for ``ms``."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._holds:
            self._transport.pause_reading()
            self._stopped = True
        timer = self._holds.get(reason)
        if timer is not None:
            timer.cancel()
        self._holds[reason] = None if ms is None else self.listener.loop.call_later(ms / 1000, self.release, reason)

    def release(self, reason: object) -> None:
        """Go on, unless there is another reason to wait: first with the frames that were received before."""
        if reason not in self._holds:
            return
        timer = self._holds.pop(reason)
        if timer is not None:
            timer.cancel()
        if not self._holds and not self._closing:
            self._stopped = False
            self.listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.heard_at = self.broker.clock.monotonic()
        if not self._stopped:
            self._handle_frames()
        if not self._stopped and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # -- frames in -------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room(0)
        return self._view[self._end :]

    def _make_room(self, frame_bytes: int) -> None:
        """Move what is left to the front of a buffer that holds at least ``frame_bytes``."""
        left = self._end - self._start
        size = max(self._buffer_bytes, frame_bytes, left + 4096)
        if size != len(self._buffer):
            buffer = bytearray(size)
            buffer[:left] = self._view[self._start : self._end]
            self._buffer, self._view = buffer, memoryview(buffer)
        elif self._start:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.heard_at = self.broker.clock.monotonic()
        if not self._stopped:
            self._handle_frames()

    def _handle_frames(self) -> None:
        try:
            self._take_frames()
        except (FrameError, DecodeError) as error:
            log.warning("malformed frame", client=self.address, error=str(error))
            self.send_error(0, wire.UnknownError, f"malformed frame: {error}")
            self.close("malformed frame")
        except Exception:
            # A mistake of ours, met by this client's command: its connection ends, the others go on.
            log.exception("unhandled error", client=self.address)
            self.send_error(0, wire.UnknownError, "internal error")
            self.close("internal error")

    def _take_frames(self) -> None:
        view, buffer = self._view, self._buffer
        handlers = self.listener.handlers
        parse = wire.BaseCommand.FromString
        limit = self.broker.config.max_message_size + FRAME_OVERHEAD
        start, end = self._start, self._end
        while end - start >= 8:
            total, command_size = _SIZES.unpack_from(buffer, start)
            if total > limit:
                raise FrameError(f"frame of {total} bytes, the largest allowed is {limit}")
            if total < 4:
                raise FrameError(f"frame of {total} bytes has no command")
            frame_end = start + 4 + total
            command_end = start + 8 + command_size
            if command_end > frame_end:
                raise FrameError("command does not fit its frame")
            if frame_end > end:
                if frame_end > len(buffer):
                    self._make_room(4 + total)
                break
            command = parse(bytes(view[start + 8 : command_end]))
            entry = bytes(view[command_end:frame_end]) if frame_end > command_end else b""
            self._start = start = frame_end
            kind = command.type
            if not self.connected and kind != wire.BaseCommand.CONNECT:
                raise FrameError("the first command must be CONNECT")
            if kind != _SEND:
                if not command.IsInitialized():
                    raise FrameError(f"{wire.BaseCommand.Type.Name(kind)} lacks a required field")
                if kind not in _WITHOUT_TEXT:
                    check_text(command)
            handler = handlers.get(kind)
            if handler is None:
                raise FrameError(f"a client may not send {wire.BaseCommand.Type.Name(kind)}")
            handler(self, command, entry)
            if self._stopped:
                if self._closing:
                    self._start = self._end = 0
                return
        if 4 <= end - start < 8 and int.from_bytes(view[start : start + 4], "big") > limit:
            raise FrameError(f"the frame announced is too large, the largest allowed is {limit} bytes")
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > self._buffer_bytes:
                self._make_room(0)
        self.listener.check_pressure(self)

    # -- frames out ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue bytes; everything queued in one loop iteration is written at its end."""
        self._out.append(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.listener.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        if out and self._transport is not None:
            self._transport.writelines(out)
        self._out = []

    def send(self, command: wire.BaseCommand) -> None:
        self.write(encode_command(command))

    def send_error(self, request_id: int, server_error: int, message: str) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.ERROR)
        command.error.request_id = request_id
        command.error.error = server_error  # type: ignore[assignment]
        command.error.message = message
        self.send(command)

    def refuse(self, request_id: int, error: BrokerError) -> None:
        """Answer a request with the ERROR of a refusal."""
        self.send_error(request_id, error.server_error, str(error))

    def succeed(self, request_id: int) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.SUCCESS)
        command.success.request_id = request_id
        self.send(command)

    def answer_to(self, request_id: int) -> Callable[[BrokerError | None], None]:
        """Return a callback that answers a request with SUCCESS, or with ERROR if it is given one."""

        def answer(error: BrokerError | None) -> None:
            if error is not None:
                self.refuse(request_id, error)
            else:
                self.succeed(request_id)

        return answer

    # -- sink of producers -----------------------------------------------------------------------------------

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        command = self._receipt
        receipt = command.send_receipt
        position = receipt.message_id
        receipt.producer_id = producer.producer_id
        encode = encode_command
        frames = []
        for sequence_id, highest_sequence_id, ledger_id, entry_id in receipts:
            receipt.sequence_id = sequence_id
            receipt.highest_sequence_id = highest_sequence_id
            position.ledgerId = ledger_id & _UINT64
            position.entryId = entry_id & _UINT64
            frames.append(encode(command))
        self.write(b"".join(frames))

    def send_publish_error(self, producer_id: int, sequence_id: int, server_error: int, message: str) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.SEND_ERROR)
        refusal = command.send_error
        refusal.producer_id = producer_id
        refusal.sequence_id = sequence_id
        if server_error in _OF_ONE_MESSAGE and self.client_version.startswith(_CPP):
            server_error = wire.ChecksumError
        refusal.error = server_error  # type: ignore[assignment]
        refusal.message = message
        self.send(command)

    def hold_publishing(self, reason: object, ms: int) -> None:
        self.hold(reason, ms)

    def release_publishing(self, reason: object) -> None:
        self.release(reason)

    def send_producer_ready(self, producer: Producer) -> None:
        self.listener.producer_ready(self, producer)

    def send_close_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self.closed_producers.add(producer.producer_id)
            command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_PRODUCER)
            command.close_producer.producer_id = producer.producer_id
            command.close_producer.request_id = _UINT64
            self.send(command)

    def stop_holding(self, producer_id: int) -> None:
        """The client gave up, or asks again."""
        give_up = self.held_producers.pop(producer_id, None)
        if give_up is not None:
            give_up()

    def forget_producer(self, producer: Producer) -> None:
        """The producer is gone: its topic may hand exclusive access on."""
        self.producers.pop(producer.producer_id, None)
        successor = producer.topic.producer_registry.remove(producer)
        if successor is not None:
            successor.sink.send_producer_ready(successor)

    # -- sink of consumers -----------------------------------------------------------------------------------

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        command = self._message
        message = command.message
        message.consumer_id = consumer.consumer_id
        position = message.message_id
        position.ledgerId = entry.ledger_id & _UINT64
        position.entryId = entry.entry_id
        partition = consumer.subscription.topic.name.partition
        if partition >= 0:
            position.partition = partition
        else:
            position.ClearField("partition")
        message.redelivery_count = redelivery_count
        if consumer.epoch:
            message.consumer_epoch = consumer.epoch
        else:
            message.ClearField("consumer_epoch")
        if remaining is not None:
            message.ack_set.extend(ack_set_of(remaining))
        self.write(encode_command_with_entry(command, len(entry.frame)))
        self._out.append(entry.frame)
        if remaining is not None:
            message.ClearField("ack_set")

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = consumer.consumer_id
        command.active_consumer_change.is_active = active
        self.send(command)

    def send_close_consumer(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.consumer_id) is consumer:
            del self.consumers[consumer.consumer_id]
            command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = consumer.consumer_id
            command.close_consumer.request_id = _UINT64
            self.send(command)

    def send_end_of_topic(self, consumer: Consumer) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = consumer.consumer_id
        self.send(command)


def ack_set_of(remaining: int) -> list[int]:
    """Return the words (signed 64 bit, least significant first) of a batch's unacknowledged bits."""
    words = []
    while remaining:
        word = remaining & _UINT64
        words.append(word - (1 << 64) if word >> 63 else word)
        remaining >>= 64
    return words or [0]


def remaining_of(ack_set: list[int]) -> int | None:
    """Return the unacknowledged bits of an ``ack_set``, None for an empty one (the whole entry)."""
    if not ack_set:
        return None
    bits = 0
    for index, word in enumerate(ack_set):
        bits |= (word & _UINT64) << (64 * index)
    return bits
