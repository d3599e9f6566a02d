"""The hash of a message's key, by which Key_Shared chooses a consumer.

The hash is the murmur3 hash of 32 bits without its highest bit: 0 to Java's MAX_INT, 2,147,483,647. In its place is
a mark, because the store keeps only the lowest 16 bits of a hash, its slot. An entry that was read from the store
therefore has a ``key_hash`` without the mark, and :func:`dispatch_hash` computes it again.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Final

import mmh3
from heliograph_api.protocol.frames import peek_metadata
from heliograph_api.protocol.wire_pb2 import MessageMetadata

if TYPE_CHECKING:
    from heliograph_broker.storage.base.entry import Entry

#: Number of slots that hash ranges divide: the slot of a hash is its remainder by this.
SLOTS: Final = 65536
#: The largest hash.
MAX_HASH: Final = 0x7FFF_FFFF
#: The mark of a hash that is known in full: no smaller ``key_hash`` is one.
WHOLE: Final = MAX_HASH + 1
#: Instead of a hash: the message has neither a key nor an ordering key. Stored, it is the slot 0.
KEYLESS: Final = SLOTS


def hash_of(key: str | bytes) -> int:
    """Return the hash of ``key``, with its mark."""
    return mmh3.hash(key, 0, False) | WHOLE


#: The hash of messages without a key: all of them go to one consumer, in order.
NON_KEY: Final = hash_of("NON_KEY")


def sticky_hash(metadata: MessageMetadata) -> int:
    """Return the hash of an entry's ordering key, else of its key; :data:`KEYLESS` if it has neither."""
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        if metadata.partition_key_b64_encoded:
            try:
                key = b64decode(metadata.partition_key)
            except ValueError:
                key = metadata.partition_key.encode()
        else:
            key = metadata.partition_key.encode()
    else:
        return KEYLESS
    return mmh3.hash(key, 0, False) | WHOLE


def dispatch_hash(entry: Entry, *, spread_keyless: bool) -> int:
    """Return the hash by which Key_Shared dispatches ``entry``, and keep it there.

    Messages without a key have that of ``NON_KEY``, or, to ``spread_keyless`` ones over all consumers, as Pulsar 4,
    that of their producer's name and sequence id; the chunks of a message then that of its name, to stay together.
    """
    key_hash = entry.key_hash
    if key_hash < SLOTS:
        key_hash = sticky_hash(peek_metadata(entry.frame))
    if key_hash == KEYLESS:
        key_hash = _spread(entry) if spread_keyless else NON_KEY
    entry.key_hash = key_hash
    return key_hash


def slot_of(entry: Entry) -> int:
    """Return the slot of an entry's key, that of ``NON_KEY`` if it has none."""
    key_hash = entry.key_hash
    if key_hash in (0, KEYLESS):
        # The slot 0 may be that of a key, or stand for none.
        key_hash = sticky_hash(peek_metadata(memoryview(entry.frame)))
    return (NON_KEY if key_hash == KEYLESS else key_hash) % SLOTS


def _spread(entry: Entry) -> int:
    metadata = peek_metadata(entry.frame)
    if metadata.num_chunks_from_msg > 1:
        return hash_of(metadata.uuid)
    return hash_of(f"{metadata.producer_name}-{metadata.sequence_id}")
