"""The state of resources: BrokerClusters and BrokerConnections, how many of each kind are ready, why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import BROKER_CLUSTER, BROKER_CONNECTION, CLUSTER_KINDS, KINDS, full_name, key_of


@dataclass(frozen=True, slots=True)
class ResourceState:
    """A resource and its condition Ready, if it is about the spec as it is now."""

    kind: str
    namespace: str
    name: str
    ready: bool
    reason: str
    message: str


def state_of(body: dict[str, Any]) -> ResourceState:
    """Return the state of a resource; one that the operator has not reconciled in its present form is not ready."""
    _, namespace, name = key_of(body)
    found = condition(body.get("status") or {}, READY)
    if not found:
        return ResourceState(body["kind"], namespace, name, False, "NotReconciled", "the operator has not reported yet")
    generation = body["metadata"].get("generation", 0)
    if found.get("observedGeneration", generation) != generation:
        message = f"the operator has not reconciled generation {generation} of the spec yet"
        return ResourceState(body["kind"], namespace, name, False, "NotReconciled", message)
    ready = found["status"] == "True" and not body["metadata"].get("deletionTimestamp")
    return ResourceState(body["kind"], namespace, name, ready, found["reason"], found.get("message", ""))


def cluster_rows(bodies: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each BrokerCluster: namespace, name, ready, reason, brokers, version, address for clients."""
    rows: list[tuple[str, ...]] = []
    for body in bodies:
        if body["kind"] == BROKER_CLUSTER.name:
            state, status = state_of(body), body.get("status") or {}
            brokers = f"{status.get('readyReplicas', 0)}/{status.get('replicas', 0)}"
            address = (status.get("endpoints") or {}).get("broker", "-")
            ready = "True" if state.ready else "False"
            version = status.get("version") or "-"
            rows.append((state.namespace, state.name, ready, state.reason, brokers, version, address))
    return rows


def connection_rows(bodies: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each BrokerConnection: namespace, name, ready, reason, product, version, admin URL."""
    rows: list[tuple[str, ...]] = []
    for body in bodies:
        if body["kind"] == BROKER_CONNECTION.name:
            state, status = state_of(body), body.get("status") or {}
            found = (status.get("product") or "-", status.get("version") or "-")
            address = str((body.get("spec") or {}).get("adminUrl", "-"))
            rows.append((*key_of(body)[1:], "True" if state.ready else "False", state.reason, *found, address))
    return rows


def kind_rows(bodies: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each kind on brokers: full name, number of resources, number of ready ones."""
    states = [state_of(body) for body in bodies]
    total, ready = Counter(each.kind for each in states), Counter(each.kind for each in states if each.ready)
    return [(full_name(kind), str(total[kind]), str(ready[kind])) for kind in KINDS if kind not in CLUSTER_KINDS]


def not_ready(bodies: Sequence[dict[str, Any]]) -> list[ResourceState]:
    """Return the states of the resources that are not ready, parents first."""
    return [state for body in bodies if not (state := state_of(body)).ready]
