"""Compresses payloads as Pulsar's clients do, and decompresses theirs. No I/O.

ZLIB is a zlib stream, ZSTD a frame, LZ4 and SNAPPY are bare blocks, whose length is known only from the metadata's
``uncompressed_size``. That size is the producer's word, so it is the size of the one buffer that is ever filled here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import cramjam

from . import wire_pb2 as wire

#: The level of ZSTD that Pulsar's clients use: a tenth of the time of the highest ones for nearly the same size.
_ZSTD_LEVEL = 3


class DecompressionError(ValueError):
    """The payload does not decompress to the size that it should have; the text says why."""


def decompress(compression: int, payload: bytes | memoryview, size: int) -> bytes | memoryview:
    """Return ``payload``, compressed by the codec with that number (not NONE), as the ``size`` bytes that it was.

    Raises :class:`DecompressionError`. The caller decides which sizes are too large.
    """
    codec = _DECOMPRESS.get(compression)
    if codec is None:
        raise DecompressionError(f"payload is compressed by codec {compression}, which is unknown")
    if size == 0:
        return b""
    name = wire.CompressionType.Name(compression)  # type: ignore[arg-type]
    try:
        opened = codec(payload, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        # A payload that goes beyond its announced size fails so too: the buffer is no larger.
        raise DecompressionError(f"payload does not decompress as {name} to {size} bytes: {error}") from error
    if len(opened) != size:
        raise DecompressionError(f"payload decompresses as {name} to {len(opened)} bytes, not to the {size} announced")
    return opened


def compress(compression: int, payload: bytes | memoryview) -> bytes | memoryview:
    """Return ``payload`` compressed by the codec with that number; NONE returns it as it is."""
    return payload if compression == wire.NONE else memoryview(_COMPRESS[compression](payload))


def _zlib(payload: bytes | memoryview, size: int) -> bytes:
    stream = zlib.decompressobj()
    opened = stream.decompress(payload, size)
    # Asked for one byte more, a stream that is longer than announced shows it, and a complete one meets its end.
    if stream.decompress(stream.unconsumed_tail, 1):
        raise zlib.error("the stream is longer")
    return opened


def _filled(written: int, buffer: bytearray) -> memoryview:
    return memoryview(buffer)[:written]


def _zstd(payload: bytes | memoryview, size: int) -> memoryview:
    buffer = bytearray(size)
    return _filled(cramjam.zstd.decompress_into(payload, buffer), buffer)


def _lz4(payload: bytes | memoryview, size: int) -> memoryview:
    buffer = bytearray(size)
    return _filled(cramjam.lz4.decompress_block_into(payload, buffer, output_len=size), buffer)


def _snappy(payload: bytes | memoryview, size: int) -> memoryview:
    buffer = bytearray(size)
    return _filled(cramjam.snappy.decompress_raw_into(payload, buffer), buffer)


_DECOMPRESS: dict[int, Callable[[bytes | memoryview, int], bytes | memoryview]] = {
    wire.ZLIB: _zlib,
    wire.ZSTD: _zstd,
    wire.LZ4: _lz4,
    wire.SNAPPY: _snappy,
}
_COMPRESS: dict[int, Callable[[bytes | memoryview], Any]] = {
    wire.ZLIB: zlib.compress,
    wire.ZSTD: lambda payload: cramjam.zstd.compress(payload, _ZSTD_LEVEL),
    wire.LZ4: lambda payload: cramjam.lz4.compress_block(payload, store_size=False),
    wire.SNAPPY: cramjam.snappy.compress_raw,
}
