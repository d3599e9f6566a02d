"""Finds messages in entries by what their metadata say: key, properties, place in a batch. Pure; runs in any thread."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from heliograph_api.protocol.frames import EntryError, parse_entry

from .batches import BatchError, is_batch, is_encrypted, open_batch_at_once
from .key_hash import dispatch_hash

if TYPE_CHECKING:
    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.storage.base.entry import Entry


class Criteria(NamedTuple):
    """The key, properties and batch index of the messages wanted; None and empty for any."""

    key: str | None = None
    properties: Mapping[str, str] = {}
    batch_index: int | None = None


class MatchedMessage(NamedTuple):
    """One message, or a batch that only its consumers can open. Times are wall-clock ms.

    ``batch_index`` is -1 and ``messages`` their number for an entry that is shown as a whole; ``unopened`` says why a
    batch is.
    """

    offset: int
    batch_index: int
    messages: int
    key: str | None
    properties: dict[str, str]
    publish_ms: int
    event_ms: int
    receive_ms: int
    deliver_at_ms: int
    producer: str
    sequence_id: int
    size: int
    key_hash: int
    encrypted: bool
    unopened: str

    @property
    def weight(self) -> int:
        """About the bytes of memory it takes."""
        return 500 + len(self.key or "") + sum(len(name) + len(value) for name, value in self.properties.items())


class Examined(NamedTuple):
    """The matches in some entries, and where to go on: an offset, and the batch index there."""

    matches: list[MatchedMessage]
    next_offset: int
    next_index: int


def examine(
    entries: Iterable[Entry],
    criteria: Criteria,
    unacked: Mapping[int, int | None],
    *,
    from_index: int,
    limit: int,
    max_weight: int,
    spread_keyless: bool,
) -> Examined:
    """Match the messages of ``entries``, from ``from_index`` of the first on, until ``limit`` or ``max_weight``.

    Only entries in ``unacked`` count, and of these the indexes whose bit is set there (None: all).
    ``spread_keyless`` is that of :func:`.key_hash.dispatch_hash`.
    """
    matches: list[MatchedMessage] = []
    next_offset = 0
    for entry in entries:
        next_offset = entry.offset + 1
        if entry.offset not in unacked:
            from_index = 0
            continue
        bits = unacked[entry.offset]
        for match in _messages(entry, spread_keyless):
            index = match.batch_index
            if index >= 0 and (index < from_index or (bits is not None and not bits >> index & 1)):
                continue
            if _fits(match, criteria):
                matches.append(match)
                max_weight -= match.weight
                if len(matches) >= limit or max_weight <= 0:
                    return Examined(matches, *((entry.offset, index + 1) if index >= 0 else (next_offset, 0)))
        from_index = 0
    return Examined(matches, next_offset, 0)


def _fits(match: MatchedMessage, criteria: Criteria) -> bool:
    if criteria.key is not None and match.key != criteria.key:
        return False
    if criteria.batch_index not in (None, match.batch_index) and match.batch_index >= 0:
        return False
    return all(match.properties.get(name) == value for name, value in criteria.properties.items())


def _messages(entry: Entry, spread_keyless: bool) -> Iterator[MatchedMessage]:
    try:
        metadata, payload_offset = parse_entry(entry.frame)
    except EntryError as error:
        yield _whole(entry, None, str(error))
        return
    # Kept in the entry: that of a stored one lacks some bits.
    dispatch_hash(entry, spread_keyless=spread_keyless)
    if not is_batch(metadata):
        yield _whole(entry, metadata, "")
        return
    try:
        opened = open_batch_at_once(metadata, entry.frame[payload_offset:])
    except BatchError as error:
        yield _whole(entry, metadata, str(error))
        return
    whole = _whole(entry, metadata, "")
    for index, (single, payload) in enumerate(opened):
        yield whole._replace(
            batch_index=index,
            messages=1,
            key=_key(single) if single.HasField("partition_key") else None,
            properties={pair.key: pair.value for pair in single.properties},
            event_ms=single.event_time,
            sequence_id=single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id + index,
            size=len(payload),
        )


def _whole(entry: Entry, metadata: wire.MessageMetadata | None, unopened: str) -> MatchedMessage:
    has_key = metadata is not None and metadata.HasField("partition_key")
    return MatchedMessage(
        entry.offset,
        -1,
        entry.messages,
        _key(metadata) if metadata is not None and has_key else None,
        {} if metadata is None else {pair.key: pair.value for pair in metadata.properties},
        entry.publish_ms,
        0 if metadata is None else metadata.event_time,
        entry.receive_ms,
        entry.deliver_at_ms,
        "" if metadata is None else metadata.producer_name,
        0 if metadata is None else metadata.sequence_id,
        len(entry.frame),
        entry.key_hash,
        metadata is not None and is_encrypted(metadata),
        unopened,
    )


def _key(metadata: wire.MessageMetadata | wire.SingleMessageMetadata) -> str:
    """Return the key as the application gave it; one of bytes that are no text stays in Base64."""
    if metadata.partition_key_b64_encoded:
        try:
            return b64decode(metadata.partition_key).decode()
        except ValueError:
            return metadata.partition_key
    return metadata.partition_key
