"""The operator's metrics about resources: readiness with few series, rollouts, archives, backups; and their table."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heliograph_operator import operator_metrics
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.resource_metrics import MOST_SHOWN, ResourceMetrics
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from .bodies import body, cluster, topic

_DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
_SINCE = "2026-01-02T00:00:00Z"
_SINCE_S = datetime(2026, 1, 2, tzinfo=UTC).timestamp()


def _condition(kind: str, status: str, reason: str, since: str = _SINCE) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since}


def _with(found: dict[str, Any], *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**found, "status": {"conditions": list(conditions), **status}}


def _samples(*bodies: Mapping[str, Any]) -> list[Sample]:
    cache = ResourceCache()
    for each in bodies:
        cache.put(each)
    return [sample for metric in ResourceMetrics(cache).collect() for sample in metric.samples]


def _values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name}


def test_ten_thousand_ready_topics_are_one_series() -> None:
    ready = _condition("Ready", "True", "Reconciled")
    cache = ResourceCache()
    for number in range(10_000):
        cache.put(_with(topic(f"t{number}"), ready))
    metrics = ResourceMetrics(cache)
    began = time.process_time()
    samples = [sample for metric in metrics.collect() for sample in metric.samples]
    print(f"collecting took {1000 * (time.process_time() - began):.1f} ms of CPU")
    assert [(each.name, each.labels, each.value) for each in samples] == [
        ("heliograph_resources", {"kind": "Topic", "ready": "True", "reason": "Reconciled"}, 10_000)
    ]


def test_a_resource_that_is_not_ready_is_shown_with_its_reason_and_since_when() -> None:
    waits = _with(topic("waits"), _condition("Ready", "False", "Conflict"))
    new = body("Tenant", "new")
    samples = _samples(waits, new, _with(topic("fine"), _condition("Ready", "True", "Reconciled")))
    assert _values(samples, "heliograph_resources") == {
        ("Tenant", "Unknown", ""): 1,
        ("Topic", "True", "Reconciled"): 1,
        ("Topic", "False", "Conflict"): 1,
    }
    created = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert _values(samples, "heliograph_resource_not_ready_since_timestamp_seconds") == {
        ("Tenant", "team", "new", ""): created,
        ("Topic", "team", "waits", "Conflict"): _SINCE_S,
    }


def test_a_resource_that_is_not_managed_is_counted_and_awaited_by_nobody() -> None:
    samples = _samples(_with(topic("left"), _condition("Ready", "Unknown", "Unmanaged")))
    assert _values(samples, "heliograph_resources") == {("Topic", "Unknown", "Unmanaged"): 1}
    assert _values(samples, "heliograph_resource_not_ready_since_timestamp_seconds") == {}


def test_the_series_of_resources_that_are_not_ready_are_limited_to_those_that_waited_longest() -> None:
    def waiting(number: int) -> dict[str, Any]:
        since = f"2026-01-02T{number // 60:02}:{number % 60:02}:00Z"
        return _with(topic(f"t{number:03}"), _condition("Ready", "False", "Conflict", since))

    samples = _samples(*(waiting(number) for number in reversed(range(3 * MOST_SHOWN))))
    shown = _values(samples, "heliograph_resource_not_ready_since_timestamp_seconds")
    assert [name for _, _, name, _ in shown] == [f"t{number:03}" for number in range(MOST_SHOWN)]
    assert _values(samples, "heliograph_resources") == {("Topic", "False", "Conflict"): 3 * MOST_SHOWN}


def test_brokers_are_counted_by_state_and_a_rollout_shows_since_when_it_lasts() -> None:
    rolling = _condition("Progressing", "True", "RollingOut")
    found = _with(cluster("main"), rolling, replicas=1, readyReplicas=0, updatedReplicas=1)
    samples = _samples({**found, "spec": {"replicas": 2}})
    assert _values(samples, "heliograph_cluster_brokers") == {
        ("team", "main", "desired"): 2,
        ("team", "main", "found"): 1,
        ("team", "main", "ready"): 0,
        ("team", "main", "updated"): 1,
    }
    assert _values(samples, "heliograph_cluster_rollout_since_timestamp_seconds") == {
        ("team", "main", "RollingOut"): _SINCE_S
    }
    done = _samples(_with(cluster("main"), _condition("Progressing", "False", "RolledOut"), readyReplicas=1))
    assert _values(done, "heliograph_cluster_rollout_since_timestamp_seconds") == {}


def test_a_schedule_shows_its_last_success_and_whether_its_last_backup_failed() -> None:
    template = {"template": {"clusterRef": {"name": "main"}}}
    labels = {"labels": {"heliograph.dev/schedule": "ran"}}

    def backup(name: str, phase: str, ended: str, **metadata: Any) -> dict[str, Any]:
        found = body("Backup", name, {"clusterRef": {"name": "main"}}, **metadata)
        return {**found, "status": {"phase": phase, "completionTime": ended} if ended else {"phase": phase}}

    samples = _samples(
        body("ScheduledBackup", "new", template),
        _with(body("ScheduledBackup", "ran", template), lastSuccessTime="2026-01-03T00:00:00Z"),
        body("ScheduledBackup", "rests", {**template, "suspend": True}),
        backup("a", "Failed", "2026-01-04T00:00:00Z", **labels),
        backup("b", "Succeeded", "2026-01-03T00:00:00Z", **labels),
        backup("c", "Running", "", **labels),
        backup("d", "Failed", "2026-01-01T00:00:00Z"),
        backup("e", "Succeeded", "2026-01-02T00:00:00Z"),
    )
    created = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert _values(samples, "heliograph_backup_last_success_timestamp_seconds") == {
        ("team", "main", "new"): created,
        ("team", "main", "ran"): _SINCE_S + 86400,
    }
    assert _values(samples, "heliograph_backup_failed") == {("team", "main", "ran"): 1, ("team", "main", ""): 0}


def test_an_archive_shows_its_last_success_or_since_when_it_waits_for_one() -> None:
    ended = "2026-01-03T00:00:00Z"
    samples = _samples(
        _with(topic("new"), _condition("Archived", "Unknown", "ArchivePending"), archive={"running": False}),
        _with(topic("ran"), _condition("Archived", "True", "ArchiveSucceeded"), archive={"lastSuccessTime": ended}),
        _with(topic("fails"), _condition("Archived", "False", "ArchiveFailed"), archive={"lastSuccessTime": ended}),
        _with(topic("rests"), _condition("Archived", "Unknown", "ArchiveSuspended"), archive={}),
        topic("none"),
    )
    ended_s = _SINCE_S + 86400
    assert _values(samples, "heliograph_archive_last_success_timestamp_seconds") == {
        ("team", "new"): _SINCE_S,
        ("team", "ran"): ended_s,
        ("team", "fails"): ended_s,
    }
    failed = {("team", "new"): 0.0, ("team", "ran"): 0.0, ("team", "fails"): 1.0}
    assert _values(samples, "heliograph_archive_failed") == failed


def test_the_page_lists_each_metric_of_the_operator_with_its_labels() -> None:
    section = _DOCS.read_text().partition("## Operator\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    documented = {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert len(documented) == len(rows)
    served: dict[str, set[str]] = {}
    for metric in ResourceMetrics(ResourceCache()).describe():
        # The labels of a family without samples.
        served[metric.name] = set(metric._labelnames)  # type: ignore[attr-defined]
    for collector in list(_collectors(operator_metrics.REGISTRY)):
        [metric] = collector.describe()
        total = "_total" if metric.type == "counter" else ""
        served[metric.name + total] = set(collector._labelnames) | ({"le"} if metric.type == "histogram" else set())
    assert served == documented


def _collectors(registry: CollectorRegistry) -> set[Any]:
    return set(registry._collector_to_names)
