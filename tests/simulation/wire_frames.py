"""Frames as a client writes and reads them, good ones and hostile ones."""

from __future__ import annotations

import struct

from heliograph_api.protocol import wire_pb2 as wire

_U32 = struct.Struct(">I")


def command_frame(command: wire.BaseCommand, entry: bytes = b"") -> bytes:
    """Return the frame of a command, with an entry behind it if there is one."""
    body = command.SerializePartialToString()
    return _U32.pack(4 + len(body) + len(entry)) + _U32.pack(len(body)) + body + entry
