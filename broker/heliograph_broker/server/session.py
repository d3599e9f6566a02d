"""One client connection: bytes in, frames out to the handlers; commands and entries back, in few writes.

A :class:`asyncio.BufferedProtocol`: the socket is read into a buffer that all connections share, and every complete
frame in it is handled in the same wake-up. What goes out is collected and written once at the end of the loop
iteration. An entry's bytes are copied once, from the buffer; the same object then serves the store, the tail cache and
every consumer.

A stranger costs little: until CONNECT only small frames are taken, and it has to come in time. Who does not read what
it is sent is not read from either, and a connection whose end its client does not take is broken off.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import structlog
from google.protobuf.message import DecodeError

from heliograph_broker.messaging.consumer import Consumer
from heliograph_broker.messaging.errors import BrokerError, NotAllowed
from heliograph_broker.messaging.producer import Producer, Receipt
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.messaging.topic_list import TopicListWatcher
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.ack_sets import ack_set_of
from heliograph_broker.protocol.frames import (
    FRAME_OVERHEAD,
    FrameError,
    check_text,
    encode_command,
    encode_command_with_entry,
)
from heliograph_broker.storage.entry import Entry

from .receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from .listener import Listener

log = structlog.get_logger(__name__)

Handler = Callable[["Session", wire.BaseCommand, bytes], None]

_UINT64 = 0xFFFFFFFFFFFFFFFF
_SIZES = struct.Struct(">II")
_SEND = wire.BaseCommand.SEND
#: The largest frame (bytes) before CONNECT was answered, CONNECT itself included: credentials are of a few KiB.
HANDSHAKE_FRAME_BYTES = 8 * 1024
#: After so long (s) of handling one connection's requests the others get their turn; frequent commands are not timed.
_TURN_S = 0.01
#: Why a connection is not read from: it does not read, or it had its turn.
_UNREAD = "answers wait unread"
_TURN = "others have their turn"
#: Frequent commands that have no text field to check.
_WITHOUT_TEXT = frozenset({wire.BaseCommand.ACK, wire.BaseCommand.FLOW, wire.BaseCommand.PING, wire.BaseCommand.PONG})

#: So long (s) a message may be under way from a producer that was closed meanwhile.
_UNDER_WAY_S = 60.0

#: What refuses one message, and would refuse it again.
_OF_ONE_MESSAGE = (wire.NotAllowedError, wire.UnknownError)
#: The C++ client, which the Python and Node.js ones are made of, fails a single message for a ChecksumError only.
#: For any other error it reconnects and sends the same message again, without end.
_CPP = "Pulsar-CPP"


class Session(asyncio.BufferedProtocol):
    """Also the sink of its producers and consumers (see ``ProducerSink`` and ``ConsumerSink``)."""

    def __init__(self, listener: Listener, ended: Callable[[], None] | None = None) -> None:
        """``ended`` is called once the connection is lost."""
        self._ended = ended
        self.listener = listener
        self.broker = listener.broker
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        #: Subscriptions that are not durable, kept over a seek for the reader (by consumer id) that is to come back.
        self.sought_readers: dict[int, Subscription] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        #: Producers that were closed (monotonic, s): what is still on the way from them is dropped, not an error.
        self.closed_producers: dict[int, float] = {}
        #: Producers whose opening waits for room in the topic's backlog quota, and how to give that up.
        self.held_producers: dict[int, Callable[[], None]] = {}
        self.connected = False
        self.protocol_version = 0
        self.client_version = ""
        self.address = ""
        self.writable = True
        self.heard_at = 0.0
        self.pinged_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._closing = False
        #: When the connection is broken off: its CONNECT did not come, or its end was not taken.
        self._deadline: asyncio.TimerHandle | None = None
        #: Why nothing is taken from the socket now, and the timers that end it.
        self._holds: dict[object, asyncio.TimerHandle | None] = {}
        #: Closing or held: no further frame is handled.
        self._stopped = False
        self._received = ReceiveBuffer(listener.receive_buffer)
        self._frame_limit = HANDSHAKE_FRAME_BYTES
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._write_limit = self.broker.config.max_connection_write_bytes
        #: Bytes handed to the transport, and how many of them the client had taken when that was asked last.
        self._written = 0
        self._taken = 0

    # -- connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._write_limit)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else ""
        self.heard_at = self.broker.clock.monotonic()
        within_s = self.broker.config.handshake_timeout_s
        self._deadline = self.listener.loop.call_later(
            within_s, self.abort, "handshake", f"no CONNECT within {within_s:g} s"
        )
        self.listener.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        try:
            self._end()
        finally:
            self.listener.lost(self)
            if self._ended is not None:
                self._ended()

    def handshake_done(self) -> None:
        """The client has said CONNECT: it may send entries now, and takes as long as it likes."""
        self.connected = True
        self._frame_limit = self.broker.config.max_message_size + FRAME_OVERHEAD
        self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        """Nothing is taken from the client any more: what it held goes to others at once."""
        self._closing = self._stopped = True
        self.writable = False
        self._cancel_deadline()
        self._received.clear()
        for timer in self._holds.values():
            if timer is not None:
                timer.cancel()
        self._holds.clear()
        for producer_id in list(self.held_producers):
            self.stop_holding(producer_id)
        while self.watchers:
            self.broker.watches.end(self.watchers.popitem()[1])
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
        for consumer in list(self.consumers.values()):
            del self.consumers[consumer.consumer_id]
            consumer.subscription.remove_consumer(consumer)
        for consumer_id in list(self.sought_readers):
            self.stays_away(consumer_id)

    @property
    def alive(self) -> bool:
        """Whether the client can still hear an answer."""
        return not self._closing

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.address.rpartition(":")[0].removeprefix("/")

    @property
    def unwritten_bytes(self) -> int:
        """Bytes sent to the client that its connection has not taken yet."""
        return self._out_bytes + (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    @property
    def local_address(self) -> tuple[str, int]:
        """The address the client connected to."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return (name[0], name[1]) if name else ("127.0.0.1", 0)

    def close(self, reason: str) -> None:
        """End the connection after what is queued has been written, or after ``close_timeout_s`` all the same."""
        if self._transport is None or self._closing:
            return
        log.info("closing connection", client=self.address, reason=reason)
        self._flush()
        self._transport.close()
        self._end()
        within_s = self.broker.config.close_timeout_s
        self._deadline = self.listener.loop.call_later(
            within_s, self.abort, "unread", f"its end was not read in {within_s:g} s"
        )

    def abort(self, kind: str, reason: str) -> None:
        """End the connection at once: what is queued is not written, what the client held goes to others.

        ``kind`` is the one it is counted as in the metrics.
        """
        if self._transport is None:
            return
        self.broker.figures.binary_connections.cut[kind] += 1
        log.info("breaking off connection", client=self.address, reason=reason)
        self._out, self._out_bytes = [], 0
        self._transport.abort()
        self._end()

    def silent_s(self, now: float) -> float:
        """Return for how long (s) nothing shows that the client is there; 0 while it is kept waiting on purpose."""
        if _UNREAD in self._holds:
            # It is not read from, for it has to read first: taking what was sent is a sign of life.
            taken = self._written - self.unwritten_bytes
            if taken > self._taken:
                self._taken = taken
                self.heard_at = now
        elif self._holds:
            return 0.0
        return now - self.heard_at

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        if self._closing:
            return
        self.writable = True
        self.release(_UNREAD)
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
            self._handle_frames(self._received.rest())
        if not self._stopped and self._transport is not None:
            self._transport.resume_reading()

    # -- frames in -------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.heard_at = self.broker.clock.monotonic()
        unhandled = self._received.received(nbytes)
        if not self._stopped:
            self._handle_frames(unhandled)

    def _handle_frames(self, unhandled: memoryview) -> None:
        try:
            self._take_frames(unhandled)
        except (FrameError, DecodeError) as error:
            log.warning("malformed frame", client=self.address, error=str(error))
            self.send_error(0, wire.UnknownError, f"malformed frame: {error}")
            self.close("malformed frame")
        except Exception:
            # A mistake of ours, met by this client's command: its connection ends, the others go on.
            log.exception("unhandled error", client=self.address)
            self.send_error(0, wire.UnknownError, "internal error")
            self.close("internal error")

    def _take_frames(self, view: memoryview) -> None:
        handlers = self.listener.handlers
        parse = wire.BaseCommand.FromString
        limit = self._frame_limit
        start, end = 0, len(view)
        announced = 0
        turn_ends = self.heard_at + _TURN_S
        while end - start >= 8:
            total, command_size = _SIZES.unpack_from(view, start)
            if total > limit:
                # CONNECT may have raised it since.
                limit = self._check_frame_size(total)
            if total < 4:
                raise FrameError(f"frame of {total} bytes has no command")
            frame_end = start + 4 + total
            command_end = start + 8 + command_size
            if command_end > frame_end:
                raise FrameError("command does not fit its frame")
            if frame_end > end:
                announced = 4 + total
                break
            command = parse(bytes(view[start + 8 : command_end]))
            entry = bytes(view[command_end:frame_end]) if frame_end > command_end else b""
            start = frame_end
            kind = command.type
            if not self.connected and kind != wire.BaseCommand.CONNECT:
                raise FrameError("the first command must be CONNECT")
            timed = False
            if kind != _SEND:
                if not command.IsInitialized():
                    raise FrameError(f"{wire.BaseCommand.Type.Name(kind)} lacks a required field")
                if kind not in _WITHOUT_TEXT:
                    timed = True
                    check_text(command)
            handler = handlers.get(kind)
            if handler is None:
                raise FrameError(f"a client may not send {wire.BaseCommand.Type.Name(kind)}")
            handler(self, command, entry)
            if timed and self.broker.clock.monotonic() >= turn_ends:
                self.hold(_TURN, 0)
            if self._stopped:
                if not self._closing:
                    self._received.handled(start, 0)
                return
        if 4 <= end - start < 8:
            self._check_frame_size(int.from_bytes(view[start : start + 4], "big"))
        self._received.handled(start, announced)
        self.listener.check_pressure(self)

    def _check_frame_size(self, total: int) -> int:
        """Return the limit of frames. Raises :class:`FrameError` if this one is larger."""
        limit = self._frame_limit
        if total > limit:
            when = "" if self.connected else " before CONNECT"
            raise FrameError(f"frame of {total} bytes{when}, the largest allowed is {limit}")
        return limit

    # -- frames out ------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue bytes; everything queued in one loop iteration is written at its end, or when it is much."""
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.listener.loop.call_soon(self._flush_at_end)
        elif self._out_bytes > self._write_limit:
            self._flush()

    def _flush_at_end(self) -> None:
        self._flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        self._out = []
        transport = self._transport
        if transport is not None and not self._closing:
            self._written += self._out_bytes
            self._out_bytes = 0
            transport.writelines(out)
            # Dispatch has stopped before; answers to commands have not, so the commands have to.
            if not self.writable and transport.get_write_buffer_size() > 2 * self._write_limit:
                self.hold(_UNREAD)
        self._out_bytes = 0

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
        command = self.listener.receipt_command
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
            self.producer_closed(producer.producer_id)
            command = wire.BaseCommand(type=wire.BaseCommand.CLOSE_PRODUCER)
            command.close_producer.producer_id = producer.producer_id
            command.close_producer.request_id = _UINT64
            self.send(command)

    def producer_closed(self, producer_id: int) -> None:
        """What comes from that producer was sent before it was closed, for as long as it can be under way."""
        now = self.broker.clock.monotonic()
        closed = self.closed_producers
        closed[producer_id] = now
        while closed and next(iter(closed.values())) < now - _UNDER_WAY_S:
            del closed[next(iter(closed))]

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
        command = self.listener.message_command
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
        frame = entry.frame
        self._out.append(encode_command_with_entry(command, len(frame)))
        self.write(frame)
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

    def check_handles(self) -> None:
        """Raise :class:`NotAllowed` if the connection may not have one more producer, consumer or watcher."""
        most = self.broker.config.max_handles_per_connection
        handles = len(self.producers) + len(self.held_producers) + len(self.watchers)
        if 0 < most <= handles + len(self.consumers) + len(self.sought_readers):
            raise NotAllowed(
                f"Reached the maximum number of producers, consumers and topic watchers on a connection: {most} "
                "(max_handles_per_connection)"
            )

    def stays_away(self, consumer_id: int) -> None:
        """The reader that was to come back after a seek does not: its subscription ends, unless others use it."""
        subscription = self.sought_readers.pop(consumer_id, None)
        if subscription is not None and not subscription.consumers and not subscription.closed:
            subscription.topic.drop_subscription(subscription)
