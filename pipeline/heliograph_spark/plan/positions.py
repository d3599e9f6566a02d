"""Places in a topic: what the offsets of a query are made of, and how a person writes them.

A position is the last message that lies before it, so everything up to and including a position has been read. An entry
that holds a batch is one place per message; without a batch index a position means the whole entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any, Literal

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire

from .errors import OptionError

#: Offsets that can be given without a message id.
Edge = Literal["earliest", "latest"]
_TEXT = re.compile(r"(\d+):(-1|\d+)(?::(\d+))?")
#: How an offset is kept: the position, the number of entries added up to it, the ledger from which these were counted,
#: both where they are known, and the number of those lost.
_KEPT = re.compile(r"([^#~]+)(?:#(-?\d+)(?:@(\d+))?)?(?:~(\d+))?")
_LARGEST_ID = (1 << 63) - 1
_LARGEST_INDEX = (1 << 31) - 1


@total_ordering
@dataclass(frozen=True, slots=True)
class Position:
    """A message of one partition; ``batch`` is -1 for all messages of the entry. Ordered as the topic is.

    ``added`` is the number of entries added to the partition up to this one, by the broker's count, if that is known.
    It is below zero before the entry from which the broker counts; ``since`` is the ledger of that entry, if it is
    not before the position. ``lost`` is the number of entries before the position that a query has not read, because
    they were deleted.
    """

    ledger: int
    entry: int
    batch: int = -1
    added: int | None = field(default=None, compare=False)
    since: int | None = field(default=None, compare=False)
    lost: int = field(default=0, compare=False)

    def _key(self) -> tuple[int, int, float]:
        return self.ledger, self.entry, self.batch if self.batch >= 0 else float("inf")

    def __lt__(self, other: Position) -> bool:
        return self._key() < other._key()

    @property
    def entry_key(self) -> tuple[int, int]:
        """Ledger and entry, for comparing without the batch."""
        return self.ledger, self.entry

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.batch}" if self.batch >= 0 else "")

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read what ``str`` wrote: ``ledger:entry`` or ``ledger:entry:batch``. Raises :class:`ValueError`."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a position such as '12:5' or '12:5:3'")
        ledger, entry, batch = int(found[1]), int(found[2]), int(found[3]) if found[3] else -1
        if max(ledger, entry) > _LARGEST_ID or batch > _LARGEST_INDEX:
            raise ValueError(
                f"{text!r} is no position: ids are at most {_LARGEST_ID}, and the last number {_LARGEST_INDEX}"
            )
        return cls(ledger, entry, batch)

    @classmethod
    def of_id(cls, data: bytes) -> Position:
        """Return the position of a message id, as clients write it as bytes. Raises :class:`ValueError`."""
        found = wire.MessageIdData()
        try:
            found.ParseFromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        if not found.IsInitialized():
            raise ValueError("they have no ledger or no entry")
        return cls(_signed(found.ledgerId), _signed(found.entryId), found.batch_index)

    def at_count(self, added: int, since: int | None = None) -> Position:
        """Return the same position with the number of entries added up to it, counted from the ledger ``since``."""
        return replace(self, added=added, since=since)

    def with_lost(self, lost: int) -> Position:
        """Return the same position with the number of entries that a query lost up to it."""
        return replace(self, lost=lost)

    def before(self) -> Position:
        """Return the position after which this message comes first: reading after it includes this one."""
        if self.batch > 0:
            return Position(self.ledger, self.entry, self.batch - 1)
        return Position(self.ledger, max(-1, self.entry - 1))


def _signed(number: int) -> int:
    return number - (1 << 64) if number > _LARGEST_ID else number


#: Nothing was read yet, whatever the first ledger is.
BEGINNING = Position(0, -1)


def parse_offsets(option: str, text: str) -> Edge | dict[str, Edge | Position]:
    """Read ``startingOffsets`` or ``endingOffsets``: an edge for all topics, or JSON with one offset per topic.

    In JSON an offset is an edge, a position as text, or the bytes of a serialized message id as a list, signed as Java
    writes them or not. The positions name messages. Raises :class:`OptionError`, naming ``option`` and the topic.
    """
    if (edge := text.strip().lower()) in ("earliest", "latest"):
        return edge  # type: ignore[return-value]
    value = _json_object(option, text, "earliest, latest", '"12:5"')
    return {topic: _offset(f"{option} of {topic!r}", each) for topic, each in value.items()}


def parse_times(option: str, text: str) -> int | dict[str, int]:
    """Read ``startingTime`` or ``endingTime``: milliseconds since 1970, for all topics or in JSON per topic.

    Raises :class:`OptionError`, naming ``option``.
    """
    if re.fullmatch(r"\d{1,15}", text.strip()):
        return int(text)
    times = _json_object(option, text, "milliseconds since 1970", "1700000000000")
    for topic, each in times.items():
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each < 10**15:
            raise OptionError(f"{option} of {topic!r}: {each!r} is not a number of milliseconds since 1970")
    return times


def _json_object(option: str, text: str, valid: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(
            f"{option}: {text!r} cannot be understood; valid: {valid}, or JSON per topic such as"
            f' {{"orders": {example}}}'
        ) from error
    if not isinstance(value, dict) or not value:
        raise OptionError(f"{option}: the JSON must be an object with one value per topic, not {text}")
    return value


def _offset(what: str, value: object) -> Edge | Position:
    if value in ("earliest", "latest"):
        return value
    if isinstance(value, str):
        try:
            return Position.parse(value)
        except ValueError as error:
            raise OptionError(f"{what}: {error}") from error
    if isinstance(value, list):
        return _place_of(what, value)
    raise OptionError(f"{what}: {value!r} is none of 'earliest', 'latest', '12:5' or the bytes of a message id")


def _place_of(what: str, value: list[Any]) -> Edge | Position:
    """Return the place of a message id's bytes, signed as Java writes them or not. Raises :class:`OptionError`."""
    try:
        if not value or not all(type(each) is int and -128 <= each <= 255 for each in value):
            raise ValueError("they are not bytes")
        position = Position.of_id(bytes(each & 0xFF for each in value))
    except ValueError as error:
        raise OptionError(f"{what}: {value} are not the bytes of a message id: {error}") from error
    if position.ledger < 0:
        return "earliest"
    return "latest" if position.ledger == _LARGEST_ID else position


