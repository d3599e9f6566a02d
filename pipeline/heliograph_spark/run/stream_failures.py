"""Metrics of the streaming queries that ended with an error: how many did, and what was lost where that is why."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from heliograph_spark.plan.errors import DataLossError

from .quoted_errors import quoted_error

#: Why a query ended: messages that it was to read are gone, or anything else.
Reason = Literal["loss", "other"]
_REASONS: tuple[Reason, ...] = ("loss", "other")
#: The topic and the number of entries in the text of a :class:`DataLossError`; not every one knows a number.
_TOPIC = re.compile(r"(\S+://[^\s:]+)")
_ENTRIES = re.compile(r" gone, (\d+) entr(?:y|ies) |: (\d+) of the entries after ")


class Loss(NamedTuple):
    """A loss that ended a query: the partition, and the number of its entries; None if the error does not say it."""

    topic: str
    entries: int | None


def loss_in(error: str) -> Loss | None:
    """Return the loss that the text of an exception of Spark's names; None if no loss is the reason."""
    quoted = quoted_error(error)
    if quoted is None or not quoted.is_of(DataLossError):
        return None
    topic, entries = _TOPIC.match(quoted.text), _ENTRIES.search(quoted.text)
    return Loss(topic[1] if topic else "", int(entries[1] or entries[2]) if entries else None)


class QueryFailures(Collector):
    """Counts the failed queries that read with this source, or that failed with an error of this package."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By the id of a query that runs.
        self._names: dict[str, str] = {}
        self._reads: set[str] = set()
        #: By the query's name and the reason.
        self._failures: dict[tuple[str, Reason], int] = {}
        #: By the name of a query that ended by a loss, and has not gone on since.
        self._losses: dict[str, Loss] = {}

    def started(self, query_id: str, name: str | None) -> None:
        """Take notice of a query; one without a name is called by its id."""
        with self._lock:
            self._names[query_id] = name or query_id

    def went_on(self, query_id: str, query: str) -> None:
        """Take notice that a query that reads with this source has made progress."""
        with self._lock:
            self._names[query_id] = query
            self._reads.add(query_id)
            self._losses.pop(query, None)
            for reason in _REASONS:
                self._failures.setdefault((query, reason), 0)

    def ended(self, query_id: str, error: str | None) -> bool:
        """Take notice that a query has ended, by the text of an exception if there was one; whether it was counted."""
        with self._lock:
            query, reads = self._names.pop(query_id, query_id), query_id in self._reads
            self._reads.discard(query_id)
            if error is None or not (reads or quoted_error(error)):
                return False
            loss = loss_in(error)
            for reason in _REASONS:
                self._failures.setdefault((query, reason), 0)
            self._failures[query, "other" if loss is None else "loss"] += 1
            if loss is not None:
                self._losses[query] = loss
            return True

    def collect(self) -> Iterator[Metric]:
        """Yield the families of ``docs/metrics.md``."""
        failures = CounterMetricFamily(
            "heliograph_spark_query_failures",
            "Times that a query ended with an error, since the driver's start.",
            labels=["query", "reason"],
        )
        losses = GaugeMetricFamily(
            "heliograph_spark_query_ended_by_lost_entries",
            "Entries that are gone, which ended a query that has not gone on since.",
            labels=["query", "topic"],
        )
        with self._lock:
            for (query, reason), count in self._failures.items():
                failures.add_metric([query, reason], count)
            for query, loss in self._losses.items():
                if loss.entries is not None:
                    losses.add_metric([query, loss.topic], loss.entries)
        yield from (failures, losses)
