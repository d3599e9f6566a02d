"""Messages sent in chunks: all chunks of a message go to one consumer, however many there are.

A client puts a chunked message together only if it gets every chunk, from the first on. So the chunks that follow go
to the consumer that holds those before them, and what is taken back is taken back with all of the message's chunks,
to begin again with the first one that is not acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from heliograph_api.protocol.frames import peek_metadata
from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable

    from heliograph_broker.storage.base.entry import Entry

    from .consumer import Consumer


class Chunk(NamedTuple):
    """One chunk: the name of its message, and whether it is the last one."""

    name: str
    last: bool


def chunk_of(entry: Entry) -> Chunk | None:
    """Return what ``entry`` is a chunk of, None if it is a whole message."""
    metadata = peek_metadata(memoryview(entry.frame))
    if metadata.num_chunks_from_msg <= 1 or not metadata.HasField("uuid"):
        return None
    return Chunk(metadata.uuid, metadata.chunk_id >= metadata.num_chunks_from_msg - 1)


class _Message:
    """A chunked message of which chunks are at a consumer, or wait for it to take more."""

    __slots__ = ("consumer", "finished", "key_hash", "offsets")

    def __init__(self, consumer: Consumer, key_hash: int) -> None:
        self.consumer = consumer
        self.key_hash = key_hash
        self.finished = False
        self.offsets: set[int] = set()


class ChunkedMessages(dict[int, str]):
    """The unacknowledged chunks that one subscription's consumers hold or are to get: offset -> name of its message."""

    __slots__ = ("_messages", "_offsets", "unfinished")

    def __init__(self) -> None:
        super().__init__()
        #: Key hash -> how many of its messages are at a consumer without their last chunk.
        self.unfinished: dict[int, int] = {}
        self._messages: dict[str, _Message] = {}
        #: The same offsets in order.
        self._offsets = BitMap64()

    def assign(self, entry: Entry, consumer: Consumer) -> Consumer:
        """Return who gets ``entry``: the holder of its message's other chunks, else ``consumer``."""
        chunk = chunk_of(entry)
        if chunk is None:
            return consumer
        message = self._messages.get(chunk.name)
        if message is None:
            message = self._messages[chunk.name] = _Message(consumer, entry.key_hash)
            self.unfinished[entry.key_hash] = self.unfinished.get(entry.key_hash, 0) + 1
        if chunk.last:
            self._finish(message)
        message.offsets.add(entry.offset)
        self[entry.offset] = chunk.name
        self._offsets.add(entry.offset)
        return message.consumer

    def _finish(self, message: _Message) -> None:
        if not message.finished:
            message.finished = True
            self.unfinished[message.key_hash] -= 1
            if not self.unfinished[message.key_hash]:
                del self.unfinished[message.key_hash]

    def settled(self, offset: int) -> Consumer | None:
        """An entry is acknowledged, by whomever; return whose chunk it was, None if it is no chunk.

        With the last one that is held the message is done, or given up by the client.
        """
        name = self.pop(offset, None)
        if name is None:
            return None
        self._offsets.discard(offset)
        message = self._messages[name]
        message.offsets.discard(offset)
        if not message.offsets:
            self._finish(message)
            del self._messages[name]
        return message.consumer

    def up_to(self, offset: int) -> list[int]:
        """Return the offsets of the chunks up to and including ``offset``."""
        offsets = self._offsets
        return list(offsets[: offsets.rank(offset)]) if offsets and offsets.min() <= offset else []

    def release(self, consumer: Consumer, offsets: Iterable[int]) -> set[int]:
        """Return ``offsets`` with all other chunks of those messages that ``consumer`` has; it has them no longer."""
        together = set(offsets)
        for offset in list(together):
            name = self.get(offset)
            if name is not None and self._messages[name].consumer is consumer:
                message = self._messages.pop(name)
                self._finish(message)
                for other in message.offsets:
                    del self[other]
                    self._offsets.discard(other)
                    together.add(other)
        return together

    def forget_all(self) -> None:
        """Forget all chunks: nobody holds anything."""
        self._messages.clear()
        self.unfinished.clear()
        self._offsets.clear()
        self.clear()
