"""Writes message ids as the official clients serialize them: the bytes of the protocol's MessageIdData."""

from __future__ import annotations

from heliograph_api.protocol.varints import varint

from heliograph_spark.wire.entry_reader import ReceivedEntry


class MessageIds:
    """Writes the ids of one partition, -1 for a topic without partitions."""

    def __init__(self, partition: int) -> None:
        #: The part that the ids of all entries end with.
        self.end = b"" if partition < 0 else b"\x18" + varint(partition)
        #: The ledger of the last entry, of which the next one is almost always.
        self._ledger = (0, b"\x08\x00\x10")

    def head(self, entry: ReceivedEntry) -> bytes:
        """Return the part that all messages of an entry have in common, which is all for one that is no batch."""
        return self._of(entry.ledger, entry.entry)

    def tail(self, batch_size: int) -> bytes:
        """Return the part after the batch index."""
        return b"\x30" + varint(batch_size)

    def in_batch(self, head: bytes, index: int, tail: bytes) -> bytes:
        """Return the id of a message of a batch."""
        return b"".join((head, b"\x20", varint(index), tail))

    def in_chunks(self, head: bytes, first_chunk: tuple[int, int]) -> bytes:
        """Return the id of a message whose last chunk is in the entry of ``head``."""
        first = self._of(*first_chunk)
        return b"".join((head, b"\x3a", varint(len(first)), first))

    def _of(self, ledger: int, entry: int) -> bytes:
        if ledger != self._ledger[0]:
            self._ledger = ledger, b"\x08" + varint(ledger) + b"\x10"
        return self._ledger[1] + varint(entry) + self.end
