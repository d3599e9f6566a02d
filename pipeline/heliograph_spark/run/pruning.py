"""Prunes topics by their name, and publish times, with the filters of a query.

Only what can be left out without looking at a message is; Spark applies every filter to the rows again. Spark 4.3 keeps
a reader with the filters that were pushed to it for the data frame's other queries, too, which is why nobody gets this
who has not asked for it (``pushDownFilters``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import datasource

from heliograph_spark.plan.timestamps import since_1970

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

TOPIC, PUBLISH_TIME = ("__topic",), ("__publishTime",)


@dataclass(slots=True)
class Pruning:
    """Bounds that every row of the result keeps; times are publish times in ms since 1970, both ends included."""

    earliest_ms: int | None = None
    latest_ms: int | None = None
    _names: list[Callable[[str], bool]] = field(default_factory=list)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pruning:
        """Return the bounds of filters that all hold; a filter about anything else bounds nothing."""
        found = cls()
        for each in filters:
            column = getattr(each, "attribute", None)
            if column == TOPIC:
                found._add_name(each)
            elif column == PUBLISH_TIME:
                found._add_time(each)
        return found

    def reads(self, topic: str) -> bool:
        """Whether rows of this partition, by its whole name, can be in the result."""
        return all(test(topic) for test in self._names)

    def _add_name(self, each: Filter) -> None:
        match each:
            case datasource.EqualTo(value=name) | datasource.EqualNullSafe(value=name):
                self._names.append(lambda topic: topic == name)
            case datasource.In(value=names):
                self._names.append(lambda topic: topic in names)
            case datasource.StringStartsWith(value=part):
                self._names.append(lambda topic: topic.startswith(part))
            case datasource.StringEndsWith(value=part):
                self._names.append(lambda topic: topic.endswith(part))
            case datasource.StringContains(value=part):
                self._names.append(lambda topic: part in topic)

    def _add_time(self, each: Filter) -> None:
        match each:
            case datasource.EqualTo(value=datetime() as at):
                self._bound(at, at)
            case datasource.In(value=times) if times and all(isinstance(at, datetime) for at in times):
                self._bound(min(times), max(times))
            case datasource.GreaterThan(value=datetime() as at) | datasource.GreaterThanOrEqual(value=datetime() as at):
                self._bound(at, None)
            case datasource.LessThan(value=datetime() as at) | datasource.LessThanOrEqual(value=datetime() as at):
                self._bound(None, at)

    def _bound(self, earliest: datetime | None, latest: datetime | None) -> None:
        if earliest is not None:
            self.earliest_ms = max(since_1970(earliest.astimezone(UTC)), self.earliest_ms or 0)
        if latest is not None:
            # One more: a time between two milliseconds is after the first.
            at = since_1970(latest.astimezone(UTC)) + 1
            self.latest_ms = at if self.latest_ms is None else min(at, self.latest_ms)
