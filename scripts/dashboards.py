"""The Grafana dashboards of the chart, made with Grafana's own builders: what each panel asks, and how it shows it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

DIRECTORY = Path(__file__).resolve().parents[1] / "charts" / "heliograph" / "dashboards"
DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
#: The selectors of a namespace's, a topic's and a broker's metrics.
IN_NAMESPACE = 'cluster=~"$cluster",namespace=~"$namespace"'
IN_TOPIC = IN_NAMESPACE + ',topic=~"$topic"'
IN_CLUSTER = 'cluster=~"$cluster"'
#: A time that stands for "not in sight" (s): thirty days.
FAR_S = 30 * 86400


class Panel(NamedTuple):
    """A panel: its title, its unit, and its queries with the legend of each; a ``stat`` shows one number."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    stat: bool = False


class Dashboard(NamedTuple):
    """A dashboard; ``variables`` are names with the queries of their values."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


def _stat(title: str, unit: str, query: str, description: str = "") -> Panel:
    return Panel(title, unit, ((query, ""),), description, stat=True)


def _time(title: str, unit: str, *queries: tuple[str, str], description: str = "") -> Panel:
    return Panel(title, unit, queries, description)


_CLUSTER = ("cluster", "label_values(pulsar_topics_count, cluster)")
_NAMESPACE = ("namespace", 'label_values(pulsar_topics_count{cluster=~"$cluster"}, namespace)')
_TOPIC = ("topic", f"label_values(pulsar_msg_backlog{{{IN_NAMESPACE}}}, topic)")

_REFUSED = "heliograph_backlog_quota_refused_publishes_total"
_EVICTED = "heliograph_backlog_quota_evicted_messages_total"
#: Counts nothing as 0, so that the panel is not empty while all is well.
_NONE = "or vector(0)"

OVERVIEW = Dashboard(
    "heliograph-overview",
    "Heliograph / Overview",
    (_CLUSTER, _NAMESPACE),
    (
        _stat("Brokers that answer", "short", f"count(heliograph_build_info) {_NONE}"),
        _stat(
            "Alerts that fire",
            "short",
            f'count(ALERTS{{alertname=~"Heliograph.*",alertstate="firing"}}) {_NONE}',
        ),
        _stat("Resources not Ready", "short", f'sum(heliograph_resources{{ready!="True"}}) {_NONE}'),
        _stat("Quotas exceeded", "short", f"sum(heliograph_backlog_quota_exceeded{{{IN_NAMESPACE}}}) {_NONE}"),
        _stat("Topics", "short", f"sum(pulsar_topics_count{{{IN_NAMESPACE}}})"),
        _stat("Subscriptions", "short", f"sum(pulsar_subscriptions_count{{{IN_NAMESPACE}}})"),
        _stat("Producers", "short", f"sum(pulsar_producers_count{{{IN_NAMESPACE}}})"),
        _stat("Consumers", "short", f"sum(pulsar_consumers_count{{{IN_NAMESPACE}}})"),
        _time(
            "Messages",
            "mps",
            (f"sum(pulsar_rate_in{{{IN_NAMESPACE}}})", "in"),
            (f"sum(pulsar_rate_out{{{IN_NAMESPACE}}})", "out"),
        ),
        _time(
            "Throughput",
            "Bps",
            (f"sum(pulsar_throughput_in{{{IN_NAMESPACE}}})", "in"),
            (f"sum(pulsar_throughput_out{{{IN_NAMESPACE}}})", "out"),
        ),
        _time(
            "Messages in backlogs",
            "short",
            (f"sum by (namespace) (pulsar_msg_backlog{{{IN_NAMESPACE}}})", "{{namespace}}"),
        ),
        _time(
            "Bytes stored",
            "bytes",
            (f"sum by (namespace) (pulsar_storage_size{{{IN_NAMESPACE}}})", "{{namespace}}"),
        ),
        _time(
            "Oldest message not acknowledged",
            "s",
            (f"max by (namespace) (pulsar_storage_backlog_age_seconds{{{IN_NAMESPACE}}})", "{{namespace}}"),
            description="-1 without a backlog.",
        ),
        _time(
            "Messages refused, evicted, expired",
            "mps",
            (
                f"sum(rate({_REFUSED}{{{IN_NAMESPACE}}}[$__rate_interval])) {_NONE}",
                "refused",
            ),
            (
                f"sum(rate({_EVICTED}{{{IN_NAMESPACE}}}[$__rate_interval])) {_NONE}",
                "evicted",
            ),
            (
                f"sum(rate(heliograph_expired_messages_total{{{IN_NAMESPACE}}}[$__rate_interval])) {_NONE}",
                "expired",
            ),
        ),
    ),
)

_USED = f"max by (topic, quota_type) (heliograph_backlog_quota_usage_ratio{{{IN_NAMESPACE}}})"
_GROWTH = f"max by (topic, quota_type) (deriv(heliograph_backlog_quota_usage_ratio{{{IN_NAMESPACE}}}[30m]))"
NAMESPACES = Dashboard(
    "heliograph-namespaces",
    "Heliograph / Namespaces and quota",
    (_CLUSTER, _NAMESPACE),
    (
        _time("Quota used, highest twenty", "percentunit", (f"topk(20, {_USED})", "{{topic}} {{quota_type}}")),
        _time(
            "Time to quota, shortest twenty",
            "s",
            (
                f"bottomk(20, clamp_max(clamp_min(1 - {_USED}, 0) / clamp_min({_GROWTH}, 1e-9), {FAR_S}))",
                "{{topic}} {{quota_type}}",
            ),
            description="At the growth of the last half hour; 30 days stand for not in sight.",
        ),
        _time(
            "Backlog and its limit by size",
            "bytes",
            (f"topk(20, sum by (topic) (pulsar_storage_backlog_size{{{IN_NAMESPACE}}}))", "{{topic}}"),
            (f"topk(20, max by (topic) (pulsar_storage_backlog_quota_limit{{{IN_NAMESPACE}}} > 0))", "{{topic}} limit"),
        ),
        _time(
            "Oldest message and its limit by age",
            "s",
            (f"topk(20, max by (topic) (pulsar_storage_backlog_age_seconds{{{IN_NAMESPACE}}}))", "{{topic}}"),
            (
                f"topk(20, max by (topic) (pulsar_storage_backlog_quota_limit_time{{{IN_NAMESPACE}}} > 0))",
                "{{topic}} limit",
            ),
        ),
        _time(
            "Quotas exceeded",
            "short",
            (
                f"sum by (namespace, quota_type) (heliograph_backlog_quota_exceeded{{{IN_NAMESPACE}}})",
                "{{namespace}} {{quota_type}}",
            ),
        ),
        _time(
            "Producers held",
            "short",
            (f"sum by (namespace) (heliograph_backlog_quota_held_producers{{{IN_NAMESPACE}}})", "{{namespace}}"),
        ),
        _time(
            "Messages refused or held",
            "mps",
            (
                f"sum by (namespace, quota_type) (rate({_REFUSED}{{{IN_NAMESPACE}}}[$__rate_interval]))",
                "{{namespace}} {{quota_type}}",
            ),
        ),
        _time(
            "Messages evicted",
            "mps",
            (
                f"sum by (namespace, quota_type) (rate({_EVICTED}{{{IN_NAMESPACE}}}[$__rate_interval]))",
                "{{namespace}} {{quota_type}}",
            ),
        ),
        _time("Topics", "short", (f"sum by (namespace) (pulsar_topics_count{{{IN_NAMESPACE}}})", "{{namespace}}")),
        _time(
            "Bytes stored", "bytes", (f"sum by (namespace) (pulsar_storage_size{{{IN_NAMESPACE}}})", "{{namespace}}")
        ),
    ),
)

_SUBSCRIPTION = "{{topic}} {{subscription}}"


def _of_subscriptions(title: str, unit: str, metric: str, *, rate: bool = False, description: str = "") -> Panel:
    series = f"{metric}{{{IN_TOPIC}}}"
    value = f"rate({series}[$__rate_interval])" if rate else series
    query = f"topk(20, sum by (topic, subscription) ({value}))"
    return _time(title, unit, (query, _SUBSCRIPTION), description=description)


TOPIC = Dashboard(
    "heliograph-topic",
    "Heliograph / Topic and subscription",
    (_CLUSTER, _NAMESPACE, _TOPIC),
    (
        _time(
            "Messages",
            "mps",
            (f"topk(20, sum by (topic) (pulsar_rate_in{{{IN_TOPIC}}}))", "{{topic}} in"),
            (f"topk(20, sum by (topic) (pulsar_rate_out{{{IN_TOPIC}}}))", "{{topic}} out"),
        ),
        _time(
            "Throughput",
            "Bps",
            (f"topk(20, sum by (topic) (pulsar_throughput_in{{{IN_TOPIC}}}))", "{{topic}} in"),
            (f"topk(20, sum by (topic) (pulsar_throughput_out{{{IN_TOPIC}}}))", "{{topic}} out"),
        ),
        _time(
            "Producers, consumers",
            "short",
            (f"topk(20, sum by (topic) (pulsar_producers_count{{{IN_TOPIC}}}))", "{{topic}} producers"),
            (f"topk(20, sum by (topic) (pulsar_consumers_count{{{IN_TOPIC}}}))", "{{topic}} consumers"),
        ),
        _time("Bytes stored", "bytes", (f"topk(20, sum by (topic) (pulsar_storage_size{{{IN_TOPIC}}}))", "{{topic}}")),
        _of_subscriptions("Backlog", "short", "pulsar_subscription_back_log"),
        _of_subscriptions("Backlog in bytes", "bytes", "heliograph_subscription_backlog_bytes"),
        _time(
            "Oldest message and message TTL",
            "s",
            (
                f"topk(20, max by (topic, subscription) (heliograph_subscription_backlog_age_seconds{{{IN_TOPIC}}}))",
                _SUBSCRIPTION,
            ),
            (
                "topk(20, max by (topic, subscription) "
                f"(heliograph_subscription_message_ttl_seconds{{{IN_TOPIC}}} >= 0))",
                _SUBSCRIPTION + " TTL",
            ),
        ),
        _of_subscriptions("Acknowledged", "mps", "pulsar_subscription_msg_ack_rate"),
        _of_subscriptions("Delivered and not acknowledged", "short", "pulsar_subscription_unacked_messages"),
        _of_subscriptions("Delivered again", "mps", "pulsar_subscription_msg_rate_redeliver"),
        _of_subscriptions("Waiting for their delivery time", "short", "pulsar_subscription_delayed"),
        _of_subscriptions("Consumers of subscriptions", "short", "pulsar_subscription_consumers_count"),
        _of_subscriptions("Expired", "mps", "heliograph_expired_messages_total", rate=True),
        _of_subscriptions(
            "Moved to the dead-letter topic", "mps", "heliograph_dead_lettered_messages_total", rate=True
        ),
        _time(
            "Time until entries are durable, mean",
            "µs",
            (
                f"topk(20, sum by (topic) (pulsar_storage_write_latency_sum{{{IN_TOPIC}}})"
                f" / clamp_min(sum by (topic) (pulsar_storage_write_latency_count{{{IN_TOPIC}}}), 1))",
                "{{topic}}",
            ),
            description="Entries of the last minute; 0 without any.",
        ),
        _time(
            "Publish rate reached",
            "short",
            (f"topk(20, sum by (topic) (pulsar_publish_rate_limit_times{{{IN_TOPIC}}}))", "{{topic}}"),
        ),
    ),
)

#: Counters end in _total in OpenMetrics only.
_LOOKUPS = '{__name__=~"pulsar_broker_lookup_'
_OF_BROKERS = "and on (instance) heliograph_build_info"
BROKER = Dashboard(
    "heliograph-broker",
    "Heliograph / Broker",
    (_CLUSTER,),
    (
        _time(
            "CPU",
            "percentunit",
            (f"rate(process_cpu_seconds_total[$__rate_interval]) {_OF_BROKERS}", "{{instance}}"),
        ),
        _time(
            "Memory",
            "bytes",
            (f"process_resident_memory_bytes {_OF_BROKERS}", "{{instance}} resident"),
            ("heliograph_process_anonymous_memory_bytes", "{{instance}} anonymous"),
            ("heliograph_tail_cache_bytes", "{{instance}} recent entries"),
        ),
        _time(
            "Event loop lag, 99th percentile",
            "s",
            (
                "histogram_quantile(0.99, sum by (instance, le) "
                "(rate(heliograph_event_loop_lag_seconds_bucket[$__rate_interval])))",
                "{{instance}}",
            ),
        ),
        _time(
            "Time to publish",
            "ms",
            (f'pulsar_broker_publish_latency{{{IN_CLUSTER},quantile=~"0.5|0.99"}}', "{{instance}} {{quantile}}"),
        ),
        _time(
            "Time to write and sync a group, 99th percentile",
            "s",
            (
                "histogram_quantile(0.99, sum by (instance, le) "
                "(rate(heliograph_group_commit_seconds_bucket[$__rate_interval])))",
                "{{instance}}",
            ),
        ),
        _time(
            "Entries in a group, mean",
            "short",
            (
                "sum by (instance) (rate(heliograph_group_commit_entries_sum[$__rate_interval]))"
                " / sum by (instance) (rate(heliograph_group_commit_entries_count[$__rate_interval]))",
                "{{instance}}",
            ),
        ),
        _time(
            "Volume",
            "bytes",
            ("heliograph_store_disk_bytes", "{{instance}} used"),
            ("heliograph_store_disk_free_bytes", "{{instance}} free"),
            ("heliograph_store_live_bytes", "{{instance}} messages"),
        ),
        _time(
            "Time until the volume is full",
            "s",
            (
                "clamp_max(heliograph_store_disk_free_bytes"
                f" / clamp_min(-deriv(heliograph_store_disk_free_bytes[1h]), 1), {FAR_S})",
                "{{instance}}",
            ),
            description="At the growth of the last hour; 30 days stand for not in sight.",
        ),
        _time("Connections", "short", ("heliograph_connections", "{{instance}} {{port}}")),
        _time(
            "Connections refused or cut",
            "cps",
            (
                f"sum by (limit) (rate(heliograph_connections_refused_total[$__rate_interval])) {_NONE}",
                "refused {{limit}}",
            ),
            (f"sum by (reason) (rate(heliograph_connections_cut_total[$__rate_interval])) {_NONE}", "cut {{reason}}"),
        ),
        _time(
            "Time until certificates expire",
            "s",
            (
                f"heliograph_tls_certificate_expiry_timestamp_seconds - time() {_NONE}",
                "{{instance}} {{certificate}}",
            ),
            description="0 without TLS.",
        ),
        _time("Memory of connections", "bytes", ("heliograph_connection_memory_bytes", "{{instance}}")),
        _time("Not durable yet", "bytes", ("heliograph_store_pending_bytes", "{{instance}}")),
        _time(
            "Entries written and read",
            "cps",
            (f"pulsar_broker_storage_write_rate{{{IN_CLUSTER}}}", "{{instance}} written"),
            (f"pulsar_broker_storage_read_rate{{{IN_CLUSTER}}}", "{{instance}} read"),
            (f"pulsar_broker_storage_read_cache_misses_rate{{{IN_CLUSTER}}}", "{{instance}} read from disk"),
        ),
        _time(
            "Lookups",
            "cps",
            (f'rate({_LOOKUPS}answers(_total)?",{IN_CLUSTER}}}[$__rate_interval])', "{{instance}} answered"),
            (f'rate({_LOOKUPS}failures(_total)?",{IN_CLUSTER}}}[$__rate_interval])', "{{instance}} refused"),
        ),
        _time("Duties suspended", "short", (f"count by (duty) (heliograph_suspended) {_NONE}", "{{duty}}")),
        _time(
            "Damage",
            "short",
            ("heliograph_damaged_segments", "{{instance}} segments"),
            ("heliograph_lost_entries", "{{instance}} lost entries"),
            ("heliograph_scrub_damaged_ranges", "{{instance}} ranges found by the scrub"),
        ),
    ),
)

_IN_KUBERNETES = 'namespace=~"$namespace"'
_OF_CLUSTERS = _IN_KUBERNETES + ',cluster=~"$cluster"'
OPERATOR = Dashboard(
    "heliograph-operator",
    "Heliograph / Operator",
    (
        ("namespace", "label_values(heliograph_cluster_brokers, namespace)"),
        ("cluster", 'label_values(heliograph_cluster_brokers{namespace=~"$namespace"}, cluster)'),
    ),
    (
        _stat("Operators that lead", "short", "sum(heliograph_operator_leader)"),
        _stat("Operators", "short", "count(heliograph_operator_leader)"),
        _stat("Resources", "short", "sum(heliograph_resources)"),
        _stat("Resources not Ready", "short", f'sum(heliograph_resources{{ready!="True"}}) {_NONE}'),
        _time(
            "Resources by status of Ready",
            "short",
            ("sum by (kind, ready, reason) (heliograph_resources)", "{{kind}} {{ready}} {{reason}}"),
        ),
        _time(
            "Not Ready since",
            "s",
            (
                "topk(20, max by (kind, namespace, name, reason) "
                f"(time() - heliograph_resource_not_ready_since_timestamp_seconds{{{_IN_KUBERNETES}}})) {_NONE}",
                "{{kind}} {{namespace}}/{{name}} {{reason}}",
            ),
        ),
        _time(
            "Brokers",
            "short",
            (
                f"max by (namespace, cluster, state) (heliograph_cluster_brokers{{{_OF_CLUSTERS}}})",
                "{{namespace}}/{{cluster}} {{state}}",
            ),
        ),
        _time(
            "Rollouts under way",
            "s",
            (
                "max by (namespace, cluster, reason) "
                f"(time() - heliograph_cluster_rollout_since_timestamp_seconds{{{_OF_CLUSTERS}}}) {_NONE}",
                "{{namespace}}/{{cluster}} {{reason}}",
            ),
        ),
        _time(
            "Age of the last archive",
            "s",
            (
                "max by (namespace, topic) "
                f"(time() - heliograph_archive_last_success_timestamp_seconds{{{_IN_KUBERNETES}}}) {_NONE}",
                "{{namespace}}/{{topic}}",
            ),
            description="0 without archives.",
        ),
        _time(
            "Archives that fail",
            "short",
            (f"sum by (namespace) (heliograph_archive_failed{{{_IN_KUBERNETES}}}) {_NONE}", "{{namespace}}"),
        ),
        _time(
            "Age of the last backup",
            "s",
            (
                "max by (namespace, cluster, schedule) "
                f"(time() - heliograph_backup_last_success_timestamp_seconds{{{_OF_CLUSTERS}}}) {_NONE}",
                "{{namespace}}/{{cluster}} {{schedule}}",
            ),
            description="0 without scheduled backups.",
        ),
        _time(
            "Reconciles",
            "cps",
            (
                "sum by (kind, result) (rate(heliograph_operator_reconciles_total[$__rate_interval]))",
                "{{kind}} {{result}}",
            ),
        ),
        _time(
            "Reconciles that fail",
            "cps",
            (
                f"sum by (kind, reason) (rate(heliograph_operator_reconcile_errors_total[$__rate_interval])) {_NONE}",
                "{{kind}} {{reason}}",
            ),
        ),
        _time(
            "Duration of reconciles, 99th percentile",
            "s",
            (
                "histogram_quantile(0.99, sum by (kind, le) "
                "(rate(heliograph_operator_reconcile_duration_seconds_bucket[$__rate_interval])))",
                "{{kind}}",
            ),
        ),
        _time(
            "Queue",
            "short",
            ("sum(heliograph_operator_queue_length)", "due"),
            ("sum(heliograph_operator_working)", "being reconciled"),
        ),
        _time(
            "Drift repaired",
            "cps",
            (f"sum by (kind) (rate(heliograph_operator_drift_repaired_total[$__rate_interval])) {_NONE}", "{{kind}}"),
        ),
        _time(
            "Requests to brokers",
            "cps",
            (
                f"sum by (result) (rate(heliograph_operator_broker_requests_total[$__rate_interval])) {_NONE}",
                "{{result}}",
            ),
        ),
        _time(
            "Requests to the API server",
            "cps",
            (
                "sum by (verb, resource) (rate(heliograph_operator_kubernetes_requests_total[$__rate_interval]))",
                "{{verb}} {{resource}}",
            ),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, NAMESPACES, TOPIC, BROKER, OPERATOR)


def _variables(made: Dashboard) -> Iterator[builders.DatasourceVariable | builders.QueryVariable]:
    yield builders.DatasourceVariable("datasource").type("prometheus")
    for name, query in made.variables:
        yield (
            builders.QueryVariable(name)
            .datasource(DATASOURCE)
            .query(query)
            .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
        )


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel:
    targets = [
        prometheus.Dataquery().ref_id(chr(ord("A") + number)).expr(query).legend_format(legend)
        for number, (query, legend) in enumerate(panel.queries)
    ]
    if panel.stat:
        options = common_builders.ReduceDataOptions().calcs(["lastNotNull"])
        made = stat.Panel().reduce_options(options).height(4).span(6)
        for target in targets:
            made = made.with_target(target)
        return made.title(panel.title).description(panel.description).datasource(DATASOURCE).unit(panel.unit)
    drawn = timeseries.Panel().height(8).span(12).min(0).fill_opacity(10)
    for target in targets:
        drawn = drawn.with_target(target)
    return drawn.title(panel.title).description(panel.description).datasource(DATASOURCE).unit(panel.unit)


def rendered(made: Dashboard) -> str:
    """Return a dashboard as Grafana's JSON."""
    builder = builders.Dashboard(made.title).uid(made.name).tags(["heliograph"])
    builder = builder.time("now-3h", "now").refresh("30s").readonly()
    for variable in _variables(made):
        builder = builder.with_variable(variable)
    for panel in made.panels:
        builder = builder.with_panel(_panel(panel))
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(builder.build())
    return text + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the dashboards, or with ``--check`` name those that are not current; return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/generate-dashboards", description=__doc__, allow_abbrev=False)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if one is not current")
    options = parser.parse_args(arguments)
    wanted = {DIRECTORY / f"{made.name}.json": rendered(made) for made in DASHBOARDS}
    there = {path: path.read_text("utf-8") for path in sorted(DIRECTORY.glob("*.json"))}
    if options.check:
        stale = sorted(path.name for path in {*wanted, *there} if wanted.get(path) != there.get(path))
        for name in stale:
            print(f"{name} is not current: run scripts/generate-dashboards", file=sys.stderr)
        return 1 if stale else 0
    for path in there.keys() - wanted.keys():
        path.unlink()
    DIRECTORY.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
