"""Puts messages together that producers sent in chunks: one entry for each, with those of other producers between.

A producer that reconnects sends the chunks again that were not confirmed, so a chunk may come twice, and then all after
it do, too. A message is where its last chunk is, and is decompressed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_spark.wire.entry_reader import ReceivedEntry

from .entries import MAX_BYTES_IN_ALL, Entry, UndecodableMessage, is_batch, is_chunk

#: Finished messages that are remembered: more than a client has unconfirmed, and may send again.
_REMEMBERED = 4096
#: The most bytes that are held of unfinished messages, beside the largest message.
MAX_HELD_BYTES = 64 << 20
_OF_CHUNKS = ("uuid", "chunk_id", "num_chunks_from_msg", "total_chunk_msg_size")


@dataclass(slots=True)
class _Unfinished:
    """Chunks of a message of ``count``, without a gap from chunk ``first`` on, which is in the entry ``place``."""

    first: int
    place: tuple[int, int]
    count: int
    payloads: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0

    @property
    def expected(self) -> int:
        return self.first + len(self.payloads)

    def add(self, payload: bytes | memoryview) -> None:
        self.payloads.append(payload)
        self.size += len(payload)


@dataclass(frozen=True, slots=True)
class MissingChunks:
    """The last chunk of a message came, but ``count`` chunks from the first one on did not.

    They are before the position ``before`` (ledger and entry), or lost. :meth:`completed` takes them from there.
    """

    last: ReceivedEntry
    count: int
    before: tuple[int, int]
    held: tuple[bytes | memoryview, ...]

    @property
    def uuid(self) -> str:
        """The id that all chunks of the message have."""
        return self.last.metadata.uuid

    def completed(self, earlier: Iterable[ReceivedEntry]) -> list[Entry] | None:
        """Return the message, with the chunks in ``earlier``, entries in the topic's order; None if they lack some.

        The list is empty if the message ends there already, and its last chunks were only sent again. Raises
        :class:`UndecodableMessage` if the chunks do not make the message that they announce.
        """
        count = self.last.metadata.num_chunks_from_msg
        head: list[bytes | memoryview] = []
        first = (0, 0)
        for entry in earlier:
            metadata = entry.metadata
            if metadata.uuid != self.uuid or not is_chunk(metadata) or (entry.ledger, entry.entry) >= self.before:
                continue
            if metadata.chunk_id == 0:
                head, first = [bytes(entry.payload)], (entry.ledger, entry.entry)
            elif head and metadata.chunk_id == len(head):
                head.append(bytes(entry.payload))
        if len(head) == count:
            return []
        if len(head) < self.count:
            return None
        return [_joined(self.last, first, [*head[: self.count], *self.held])]


class ChunkAssembly:
    """Takes the entries of one topic, in order, and gives its messages.

    Unfinished messages take at most ``max_held`` bytes beside the one that an entry was just added to: of the others,
    the one that has waited longest is given up, and is missing chunks if its last one comes nevertheless.
    """

    def __init__(self, max_held: int = MAX_HELD_BYTES) -> None:
        self._max_held = max_held
        #: By uuid; the one that grew last is at the end.
        self._unfinished: dict[str, _Unfinished] = {}
        self._finished: dict[str, None] = {}
        self.held_bytes = 0

    def add(self, entry: ReceivedEntry) -> ReceivedEntry | MissingChunks | None:
        """Return the message that ends with ``entry``, which is ``entry`` itself unless it is a chunk.

        None for a chunk that others follow. Raises :class:`UndecodableMessage` if the chunks do not make the message
        that they announce.
        """
        metadata = entry.metadata
        if not is_chunk(metadata):
            return entry
        count, chunk = metadata.num_chunks_from_msg, metadata.chunk_id
        if is_batch(metadata) or not 0 <= chunk < count or not metadata.uuid:
            raise UndecodableMessage(entry.ledger, entry.entry, -1, f"chunk {chunk} of {count} of {metadata.uuid!r}")
        if chunk == 0:
            self._finished.pop(metadata.uuid, None)
        known = self._unfinished.pop(metadata.uuid, None)
        if known is not None:
            self.held_bytes -= known.size
            same = known.count == count
            if same and known.first <= chunk < known.expected and chunk > 0:
                # It was sent again, and so will be what follows it.
                self._hold(metadata.uuid, known)
                return None
            if not same or chunk != known.expected:
                known = None
        if known is None:
            if chunk > 0 and metadata.uuid in self._finished:
                return None
            known = _Unfinished(chunk, (entry.ledger, entry.entry), count)
        # One that others follow is kept: a view would keep what was received with it, too.
        known.add(bytes(entry.payload) if chunk < count - 1 else entry.payload)
        if known.size > MAX_BYTES_IN_ALL:
            raise UndecodableMessage(
                entry.ledger, entry.entry, -1, f"its chunks are more than {MAX_BYTES_IN_ALL} bytes"
            )
        if chunk < count - 1:
            self._hold(metadata.uuid, known)
            return None
        if known.first > 0:
            return MissingChunks(entry, known.first, known.place, tuple(known.payloads))
        self._finished[metadata.uuid] = None
        if len(self._finished) > _REMEMBERED:
            del self._finished[next(iter(self._finished))]
        return _joined(entry, known.place, known.payloads)

    def _hold(self, uuid: str, unfinished: _Unfinished) -> None:
        self._unfinished[uuid] = unfinished
        self.held_bytes += unfinished.size
        while self.held_bytes - unfinished.size > self._max_held:
            oldest = next(iter(self._unfinished))
            self.held_bytes -= self._unfinished.pop(oldest).size


def _joined(last: ReceivedEntry, first: tuple[int, int], payloads: list[bytes | memoryview]) -> Entry:
    payload = b"".join(payloads)
    announced = last.metadata.total_chunk_msg_size
    if last.metadata.HasField("total_chunk_msg_size") and announced != len(payload):
        reason = f"its chunks have {len(payload)} bytes, not the {announced} announced"
        raise UndecodableMessage(last.ledger, last.entry, -1, reason)
    metadata = wire.MessageMetadata()
    metadata.CopyFrom(last.metadata)
    for name in _OF_CHUNKS:
        metadata.ClearField(name)  # type: ignore[arg-type]
    return Entry(last.ledger, last.entry, metadata, payload, last.redelivery_count, (), first)
