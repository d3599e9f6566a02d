"""The metrics of resources, read from the cache at each scrape: readiness, rollouts, archives and backups.

Ten thousand Topics that are ready are one series: resources are counted by kind, status and reason, and only those that
are not ready have a series of their own, up to a limit.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .decide.backup_schedule import SCHEDULE
from .decide.backup_state import FAILED, is_over, phase_of
from .decide.cluster_status import PROGRESSING
from .objects.conditions import ARCHIVED, READY, Reason, condition
from .objects.kinds import BACKUP, BROKER_CLUSTER, KINDS, SCHEDULED_BACKUP, TOPIC, Body, Key
from .objects.resource_cache import ResourceCache

#: Resources of a kind that are shown one by one while they are not ready: those that have waited longest.
MOST_SHOWN: Final = 100
#: The counts of brokers: its label, and the field of the BrokerCluster's status.
_BROKERS: Final = (("found", "replicas"), ("ready", "readyReplicas"), ("updated", "updatedReplicas"))


class ResourceMetrics(Collector):
    """Collects the metrics of all cached resources. An operator that does not lead caches none."""

    def __init__(self, cache: ResourceCache) -> None:
        self._cache = cache

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples; the cache is not read."""
        return _Families().all()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with a sample for each value."""
        families = _Families()
        for kind in KINDS:
            bodies = [(key, body) for key in self._cache.keys(kind) if (body := self._cache.get(key)) is not None]
            families.add_readiness(kind, bodies)
            for key, body in bodies:
                if kind == BROKER_CLUSTER.name:
                    families.add_brokers(key, body)
                elif kind == TOPIC.name:
                    families.add_archive(key, body)
                elif kind == SCHEDULED_BACKUP.name:
                    families.add_schedule(key, body)
            if kind == BACKUP.name:
                families.add_backups(body for _, body in bodies)
        return families.all()


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self.resources = GaugeMetricFamily(
            "heliograph_resources",
            "Resources by the status and reason of their condition Ready",
            labels=["kind", "ready", "reason"],
        )
        self.not_ready = GaugeMetricFamily(
            "heliograph_resource_not_ready_since_timestamp_seconds",
            f"Since when a resource is not ready; at most the {MOST_SHOWN} of each kind that have waited longest",
            labels=["kind", "namespace", "name", "reason"],
        )
        self.brokers = GaugeMetricFamily(
            "heliograph_cluster_brokers",
            "Brokers of a BrokerCluster: desired, found, ready, and updated to the newest pod template",
            labels=["namespace", "cluster", "state"],
        )
        self.rollout = GaugeMetricFamily(
            "heliograph_cluster_rollout_since_timestamp_seconds",
            "Since when brokers are rolled out or volumes grow; only while they do",
            labels=["namespace", "cluster", "reason"],
        )
        self.archive_success = GaugeMetricFamily(
            "heliograph_archive_last_success_timestamp_seconds",
            "End of the last run of an archive that succeeded; before the first one, when the operator took it up",
            labels=["namespace", "topic"],
        )
        self.archive_failed = GaugeMetricFamily(
            "heliograph_archive_failed",
            "1 if the last run of an archive failed or its CronJob cannot be applied, else 0",
            labels=["namespace", "topic"],
        )
        self.backup_success = GaugeMetricFamily(
            "heliograph_backup_last_success_timestamp_seconds",
            "End of the last backup by a schedule that succeeded; before the first one, creation of the schedule",
            labels=["namespace", "cluster", "schedule"],
        )
        self.backup_failed = GaugeMetricFamily(
            "heliograph_backup_failed",
            "1 if the last backup of a BrokerCluster by a schedule, or by none, failed, else 0",
            labels=["namespace", "cluster", "schedule"],
        )

    def all(self) -> Iterator[Metric]:
        yield from (self.resources, self.not_ready, self.brokers, self.rollout)
        yield from (self.archive_success, self.archive_failed)
        yield from (self.backup_success, self.backup_failed)

    def add_readiness(self, kind: str, bodies: Iterable[tuple[Key, Body]]) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        waiting: list[tuple[str, Key, str]] = []
        for key, body in bodies:
            now = condition(body.get("status") or {}, READY)
            ready, reason = str(now.get("status", "Unknown")), str(now.get("reason", ""))
            counts[ready, reason] += 1
            if ready != "True" and reason != Reason.UNMANAGED:
                since = now.get("lastTransitionTime") or body["metadata"].get("creationTimestamp")
                waiting.append((str(since or ""), key, reason))
        for (ready, reason), count in sorted(counts.items()):
            self.resources.add_metric([kind, ready, reason], count)
        for since, key, reason in heapq.nsmallest(MOST_SHOWN, waiting):
            self.not_ready.add_metric([kind, key.namespace, key.name, reason], _seconds(since))

    def add_brokers(self, key: Key, body: Body) -> None:
        labels, status = [key.namespace, key.name], body.get("status") or {}
        self.brokers.add_metric([*labels, "desired"], int((body.get("spec") or {}).get("replicas", 1)))
        for state, field in _BROKERS:
            self.brokers.add_metric([*labels, state], int(status.get(field) or 0))
        moving = condition(status, PROGRESSING)
        if moving.get("status") == "True":
            self.rollout.add_metric([*labels, str(moving.get("reason", ""))], _seconds(moving["lastTransitionTime"]))

    def add_archive(self, key: Key, body: Body) -> None:
        status: Mapping[str, Any] = body.get("status") or {}
        verdict = condition(status, ARCHIVED)
        if not verdict or verdict.get("reason") == Reason.ARCHIVE_SUSPENDED:
            return
        labels = [key.namespace, key.name]
        ended = (status.get("archive") or {}).get("lastSuccessTime")
        self.archive_success.add_metric(labels, _seconds(ended or verdict["lastTransitionTime"]))
        self.archive_failed.add_metric(labels, float(verdict["status"] == "False"))

    def add_schedule(self, key: Key, body: Body) -> None:
        spec, status = body.get("spec") or {}, body.get("status") or {}
        if spec.get("suspend"):
            return
        ended = status.get("lastSuccessTime") or body["metadata"].get("creationTimestamp")
        self.backup_success.add_metric([key.namespace, _cluster(spec.get("template") or {}), key.name], _seconds(ended))

    def add_backups(self, bodies: Iterable[Body]) -> None:
        last: dict[tuple[str, str, str], tuple[str, bool]] = {}
        for body in bodies:
            if is_over(body):
                metadata = body["metadata"]
                schedule = (metadata.get("labels") or {}).get(SCHEDULE, "")
                labels = (metadata.get("namespace", ""), _cluster(body.get("spec") or {}), schedule)
                ended = str((body.get("status") or {}).get("completionTime") or "")
                last[labels] = max(last.get(labels, ("", False)), (ended, phase_of(body) == FAILED))
        for labels, (_, failed) in sorted(last.items()):
            self.backup_failed.add_metric(list(labels), float(failed))


def _cluster(spec: Mapping[str, Any]) -> str:
    return str((spec.get("clusterRef") or {}).get("name", ""))


def _seconds(timestamp: Any) -> float:
    """Return a time of the API server in seconds since 1970; 0 for none."""
    return datetime.fromisoformat(str(timestamp)).timestamp() if timestamp else 0.0
