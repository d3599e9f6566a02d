"""Metrics of the streaming queries of a driver, for Prometheus: what they have read, lost, and not read yet.

They come from the progress that Spark reports of each micro-batch: this source's offsets contain how many entries
were lost, and what it says of each partition's end contains how many are left.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.positions import read_offsets

from .stream_failures import QueryFailures


class _Series(NamedTuple):
    """The labels of a series: a query by its name, or its id if it has none, and a partition."""

    query: str
    topic: str


class StreamValues(Collector):
    """The values of this source's streaming queries, which grow by one progress of Spark's after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, int] = {}
        self._lost: dict[_Series, int] = {}
        self._lag: dict[_Series, int] = {}
        self._seen_at: dict[str, float] = {}
        #: By the id of a query and a partition: the lost entries that its last offset has.
        self._counted: dict[tuple[str, str], int] = {}
        self._names: dict[str, str] = {}

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Add one progress, as Spark writes it in JSON; sources other than this one do not count."""
        query_id = progress["id"]
        query = progress.get("name") or query_id
        with self._lock:
            for source in progress["sources"]:
                ends = _lost_entries(source.get("endOffset"))
                if ends is None:
                    continue
                self._names[query_id] = query
                self._seen_at[query] = time.time()
                self._rows[query] = self._rows.get(query, 0) + max(0, source["numInputRows"])
                starts = _lost_entries(source.get("startOffset")) or {}
                for topic, lost in ends.items():
                    before = self._counted.get((query_id, topic), starts.get(topic, 0))
                    self._counted[query_id, topic] = lost
                    series = _Series(query, topic)
                    self._lost[series] = self._lost.get(series, 0) + max(0, lost - before)
                for topic, reported in (source.get("latestOffset") or {}).items():
                    if "lag" in reported:
                        self._lag[_Series(query, topic)] = reported["lag"]

    def idled(self, query_id: str) -> None:
        """Take notice that a query found nothing new."""
        with self._lock:
            if query_id in self._names:
                query = self._names[query_id]
                self._seen_at[query] = time.time()
                self._lag |= {series: 0 for series in self._lag if series.query == query}

    def query_of(self, query_id: str) -> str | None:
        """Return how a query is called that has made progress and runs; None if it does not read with this source."""
        with self._lock:
            return self._names.get(query_id)

    def ended(self, query_id: str) -> None:
        """Take notice that a query has ended: what it read and lost stays, its lag is not known any more."""
        with self._lock:
            if (query := self._names.pop(query_id, None)) is not None:
                self._seen_at.pop(query, None)
                self._lag = {series: lag for series, lag in self._lag.items() if series.query != query}

    def collect(self) -> Iterator[Metric]:
        """Yield the families of ``docs/metrics.md``."""
        rows = CounterMetricFamily("heliograph_spark_rows", "Messages read since the driver's start.", labels=["query"])
        lost = CounterMetricFamily(
            "heliograph_spark_lost_entries",
            "Entries that were deleted before the query read them, since the driver's start.",
            labels=_Series._fields,
        )
        lag = GaugeMetricFamily(
            "heliograph_spark_lag_entries",
            "Entries that were not read when the last micro-batch was planned.",
            labels=_Series._fields,
        )
        seen = GaugeMetricFamily(
            "heliograph_spark_progress_timestamp_seconds",
            "When the last micro-batch ended, or nothing new was found.",
            labels=["query"],
        )
        with self._lock:
            for query, count in self._rows.items():
                rows.add_metric([query], count)
            for query, at in self._seen_at.items():
                seen.add_metric([query], at)
            for family, values in ((lost, self._lost), (lag, self._lag)):
                for series, number in values.items():
                    family.add_metric(series, number)
        yield from (rows, lost, lag, seen)


def _lost_entries(offset: object) -> dict[str, int] | None:
    """Return the lost entries that an offset in a progress has, by partition; None if it is another source's."""
    if not isinstance(offset, dict) or not all("://" in topic for topic in offset):
        return None
    try:
        return {topic: position.lost for topic, position in read_offsets(offset).items()}
    except OptionError:
        return None


class _Listener(StreamingQueryListener):
    """Hands to the values, and to the failures if they are counted, what Spark reports of a session's queries."""

    def __init__(self, values: StreamValues, failures: QueryFailures | None) -> None:
        self._values = values
        self._failures = failures

    def onQueryStarted(self, event: Any) -> None:
        if self._failures is not None:
            self._failures.started(str(event.id), event.name)

    def onQueryProgress(self, event: Any) -> None:
        self._values.progressed(json.loads(event.progress.json))
        self._went_on(str(event.progress.id))

    def onQueryIdle(self, event: Any) -> None:
        self._values.idled(str(event.id))
        self._went_on(str(event.id))

    def _went_on(self, query_id: str) -> None:
        if self._failures is not None and (query := self._values.query_of(query_id)) is not None:
            self._failures.went_on(query_id, query)

    def onQueryTerminated(self, event: Any) -> None:
        query_id = str(event.id)
        # The series of a query that failed stay, so that they show where it has stopped.
        if self._failures is None or not self._failures.ended(query_id, event.exception):
            self._values.ended(query_id)


class MetricsServer:
    """Serves the metrics of a session's streaming queries at ``/metrics`` of ``port`` until it is closed.

    Queries that end with an error are counted if ``failures`` says so.
    """

    def __init__(self, spark: SparkSession, port: int, address: str, *, failures: bool = True) -> None:
        self._registry = CollectorRegistry()
        values = StreamValues()
        self._registry.register(values)
        counted = QueryFailures() if failures else None
        if counted is not None:
            self._registry.register(counted)
        self._spark = spark
        self._server: WSGIServer
        self._server, self._thread = start_http_server(port, address, self._registry)
        self.port = int(self._server.server_port)
        self._listener = _Listener(values, counted)
        spark.streams.addListener(self._listener)

    def add(self, collector: Collector) -> None:
        """Serve these metrics as well."""
        self._registry.register(collector)

    def close(self) -> None:
        """End it; queries go on."""
        self._spark.streams.removeListener(self._listener)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
