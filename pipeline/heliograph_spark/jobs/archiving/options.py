"""The options of ``archive``: topics, target, sizes and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph_spark.plan.connection import check_admin
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.options import ReadOptions, read_options
from heliograph_spark.run.session import Broker


@dataclass(frozen=True, slots=True)
class Tables:
    """A catalog of Iceberg tables by its name and properties, and the namespace in it, whose levels dots divide.

    The tables have all messages or, with ``last_values``, the last value of each key.
    """

    catalog: str
    properties: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "archive"
    last_values: bool = False

    @property
    def name(self) -> str:
        """The namespace with the name of its catalog."""
        return f"{self.catalog}.{self.namespace}"


def check_archive(path: str | None, tables: Tables | None, option: str) -> None:
    """Raise :class:`OptionError` unless exactly one archive is named: in files, by this option, or in tables."""
    if (path is None) == (tables is None):
        given = "both" if path is not None else "neither"
        raise OptionError(
            f"{option} and --catalog: {given} given; valid: {option} for an archive in files, or --catalog for one in"
            " tables"
        )


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The topics to archive, and the target.

    Exactly one of ``topics`` and ``pattern`` is given, and exactly one of ``path`` and ``tables``, these with a
    ``checkpoint``; ``file_bytes`` is a file's size. A day is complete ``day_complete_after_ms`` after its end, and
    never if that is below zero.
    The files of a complete day that are smaller than half of ``merge_bytes`` are merged into files of that size.
    Complete days that ended more than ``keep_ms`` ago are removed.
    """

    broker: Broker
    path: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    subscription: str = "heliograph-archive"
    checkpoint: str | None = None
    file_bytes: int = 128 << 20
    day_complete_after_ms: int = 3_600_000
    tables: Tables | None = None
    merge_bytes: int | None = None
    keep_ms: int | None = None

    def check(self) -> None:
        """Raise :class:`OptionError` for values that are not valid, by themselves or together."""
        if bool(self.topics) == (self.pattern is not None):
            given = "both" if self.topics else "neither"
            raise OptionError(
                f"--topic and --topics-pattern: {given} given; valid: --topic NAME, which may be repeated, or"
                " --topics-pattern REGEX"
            )
        for name, value in (("--merge-to", self.merge_bytes), ("--keep", self.keep_ms)):
            if value is not None and self.day_complete_after_ms < 0:
                raise OptionError(f"{name} is for complete days, and --day-complete-after infinite makes none complete")
            if value is not None and self.tables is not None:
                raise OptionError(
                    f"{name} is for archives in files (--path); what is in tables, maintain merges and removes"
                )
        if self.tables is not None and (self.path is not None or self.checkpoint is None):
            raise OptionError("a catalog (tables, --catalog) needs a checkpoint (--checkpoint) and no path (--path)")
        if self.tables is None and self.path is None:
            raise OptionError("path (--path): is missing; it is the directory of the archive")
        for topic in self.topics or (None,):
            check_admin(self.read_options(topic=topic, pattern=self.pattern).connection)

    def read_options(self, *, topic: str | None, pattern: str | None = None) -> ReadOptions:
        """Return the options with which a topic is read. Raises :class:`OptionError`."""
        given = self.broker.source_options(topic=topic, topicsPattern=pattern)
        return read_options({"startingOffsets": "earliest"} | given, streaming=True)


@dataclass(frozen=True, slots=True)
class Following:
    """The pace of following topics: at most ``parallel`` at the same time, each once in ``interval_ms``."""

    parallel: int = 4
    interval_ms: int = 60_000
