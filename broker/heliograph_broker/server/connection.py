"""One client connection: received frames go to the handlers, sent frames are collected into few writes.

A :class:`asyncio.BufferedProtocol`: the socket is read into a buffer that all connections share, and every complete
frame in it is handled in the same wake-up; what a frame is, the frame reader knows. Output is collected and
written once at the end of the loop iteration. An entry's bytes are copied once, from the buffer; the same object then
serves the store, the tail cache and every consumer.

A client that is not authenticated costs little: before CONNECT only small frames are accepted, and CONNECT must arrive
in time. If a client does not read, the broker does not read from it either. A connection that is closed is aborted if
its client does not read the remaining data in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import structlog
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import Encoder
from heliograph_api.protocol.frame_reader import FrameReader
from heliograph_api.protocol.frames import FrameError
from heliograph_api.protocol.receive_buffer import ReceiveBuffer, SharedBuffer
from heliograph_api.values.listeners import ServiceUrls

from heliograph_broker.security.event_floods import EventFlood
from heliograph_broker.security.tls.client_certificate import NO_CERTIFICATE, ClientCertificate, client_certificate

from .output import Output
from .role_clients import RoleClient, RoleClients

if TYPE_CHECKING:
    from heliograph_broker.messaging.broker.broker import Broker
    from heliograph_broker.security.security import Security

log = structlog.get_logger(__name__)

#: Handles a command of a session.
Handler = Callable[[Any, wire.BaseCommand], None]
#: Handles a SEND and the entry that follows it.
PublishHandler = Callable[[Any, wire.BaseCommand, bytes], None]

_SEND = wire.BaseCommand.SEND
#: Longest time (s) for which frames of one connection are handled before others get their turn.
_TURN_S = 0.01
#: The clock is read after every n-th frequent command only (a power of two), because these are cheap.
_CLOCK_EVERY = 16
#: Reasons for not reading from a connection: its client does not read, or others have their turn.
_UNREAD = "answers wait unread"
_TURN = "others have their turn"
_ABORTING = "aborting connection"
#: Commands that are cheap, and that a client sends for every message or every few.
_FREQUENT = frozenset(
    {_SEND, wire.BaseCommand.ACK, wire.BaseCommand.FLOW, wire.BaseCommand.PING, wire.BaseCommand.PONG}
)


class MessageSink:
    """Sends messages to the consumers of a client."""

    __slots__ = ("held_until_ms", "unwritable_since_ms", "writable")

    #: Whether messages may be sent: the client reads its data, and the dispatch rate of its role has room.
    writable: bool
    #: When that ended last, wall-clock ms.
    unwritable_since_ms: int
    #: When the rate has room again, wall-clock ms; 0: it has.
    held_until_ms: int

    def may_dispatch(self) -> None:
        """The client has read enough for more messages to be sent."""
        raise NotImplementedError


class ConnectionSession(RoleClient):
    """The session of a client, as its connection knows it."""

    __slots__ = ()

    consumers: MessageSink

    @property
    def held_bytes(self) -> int:
        """Bytes in memory for the client's requests that wait."""
        raise NotImplementedError

    def give_up(self) -> None:
        """The connection ends: release everything the client held. May be called again."""
        raise NotImplementedError


class ConnectionHost:
    """The services of the listener that a connection uses."""

    broker: Broker
    loop: asyncio.AbstractEventLoop
    #: By the type of the command; SEND has a handler of its own.
    handlers: dict[int, Handler]
    publish_handler: PublishHandler
    receive_buffer: SharedBuffer
    encoder: Encoder
    #: None on a broker without authentication.
    security: Security | None
    role_clients: RoleClients
    #: Connections that were aborted before CONNECT was accepted.
    unconnected_aborts: EventFlood

    def open_session(self, connection: Connection) -> ConnectionSession:
        """Return the session of a new connection."""
        raise NotImplementedError

    def opened(self, connection: Connection) -> None:
        """The connection is made."""
        raise NotImplementedError

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def service_urls_for(self, connection: Connection, listener: str) -> ServiceUrls:
        """Return the URLs that the client may use: those of the advertised ``listener`` it names, if any.

        Without a name they are those of the port the client came in by, else the address it connected to.
        Raises :class:`ListenerNotFound`.
        """
        raise NotImplementedError

    def check_pressure(self, connection: Connection) -> None:
        """Hold back ``connection`` while too much waits for the store."""
        raise NotImplementedError


