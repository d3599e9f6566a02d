"""Resources as the API server gives them, for tests without one."""

from __future__ import annotations

from typing import Any


def body(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    own = {"name": name, "namespace": "team", "uid": f"{kind}-{name}", "generation": 1, "resourceVersion": "1"}
    own |= {"creationTimestamp": "2026-01-01T00:00:00Z"} | metadata
    return {"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": own, "spec": spec or {}}


def cluster(name: str = "main", http: str = "http://broker", **metadata: Any) -> dict[str, Any]:
    found = body("BrokerCluster", name, **metadata)
    return {**found, "status": {"endpoints": {"http": http}}} if http else found


def tenant(name: str = "shop", **spec: Any) -> dict[str, Any]:
    return body("Tenant", name, spec)


def namespace(name: str = "payments", tenant_name: str = "shop", **spec: Any) -> dict[str, Any]:
    return body("Namespace", name, {"tenantRef": {"name": tenant_name}, **spec})


def topic(name: str = "orders", namespace_name: str = "payments", **spec: Any) -> dict[str, Any]:
    return body("Topic", name, {"namespaceRef": {"name": namespace_name}, **spec})


def subscription(name: str = "billing", topic_name: str = "orders", **spec: Any) -> dict[str, Any]:
    return body("Subscription", name, {"topicRef": {"name": topic_name}, **spec})
