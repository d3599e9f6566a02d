"""The partition of a message that the broker publishes itself: the one a client's producer would choose.

Clients hash the key by one of several functions that a producer may choose from. This is the default of the Java and
Go clients, ``JavaStringHash``: the hash of Java's strings, 31 times the hash so far plus the next UTF-16 unit, without
its sign. By default the C++ and Python clients hash with another function.
"""

from __future__ import annotations

import struct

from heliograph_api.protocol.wire_pb2 import MessageMetadata


def partition_of(metadata: MessageMetadata, partitions: int, turn: int) -> int:
    """Return the index of the partition of a message: by its key, in the encoding it has, else by ``turn``.

    Without a key, the chunks of a message go by the message's name, so that they stay together.
    """
    if metadata.HasField("partition_key"):
        return java_string_hash(metadata.partition_key) % partitions
    if metadata.num_chunks_from_msg > 1:
        return java_string_hash(metadata.uuid) % partitions
    return turn % partitions


def java_string_hash(text: str) -> int:
    """Return the hash of ``text``, 0 to 2**31 - 1."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        result = result * 31 + unit & 0xFFFFFFFF
    return result & 0x7FFFFFFF