class Connection(asyncio.BufferedProtocol):
    """Reads frames and gives them to the handlers, with the session; it does not know the meaning of commands."""

    def __init__(
        self,
        listener: ConnectionHost,
        ended: Callable[[], None] | None = None,
        below: asyncio.Transport | None = None,
        *,
        came_in_by: str = "",
    ) -> None:
        """``ended`` is called once the connection is lost. ``came_in_by``: the advertised listener of the port.

        ``below`` is the transport below TLS, None without TLS.
        """
        self._ended = ended
        self._below = below
        self.came_in_by = came_in_by
        self._client_certificate: ClientCertificate = NO_CERTIFICATE
        self.listener = listener
        self.broker = listener.broker
        self.output = Output(
            listener.loop, listener.encoder, self.broker.config.max_connection_write_bytes, self._written
        )
        self.connected = False
        self.address = ""
        #: The name and version of the client's library.
        self.client_version = ""
        self.heard_at = 0.0
        self.pinged_at = 0.0
        self._transport: asyncio.Transport | None = None
        self._closing = False
        #: Aborts the connection: no CONNECT in time, or remaining data not read in time.
        self._deadline: asyncio.TimerHandle | None = None
        #: The current reasons for not reading from the socket, and the timers that end them.
        self._holds: dict[object, asyncio.TimerHandle | None] = {}
        self._received = ReceiveBuffer(listener.receive_buffer)
        #: Paused while the connection is held or closing: no further frame is handled.
        self._reader = FrameReader(self._received)
        #: Whether the client reads too little for messages to be sent.
        self._unread = False
        #: Ends a time in which no messages are sent.
        self._messages_held: asyncio.TimerHandle | None = None
        #: Bytes that the client had taken at the last check.
        self._taken = 0
        self.session = listener.open_session(self)

    # -- beginning and end -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is one by behaviour, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self.output.open(self._transport, self._below)
        if self.encrypted:
            self._client_certificate = client_certificate(transport)
        peer = transport.get_extra_info("peername")
        self.address = f"/{peer[0]}:{peer[1]}" if peer else ""
        self.heard_at = self.broker.clock.monotonic()
        within_s = self.broker.config.handshake_timeout_s
        self._deadline = self.listener.loop.call_later(
            within_s, self.abort, "handshake", f"no CONNECT within {within_s:g} s"
        )
        self.listener.opened(self)
        # A session that was resumed keeps a certificate that may have expired since.
        self.check_certificate()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._below = None
        self.output.lost()
        try:
            self._end()
        finally:
            # Else the two would refer to each other, and their memory would be freed late.
            del self.session
            self.listener.lost(self)
            if self._ended is not None:
                self._ended()

    def handshake_done(self, client_version: str) -> None:
        """Allow large frames, and end the handshake's time limit: CONNECT was accepted."""
        self.connected = True
        self.client_version = client_version
        self._reader.connected(self.broker.config.max_message_size)
        self._cancel_deadline()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        """Stop reading from the client and give up everything it held."""
        self._closing = self._reader.paused = True
        self.output.close()
        self.session.consumers.writable = False
        self._cancel_deadline()
        if self._messages_held is not None:
            self._messages_held.cancel()
        self._received.clear()
        for timer in self._holds.values():
            if timer is not None:
                timer.cancel()
        self._holds.clear()
        self.session.give_up()

    @property
    def alive(self) -> bool:
        """Whether answers can still be sent to the client."""
        return not self._closing

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.address.rpartition(":")[0].removeprefix("/")

    @property
    def held_bytes(self) -> int:
        """Bytes in memory for this connection: unwritten output, frames not yet handled, and requests that wait."""
        return self.output.unwritten_bytes + len(self._received) + self.session.held_bytes

    @property
    def local_address(self) -> tuple[str, int]:
        """The address the client connected to."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return (name[0], name[1]) if name else ("127.0.0.1", 0)

    @property
    def encrypted(self) -> bool:
        """Whether the client came in by TLS."""
        return self._below is not None

    @property
    def certificate(self) -> bytes:
        """The client's verified certificate (DER); empty if it has none."""
        return self._client_certificate.der

    @property
    def certificate_expires_at_s(self) -> float:
        """When the client's certificate expires (s since the epoch); 0 if it has none."""
        return self._client_certificate.expires_at_s

    def check_certificate(self) -> bool:
        """Close the connection if the client's certificate does not hold any more; return whether it still does."""
        reason = self._client_certificate.why_over(self.broker.clock.now_ms())
        if not reason:
            return True
        if not self._closing:
            self.broker.metrics.binary_connections.cut["certificate"] += 1
            self.close(reason)
        return False

    def close(self, reason: str, *, logged: bool = False) -> None:
        """End the connection once everything queued is written, or after ``close_timeout_s`` at the latest.

        ``logged``: the log has the reason already.
        """
        if self._transport is None or self._closing:
            return
        if not logged:
            log.info("closing connection", client=self.address, reason=reason)
        self.output.flush()
        self._transport.close()
        self._end()
        within_s = self.broker.config.close_timeout_s
        self._deadline = self.listener.loop.call_later(
            within_s, self.abort, "unread", f"the client did not read the remaining data within {within_s:g} s"
        )

    def abort(self, kind: str, reason: str) -> None:
        """End the connection at once, without writing queued output.

        ``kind`` is the reason that the metrics count it by.
        """
        if self._transport is None:
            return
        self.broker.metrics.binary_connections.cut[kind] += 1
        self._note_abort(reason)
        self.output.discard()
        self._transport.abort()
        self._end()

    def _note_abort(self, reason: str) -> None:
        """Log it; of clients that have not connected, which may be as many as they want, a few in a while."""
        if self.connected:
            log.info(_ABORTING, client=self.address, reason=reason)
        else:
            self.listener.unconnected_aborts.log(
                log.info, _ABORTING, "aborted further connections", client=self.address, reason=reason
            )

    def silent_s(self, now: float) -> float:
        """Return the time (s) since the last sign of life from the client; 0 while the broker makes it wait."""
        if _UNREAD in self._holds:
            # Nothing is read from it until it reads: so that it reads is its sign of life.
            taken = self.output.taken_bytes
            if taken > self._taken:
                self._taken = taken
                self.heard_at = now
        elif self._holds:
            return 0.0
        return now - self.heard_at

    # -- back-pressure ---------------------------------------------------------------------------------------

    def _written(self) -> None:
        # Dispatch has stopped before. Answers have not, so no more commands are read.
        if not self.session.consumers.writable and self.output.is_flooded:
            self.hold(_UNREAD)

    def pause_writing(self) -> None:
        self._unread = True
        self._send_none()

    def _send_none(self) -> None:
        consumers = self.session.consumers
        if consumers.writable:
            consumers.writable = False
            consumers.unwritable_since_ms = self.broker.clock.now_ms()

    def throttle(self) -> None:
        """Send no more messages and read nothing until :meth:`resume_writing`."""
        self.pause_writing()
        self.hold(_UNREAD)

    def resume_writing(self) -> None:
        if self._closing:
            return
        self._unread = False
        self.release(_UNREAD)
        self._send_again()

    def hold_messages(self, ms: int) -> None:
        """Send no messages for ``ms``, or until :meth:`release_messages`; answers are sent."""
        if self._transport is None or self._closing:
            return
        if self._messages_held is not None:
            self._messages_held.cancel()
        self._messages_held = self.listener.loop.call_later(ms / 1000, self.release_messages)
        self.session.consumers.held_until_ms = self.broker.clock.now_ms() + ms
        self._send_none()

    def release_messages(self) -> None:
        """End the time in which no messages are sent."""
        if self._messages_held is None or self._closing:
            return
        self._messages_held.cancel()
        self._messages_held = None
        self.session.consumers.held_until_ms = 0
        self._send_again()

    def _send_again(self) -> None:
        if not self._unread and self._messages_held is None:
            self.session.consumers.writable = True
            self.session.consumers.may_dispatch()

    @property
    def held(self) -> bool:
        """Whether the broker makes the client wait, other than for its turn."""
        return bool(self._holds) and list(self._holds) != [_TURN]

    def hold(self, reason: object, ms: int | None = None, *, sees_end: bool = False) -> None:
        """Handle nothing from the client until :meth:`release` of the same ``reason``, or for ``ms``.

        Nothing is read either, so the client's leaving is not seen. With ``sees_end`` it is, unless the client sends
        more: that is read once, and then no more.
        """
        if self._transport is None or self._transport.is_closing():
            return
        if not self._holds:
            self._reader.paused = True
            if not sees_end:
                self._transport.pause_reading()
        timer = self._holds.get(reason)
        if timer is not None:
            timer.cancel()
        self._holds[reason] = None if ms is None else self.listener.loop.call_later(ms / 1000, self.release, reason)

    def release(self, reason: object) -> None:
        """End one reason for not reading. After the last, handle the frames received before, then read again."""
        if reason not in self._holds:
            return
        timer = self._holds.pop(reason)
        if timer is not None:
            timer.cancel()
        if not self._holds and not self._closing:
            self._reader.paused = False
            self.listener.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self.heard_at = self.broker.clock.monotonic()
        self._handle_frames()
        if not self._reader.paused and self._transport is not None:
            self._transport.resume_reading()

    # -- frames in -------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.heard_at = self.broker.clock.monotonic()
        self._received.received(nbytes)
        if self._reader.paused and self._transport is not None:
            self._transport.pause_reading()
        self._handle_frames()

    def eof_received(self) -> None:
        # The transport closes now and would drop the answers that wait for the end of the loop iteration.
        self.output.flush()

    def _handle_frames(self) -> None:
        reader = self._reader
        if reader.paused:
            return
        publish = self.listener.publish_handler
        handlers = self.listener.handlers
        session = self.session
        turn_ends = self.heard_at + _TURN_S
        handled = 0
        try:
            for kind, command, entry in reader.frames():
                handled += 1
                if kind == _SEND:
                    publish(session, command, entry)
                else:
                    handler = handlers.get(kind)
                    if handler is None:
                        raise FrameError(f"a client may not send {wire.BaseCommand.Type.Name(command.type)}")
                    handler(session, command)
                if (kind not in _FREQUENT or not handled % _CLOCK_EVERY) and self.broker.clock.monotonic() >= turn_ends:
                    self.hold(_TURN, 0)
            if not reader.paused:
                self.listener.check_pressure(self)
        except FrameError as error:
            self.broker.metrics.binary_connections.cut["malformed"] += 1
            reason = f"malformed frame: {error}"
            security = None if self.connected else self.listener.security
            if security is None:
                log.warning("malformed frame", client=self.address, error=str(error))
            else:
                # Anybody can send these, and as many as they want.
                security.failures.note(self.host, reason)
            self.output.send_error(0, wire.UnknownError, reason)
            self.close("malformed frame", logged=security is not None)
        except Exception:
            # A defect of the broker that this client's command met: only its connection ends.
            log.exception("unhandled error", client=self.address)
            self.output.send_error(0, wire.UnknownError, "internal error")
            self.close("internal error")
