"""Metrics of the process, the event loop and the store's group commit, by way of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from heliograph_broker.messaging.broker import Broker
from heliograph_broker.storage.group import Histogram

from .loop_lag import LoopLag

_STATUS = Path("/proc/self/status")
_EOF = b"# EOF\n"


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, (float(count) for count in accumulate(histogram.buckets)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.total)


def anonymous_bytes() -> int | None:
    """Return the process's own memory without mapped files, None where the system does not say."""
    try:
        status = _STATUS.read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker, lag: LoopLag) -> None:
        self._broker = broker
        self._lag = lag

    def collect(self) -> Iterable[Metric]:
        store = self._broker.store
        stats = store.stats
        yield _histogram("heliograph_group_commit_entries", "Entries in each group.", stats.group_entries)
        yield _histogram("heliograph_group_commit_bytes", "Bytes in each group.", stats.group_bytes)
        yield _histogram("heliograph_group_commit_seconds", "Time to write and sync.", stats.sync_seconds)
        yield _histogram("heliograph_event_loop_lag_seconds", "How late timers fire.", self._lag.seconds)
        yield GaugeMetricFamily(
            "heliograph_store_pending_bytes", "Bytes taken and not yet durable.", store.pending_bytes
        )
        yield GaugeMetricFamily(
            "heliograph_store_live_bytes", "Bytes of messages that are still wanted.", store.live_bytes()
        )
        yield GaugeMetricFamily("heliograph_store_disk_full", "1 if new messages are refused.", store.disk_full)
        anonymous = anonymous_bytes()
        if anonymous is not None:
            yield GaugeMetricFamily(
                "heliograph_process_anonymous_memory_bytes",
                "Resident memory without mapped files.",
                anonymous,
            )


def process_metrics(broker: Broker, lag: LoopLag, openmetrics: bool) -> bytes:
    """Return these families in the format asked for, without an end mark."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_BrokerCollector(broker, lag))
    if not openmetrics:
        return generate_text(registry)
    text: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    return text.removesuffix(_EOF)
