"""Metrics of ``archive --follow`` for Prometheus: by topic what is left, the last success, and failures."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .topic_states import TopicStates

_LABELS = ["topic"]


class ArchiveMetrics(Collector):
    """The metrics of the states of topics."""

    def __init__(self, states: TopicStates) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield the families of ``docs/metrics.md``. A topic that was deleted has failures only."""
        lag = GaugeMetricFamily(
            "heliograph_spark_archive_lag_messages",
            "Messages that were not archived after the last visit of the topic.",
            labels=_LABELS,
        )
        success = GaugeMetricFamily(
            "heliograph_spark_archive_last_success_timestamp_seconds",
            "When the last visit began that archived all that was stored then.",
            labels=_LABELS,
        )
        failures = CounterMetricFamily(
            "heliograph_spark_archive_failures",
            "Visits of the topic that failed, since the job's start.",
            labels=_LABELS,
        )
        for topic, state in self._states.all().items():
            failures.add_metric([topic], state.failures)
            if state.lag is not None:
                lag.add_metric([topic], state.lag)
            if state.succeeded_s is not None:
                success.add_metric([topic], state.succeeded_s)
        yield from (lag, success, failures)
