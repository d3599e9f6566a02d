"""Waits for states that ``kubectl wait`` does not know."""

from __future__ import annotations

from typing import Any

from tests.support.cluster import Cluster


def conditions(resource: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The conditions of a resource, by type."""
    return {each["type"]: each for each in (resource.get("status") or {}).get("conditions", [])}


def wait_ready(cluster: Cluster, namespace: str, name: str, *, within_s: float = 180.0) -> dict[str, Any]:
    """``KIND/NAME``, once its condition Ready is True and about what its spec says now."""

    def ready() -> dict[str, Any]:
        found: dict[str, Any] = cluster.kubectl_json("get", "-n", namespace, name)
        status = conditions(found).get("Ready", {})
        generation = found["metadata"]["generation"]
        assert (status.get("status"), status.get("observedGeneration")) == ("True", generation), (status, generation)
        return found

    return cluster.wait_for(f"{name} is Ready", ready, within_s=within_s, namespace=namespace)


def wait_replaced(cluster: Cluster, namespace: str, pod: str, before: str, *, within_s: float = 240.0) -> str:
    """The uid of the pod, once it is Ready and not the one whose uid is ``before``."""

    def replaced() -> str:
        found = cluster.kubectl_json("get", "pod", pod, "-n", namespace)
        assert found["metadata"]["uid"] != before
        status = conditions(found).get("Ready", {})
        assert status.get("status") == "True", status
        return str(found["metadata"]["uid"])

    return cluster.wait_for(f"pod {pod} is a new one", replaced, within_s=within_s, namespace=namespace)


def uid(cluster: Cluster, namespace: str, name: str) -> str:
    """The uid of ``KIND/NAME``."""
    return str(cluster.kubectl_json("get", "-n", namespace, name)["metadata"]["uid"])


def events(cluster: Cluster, namespace: str, name: str, reason: str) -> list[str]:
    """The messages of the Events of a reason about an object."""
    selector = f"involvedObject.name={name},reason={reason}"
    items = cluster.kubectl_json("get", "events", "-n", namespace, "--field-selector", selector)["items"]
    return [item["message"] for item in items]


def leader(cluster: Cluster, namespace: str, lease: str) -> str:
    """The leader: the name of a pod and what tells its restarts apart; empty if nobody does."""
    found = cluster.kubectl_json("get", "-n", namespace, "lease", lease)
    return str(found["spec"].get("holderIdentity") or "")
