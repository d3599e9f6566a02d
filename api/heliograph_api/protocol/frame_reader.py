"""Reads the frames of one connection from the bytes that it received, however these were split. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import cast

from google.protobuf.message import DecodeError

from .frames import FRAME_OVERHEAD, FrameError
from .receive_buffer import ReceiveBuffer
from .wire_pb2 import BaseCommand

#: The largest frame (bytes) up to and including CONNECT: credentials have a few KiB.
HANDSHAKE_FRAME_BYTES = 8 * 1024

#: How a client of another protocol begins: the type and the major version of a TLS record, or a method.
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP_METHODS = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI")

#: The type of a command, the command, and the entry that follows it, which is empty for most commands.
ReceivedFrame = tuple[int, BaseCommand, bytes]

_sizes = struct.Struct(">II").unpack_from
_CONNECT = BaseCommand.CONNECT
_SEND = BaseCommand.SEND
#: The parser takes memoryviews, which its type stub does not say; copying them first would take a call more.
_parse = cast(Callable[[memoryview], BaseCommand], BaseCommand.FromString)


class FrameReader:
    """Takes frames out of a ``buffer``, which its connection reads the socket into.

    Before :meth:`connected` only CONNECT is accepted, and small frames. While :attr:`paused` is set, which may happen
    between two frames, received bytes stay in the buffer.
    """

    __slots__ = ("_buffer", "_connected", "_limit", "paused")

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self._buffer = buffer
        self._connected = False
        self._limit = HANDSHAKE_FRAME_BYTES
        self.paused = False

    def connected(self, max_message_size: int) -> None:
        """Accept every command, and frames with messages of up to ``max_message_size`` bytes."""
        self._connected = True
        self._limit = max_message_size + FRAME_OVERHEAD

    def frames(self) -> Iterator[ReceivedFrame]:
        """Yield every complete frame; the beginning of a further one stays in the buffer.

        Raises :class:`FrameError` where the bytes are not a frame of the protocol. Then nothing that follows them can
        be read: every further call raises it again.
        """
        buffer = self._buffer
        view = buffer.rest()
        limit = self._limit
        start, end = 0, len(view)
        announced = 0
        try:
            while not self.paused:
                if end - start < 8:
                    if end - start >= 4:
                        self._check_size(int.from_bytes(view[start : start + 4], "big"))
                    break
                total, command_size = _sizes(view, start)
                if total > limit:
                    # CONNECT may have raised it since.
                    limit = self._check_size(total)
                if total < 4:
                    raise FrameError(f"frame of {total} bytes has no command")
                command_end = start + 8 + command_size
                frame_end = start + 4 + total
                if command_end > frame_end:
                    raise FrameError("command does not fit its frame")
                if frame_end > end:
                    announced = 4 + total
                    break
                command = _parse(view[start + 8 : command_end])
                kind = command.type
                if not self._connected and kind != _CONNECT:
                    raise FrameError("the first command must be CONNECT")
                if kind != _SEND and not command.IsInitialized():
                    raise FrameError(f"{BaseCommand.Type.Name(kind)} lacks a required field")
                entry = bytes(view[command_end:frame_end]) if frame_end > command_end else b""
                start = frame_end
                yield kind, command, entry
        except DecodeError as error:
            raise FrameError(f"command does not decode: {error}") from error
        finally:
            # Also when the connection was ended meanwhile: its buffer is empty then, and stays so.
            buffer.handled(start, announced)

    def _check_size(self, total: int) -> int:
        """Return the largest allowed frame (bytes). Raises :class:`FrameError` if ``total`` is larger."""
        limit = self._limit
        if total > limit:
            when = "" if self._connected else " before CONNECT"
            other = "" if self._connected else _other_protocol(total)
            raise FrameError(f"frame of {total} bytes{when}, the largest allowed is {limit}{other}")
        return limit


def _other_protocol(begins: int) -> str:
    """Return what a client speaks whose first four bytes are of another protocol, and what is right; else nothing."""
    first = begins.to_bytes(4, "big")
    if first[:2] == _TLS_HANDSHAKE:
        return (
            "; the client speaks TLS, and this port does not: its URL begins with pulsar://, or needs the port for TLS"
        )
    if first in _HTTP_METHODS:
        return "; the client speaks HTTP, which has a port of its own"
    return ""
