"""The metrics of the whole broker, and of each namespace."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph_broker.messaging.base.histograms import LatencySummary
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.log.invariants import INVARIANTS

from .exposition import Block, Sample, Value, histogram_samples, labels
from .scrape import Scrape, Whole

#: The broker's families that are the sums of its topics' own.
_SUMS = (
    ("pulsar_broker_subscriptions_count", "pulsar_subscriptions_count"),
    ("pulsar_broker_producers_count", "pulsar_producers_count"),
    ("pulsar_broker_consumers_count", "pulsar_consumers_count"),
    ("pulsar_broker_rate_in", "pulsar_rate_in"),
    ("pulsar_broker_rate_out", "pulsar_rate_out"),
    ("pulsar_broker_throughput_in", "pulsar_throughput_in"),
    ("pulsar_broker_throughput_out", "pulsar_throughput_out"),
    ("pulsar_broker_storage_size", "pulsar_storage_size"),
    ("pulsar_broker_storage_logical_size", "pulsar_storage_logical_size"),
    ("pulsar_broker_storage_write_rate", "pulsar_storage_write_rate"),
    ("pulsar_broker_storage_read_rate", "pulsar_storage_read_rate"),
    ("pulsar_broker_storage_read_cache_misses_rate", "pulsar_storage_read_cache_misses_rate"),
    ("pulsar_broker_msg_backlog", "pulsar_msg_backlog"),
)
_LOOKUP_QUANTILES = (0.5, 0.99, 0.999, 1.0)
_PUBLISH_QUANTILES = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)
_WAIT_QUANTILES = (0.5, 0.95, 0.99, 1.0)


def _whole(value: Value) -> Value:
    """Round a sum of values with three decimals to three decimals."""
    return round(value, 3) if isinstance(value, float) else value


def broker_blocks(broker: Broker, whole: Whole) -> Iterator[Block]:
    """Yield the families that have the cluster as their only label, or nearly so."""
    cluster = broker.config.cluster_name
    own = labels(cluster=cluster)
    metrics = broker.metrics
    started = metrics.started_ms / 1000

    def gauge(name: str, value: Value) -> Block:
        return Block(name, "gauge", [("", own, value)])

    def counter(name: str, value: int) -> Block:
        return Block(name, "counter", [("_total", own, float(value)), ("_created", own, started)])

    yield gauge("pulsar_broker_topics_count", whole.topics_count)
    for name, of_topics in _SUMS:
        yield gauge(name, _whole(whole.topics.of(of_topics)))
    for name, total, label in (
        ("pulsar_broker_in_bytes_total", whole.topics.of("pulsar_in_bytes_total"), "system_topic"),
        ("pulsar_broker_out_bytes_total", whole.subscriptions.of("pulsar_out_bytes_total"), "system_subscription"),
    ):
        of_users, of_system = labels(cluster=cluster, **{label: "false"}), labels(cluster=cluster, **{label: "true"})
        yield Block(name, "total", [("", of_users, total), ("", of_system, 0)])
    evictions = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    of_types: list[Sample] = [
        ("", labels(cluster=cluster, quota_type=kind), whole.topics.of(evictions, f',quota_type="{kind}"'))
        for kind in ("size", "time")
    ]
    yield Block(evictions.replace("pulsar_", "pulsar_broker_"), "total", of_types)
    yield gauge("pulsar_broker_pending_bytes_to_dispatch", float(metrics.undelivered_bytes()))
    yield gauge("pulsar_broker_throttled_connections", float(metrics.throttled_connections()))
    yield gauge("pulsar_broker_topic_load_pending_requests", 0.0)
    yield gauge("pulsar_broker_lookup_pending_requests", 0.0)
    healed: list[Sample] = [
        ("", labels(cluster=cluster, invariant=invariant), metrics.healed_invariants.get(invariant, 0))
        for invariant in INVARIANTS
    ]
    yield Block("heliograph_healed_invariants_total", "total", healed)
    yield _summary("pulsar_broker_lookup", cluster, metrics.lookup_latency, _LOOKUP_QUANTILES)
    yield counter("pulsar_broker_lookup_answers", metrics.lookups_answered)
    yield counter("pulsar_broker_lookup_failures", metrics.lookups_failed)
    yield counter("pulsar_broker_lookup_redirects", 0)
    yield _summary("pulsar_broker_publish_latency", cluster, metrics.publish_latency, _PUBLISH_QUANTILES)
    name = "pulsar_storage_backlog_quota_check_duration_seconds"
    yield Block(name, "histogram", [*histogram_samples(metrics.policy_checks, cluster), ("_created", own, started)])
    for where in ("heap", "direct"):
        prefix = f"pulsar_broker_topic_list_{where}"
        yield gauge(f"{prefix}_memory_limit_bytes", -1.0)
        yield gauge(f"{prefix}_memory_used_bytes", 0.0)
        yield gauge(f"{prefix}_queue_max_size", -1.0)
        yield gauge(f"{prefix}_queue_size", 0.0)
        yield counter(f"{prefix}_timeout", 0)
        waits = [("", labels(cluster=cluster, quantile=str(quantile)), float("nan")) for quantile in _WAIT_QUANTILES]
        rest: list[Sample] = [("_count", own, 0.0), ("_sum", own, 0.0), ("_created", own, started)]
        yield Block(f"{prefix}_wait_time_ms", "summary", [*waits, *rest])


def _summary(name: str, cluster: str, latency: LatencySummary, quantiles: tuple[float, ...]) -> Block:
    """Return a summary in milliseconds."""
    values = latency.quantiles(quantiles)
    samples: list[Sample] = [
        ("", labels(cluster=cluster, quantile=str(quantile)), round(value * 1000, 3))
        for quantile, value in zip(quantiles, values, strict=True)
    ]
    own = labels(cluster=cluster)
    return Block(
        name, "summary", [*samples, ("_count", own, float(latency.count)), ("_sum", own, round(latency.total * 1e3, 3))]
    )


def namespace_blocks(scrape: Scrape) -> Iterator[Block]:
    """Yield the families of namespaces: at the level of topics their number only, at that of brokers nothing."""
    if scrape.level == "broker" or not scrape.namespaces:
        return
    names = {name: labels(cluster=scrape.cluster, namespace=name)[:-1] for name in scrape.namespaces}
    counts: list[Sample] = [("", f"{names[name]}}}", whole.topics_count) for name, whole in scrape.namespaces.items()]
    yield Block("pulsar_topics_count", "gauge", counts)
    if scrape.level != "namespace":
        return
    found: dict[str, Block] = {}
    for table, sums in (
        (scrape.topics, {name: whole.topics.values for name, whole in scrape.namespaces.items()}),
        (scrape.subscriptions, {name: whole.subscriptions.values for name, whole in scrape.namespaces.items()}),
    ):
        for index, column in enumerate((*table.columns, *table.zeros)):
            # Pulsar tells its own cluster's backlog from that of others it replicates to, at this level.
            more = ',remote_cluster="local"' if column.name == "pulsar_msg_backlog" else column.more
            block = found.setdefault(column.name, Block(column.name, column.kind, []))
            for name, values in sums.items():
                value = values[index] if index < len(values) else 0
                if column.whole and value is not None:
                    block.samples.append(("", f"{names[name]}{more}}}", _whole(value)))
    yield from (block for block in found.values() if block.samples)
