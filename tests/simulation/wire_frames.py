"""Frames as a client writes and reads them, good ones and hostile ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from heliograph_api.protocol import wire_pb2 as wire

_U32 = struct.Struct(">I")


def command_frame(command: wire.BaseCommand, entry: bytes = b"") -> bytes:
    """Return the frame of a command, with an entry behind it if there is one."""
    body = command.SerializePartialToString()
    return _U32.pack(4 + len(body) + len(entry)) + _U32.pack(len(body)) + body + entry


def batch_payload(messages: Sequence[tuple[dict[str, str], bytes]]) -> bytes:
    """Return the payload of a batch: of each message its properties and content."""
    parts = []
    for properties, content in messages:
        single = wire.SingleMessageMetadata(payload_size=len(content))
        for key, value in properties.items():
            single.properties.add(key=key, value=value)
        encoded = single.SerializeToString()
        parts += [_U32.pack(len(encoded)), encoded, content]
    return b"".join(parts)


def text_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of protobuf, whose text need not be UTF-8."""
    return bytes([number << 3 | 2, len(value)]) + value


class FrameReader:
    """Takes bytes as they come and yields commands with what is behind them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[wire.BaseCommand, bytes]]:
        """Yield every frame that is complete now."""
        self._buffer += data
        while len(self._buffer) >= 8:
            (total,) = _U32.unpack_from(self._buffer)
            if len(self._buffer) < 4 + total:
                return
            (size,) = _U32.unpack_from(self._buffer, 4)
            command = wire.BaseCommand.FromString(bytes(self._buffer[8 : 8 + size]))
            entry = bytes(self._buffer[8 + size : 4 + total])
            del self._buffer[: 4 + total]
            yield command, entry
