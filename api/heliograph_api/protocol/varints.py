"""Variable-length integers as protobuf encodes them."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Return the encoding of a number, of a negative one that of 64 bits."""
    number &= 0xFFFFFFFFFFFFFFFF
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
