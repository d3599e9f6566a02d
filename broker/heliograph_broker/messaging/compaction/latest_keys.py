"""Selects the messages of a topic that a compaction keeps: two passes over its entries, no I/O.

:meth:`LatestKeys.scan` sees every entry once, in order, and remembers the place of the last message of each key;
:meth:`LatestKeys.select` sees them all again and says what stays of each. Memory is one dictionary item a key, about
200 bytes and the key's own length; nothing of the payloads is kept.
"""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import EntryError, parse_entry

from heliograph_broker.messaging.messages.batches import (
    BatchError,
    SingleMessage,
    build_batch,
    build_frame,
    is_batch,
    is_encrypted,
    open_batch,
)

from .compacted_ledger import CompactedEntry

#: A message's place is its entry's offset times this, plus its index in the batch (see MAX_BATCH_MESSAGES of SEND).
_PLACES = 1 << 20

_CompactedOut = wire.SingleMessageMetadata(compacted_out=True, payload_size=0)


class LatestKeys:
    """The last place of each key. Messages without key stay with ``retain_null_key``, else they go.

    Entries that cannot be opened stay as they are: encrypted batches, batches that do not open, and chunked messages
    whose last chunk has not come. A single encrypted message takes part by its key, which is not encrypted.
    """

    __slots__ = (
        "_open_chunks",
        "_parts",
        "_retain_null_key",
        "_wanted_chunks",
        "last_batch_index",
        "latest",
        "removed",
    )

    def __init__(self, *, retain_null_key: bool) -> None:
        self._retain_null_key = retain_null_key
        self.latest: dict[str, int] = {}
        #: Offset of a last chunk -> offsets of the chunks before it.
        self._parts: dict[int, list[int]] = {}
        self._open_chunks: dict[tuple[str, str], list[int]] = {}
        self._wanted_chunks: set[int] | None = None
        #: Messages that :meth:`select` left out.
        self.removed = 0
        #: Index in its batch of the last message that :meth:`select` kept, -1 if it is no batch's.
        self.last_batch_index = -1

    # -- first pass --------------------------------------------------------------------------------------------

    def scan(self, source: CompactedEntry) -> None:
        """Take note of the keys of an entry."""
        entry = source.entry
        try:
            metadata, at = parse_entry(entry.frame)
        except EntryError:
            return
        if metadata.HasField("marker_type"):
            return
        place = entry.offset * _PLACES
        if is_batch(metadata):
            for index, (single, payload) in enumerate(_open(metadata, entry.frame[at:]) or ()):
                if _is_live(single, index, source.retained) and (key := _key(single)) is not None:
                    self._supersede(key, place + index, deleted=single.null_value or not payload)
        elif metadata.num_chunks_from_msg > 1:
            self._scan_chunk(metadata, entry.offset)
        elif (key := _key(metadata)) is not None:
            self._supersede(key, place, deleted=metadata.null_value or not _size(metadata, len(entry.frame) - at))

    def _supersede(self, key: str, place: int, *, deleted: bool) -> None:
        if deleted:
            older = self.latest.pop(key, None)
        else:
            older = self.latest.get(key)
            self.latest[key] = place
        if older is not None and self._parts:
            self._parts.pop(older // _PLACES, None)

    def _scan_chunk(self, metadata: wire.MessageMetadata, offset: int) -> None:
        """A chunked message comes, and counts, with its last chunk; the chunks before it share its fate."""
        message = (metadata.producer_name, metadata.uuid)
        if metadata.chunk_id == 0:
            self._open_chunks[message] = []
        chunks = self._open_chunks.setdefault(message, [])
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            chunks.append(offset)
            return
        del self._open_chunks[message]
        key = _key(metadata)
        if key is not None:
            self._supersede(key, offset * _PLACES, deleted=False)
        if key is not None or self._retain_null_key:
            self._parts[offset] = chunks

    # -- second pass -------------------------------------------------------------------------------------------

    def select(self, source: CompactedEntry) -> CompactedEntry | None:
        """Return what stays of an entry, None for nothing."""
        entry = source.entry
        try:
            metadata, at = parse_entry(entry.frame)
        except EntryError:
            self.last_batch_index = -1
            return source
        if metadata.HasField("marker_type"):
            return None
        if is_batch(metadata):
            messages = _open(metadata, entry.frame[at:])
            if messages is None:
                self.last_batch_index = entry.messages - 1
                return source
            return self._select_of_batch(source, metadata, messages)
        if metadata.num_chunks_from_msg > 1:
            kept = entry.offset in self._chunks()
        else:
            key = _key(metadata)
            kept = self._retain_null_key if key is None else self.latest.get(key) == entry.offset * _PLACES
        if kept:
            self.last_batch_index = -1
            return source
        self.removed += 1
        return None

    def _chunks(self) -> set[int]:
        """Return the offsets of all chunks that stay, found when the second pass asks first."""
        if self._wanted_chunks is None:
            wanted = self._wanted_chunks = set(self._parts)
            for chunks in (*self._parts.values(), *self._open_chunks.values()):
                wanted.update(chunks)
        return self._wanted_chunks

    def _select_of_batch(
        self, source: CompactedEntry, metadata: wire.MessageMetadata, messages: list[SingleMessage]
    ) -> CompactedEntry | None:
        entry = source.entry
        place = entry.offset * _PLACES
        retained = 0
        live = 0
        for index, (single, _) in enumerate(messages):
            if not _is_live(single, index, source.retained):
                continue
            live += 1
            key = _key(single)
            if self._retain_null_key if key is None else self.latest.get(key) == place + index:
                retained |= 1 << index
        self.removed += live - retained.bit_count()
        if not retained:
            return None
        self.last_batch_index = retained.bit_length() - 1
        if retained.bit_count() == live:
            return source
        # The others leave a mark in their place, so that those that stay keep their batch index.
        left = [message if retained >> index & 1 else (_CompactedOut, b"") for index, message in enumerate(messages)]
        frame = build_frame(*build_batch(metadata, left, compress=True))
        if len(frame) < len(entry.frame):
            entry.frame = frame
        return CompactedEntry(entry, source.size, retained)


def _open(metadata: wire.MessageMetadata, payload: bytes) -> list[SingleMessage] | None:
    if is_encrypted(metadata):
        return None
    try:
        return open_batch(metadata, payload)
    except BatchError:
        return None


def _is_live(single: wire.SingleMessageMetadata, index: int, retained: int | None) -> bool:
    """Return whether no compaction before has left the message out."""
    return not single.compacted_out and (retained is None or bool(retained >> index & 1))


def _key(metadata: wire.MessageMetadata | wire.SingleMessageMetadata) -> str | None:
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    return metadata.partition_key


def _size(metadata: wire.MessageMetadata, payload_bytes: int) -> int:
    """Return the size of a single message's payload before compression and encryption, as its producer says."""
    if metadata.compression == wire.NONE and not is_encrypted(metadata):
        return payload_bytes
    return metadata.uncompressed_size if metadata.HasField("uncompressed_size") else payload_bytes
