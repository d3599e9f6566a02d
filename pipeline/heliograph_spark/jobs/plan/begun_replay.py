"""The state of a replay that its checkpoint keeps: its options and messages at the beginning, and its producer name.

The messages are numbered in the order in which they go to each partition of the target. That order follows from the
options and from the set of messages, so with the same ones each message has the same number in every run, and the last
number that a partition has stored says where to go on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from heliograph_spark.plan.errors import JobError, OptionError
from heliograph_spark.plan.positions import Position, read_offsets, write_offsets

#: The values of each option as the command takes them, by its name; none where it was not given, and an empty one for
#: an option that takes none.
Given = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """The messages of one original partition: the last one, how many they are, and a checksum of their positions."""

    last: Position
    messages: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a table from which messages are read: the table's UUID, and the snapshot's id."""

    table: str
    id: int


@dataclass(frozen=True, slots=True)
class BegunReplay:
    """``ends`` has the end of each partition of the target before the first message was sent to it.

    ``snapshot`` is None for an archive in files. Errors name ``where`` this is kept.
    """

    producer: str
    options: Given
    parts: Mapping[str, Part]
    ends: Mapping[str, Position]
    snapshot: Snapshot | None = None

    def to_json(self) -> str:
        parts = {name: [str(part.last), part.messages, part.checksum] for name, part in sorted(self.parts.items())}
        options = {name: list(values) for name, values in sorted(self.options.items())}
        kept = {"producer": self.producer, "options": options, "parts": parts, "ends": write_offsets(self.ends)}
        if self.snapshot is not None:
            kept["snapshot"] = {"table": self.snapshot.table, "id": self.snapshot.id}
        return json.dumps(kept, indent=1)

    @classmethod
    def from_json(cls, text: str, where: str) -> BegunReplay:
        """Read what :meth:`to_json` wrote. Raises :class:`JobError` if it did not."""
        try:
            kept = json.loads(text)
            parts = {
                name: Part(Position.parse(last), int(messages), int(checksum))
                for name, (last, messages, checksum) in kept["parts"].items()
            }
            options = {str(name): tuple(map(str, values)) for name, values in kept["options"].items()}
            read = kept.get("snapshot")
            snapshot = None if read is None else Snapshot(str(read["table"]), int(read["id"]))
            return cls(str(kept["producer"]), options, parts, read_offsets(kept["ends"]), snapshot)
        except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
            raise JobError(f"{where}: this is no state of a replay: {error}") from error

    def check_options(self, given: Given, where: str) -> None:
        """Raise :class:`OptionError`, naming the option and both values, if one is not as it was at the beginning."""
        for name in sorted({*self.options, *given}):
            before, now = self.options.get(name, ()), given.get(name, ())
            if before != now:
                raise OptionError(
                    f"{name}: {where}: the replay was begun {_written(name, before)}, and now it is run"
                    f" {_written(name, now)}; give the same options, or another --checkpoint to begin again"
                )

    def check_target(self, topic: str, partitions: Collection[str], where: str) -> None:
        """Raise :class:`JobError` if the target has other partitions: keys would go to others of them."""
        if set(partitions) != set(self.ends):
            raise JobError(
                f"{where}: the partitions of {topic} were {len(self.ends)} when the replay was begun, and are"
                f" {len(partitions)}: keys would go to other partitions; another --checkpoint begins again"
            )

    def check_parts(self, found: Mapping[str, Part], where: str) -> None:
        """Raise :class:`JobError` if the archive does not have the messages any more, all of them and no others."""
        for name in sorted({*self.parts, *found}):
            before, now = self.parts.get(name), found.get(name)
            if before != now:
                raise JobError(
                    f"{where}: the replay was begun with {_counted(before)} of {name}, and the archive has"
                    f" {_counted(now)} of them: which ones were sent cannot be known; another --checkpoint begins again"
                )


def _written(name: str, values: tuple[str, ...]) -> str:
    return "with " + " ".join(f"{name} {value}".rstrip() for value in values) if values else f"without {name}"


def _counted(part: Part | None) -> str:
    return "no messages" if part is None else f"{part.messages} messages (checksum {part.checksum})"