def read_offsets(stored: Mapping[str, object]) -> dict[str, Position]:
    """Return the positions in an offset that Spark has kept: this source's, or pulsar-spark's, which are ids as bytes.

    In both an offset is the last message that was read. Raises :class:`OptionError` if another source wrote it.
    """
    try:
        return {topic: _kept(topic, each) for topic, each in stored.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(f"the checkpoint's offset {stored!r} was not written by this source: {error}") from error


def is_of_pulsar_spark(stored: Mapping[str, object]) -> bool:
    """Whether pulsar-spark wrote an offset that Spark has kept."""
    return any(isinstance(each, list) for each in stored.values())


def write_offsets(positions: Mapping[str, Position]) -> dict[str, str]:
    """Return positions as Spark keeps them; :func:`read_offsets` reads them."""
    return {topic: _written(position) for topic, position in sorted(positions.items())}


def _written(position: Position) -> str:
    since = "" if position.since is None else f"@{position.since}"
    added = "" if position.added is None else f"#{position.added}{since}"
    lost = f"~{position.lost}" if position.lost else ""
    return f"{position}{added}{lost}"


def _kept(topic: str, value: object) -> Position:
    if isinstance(value, list):
        place = _place_of(f"the checkpoint's offset of {topic!r}", value)
        if place == "latest":
            raise ValueError(f"that of {topic!r} is the end of the topic, whenever that was")
        return BEGINNING if place == "earliest" else place
    if not isinstance(value, str) or (found := _KEPT.fullmatch(value)) is None:
        raise ValueError(f"{value!r} is no position")
    position = Position.parse(found[1]).with_lost(int(found[4] or 0))
    if found[2] is None:
        return position
    return position.at_count(int(found[2]), None if found[3] is None else int(found[3]))
