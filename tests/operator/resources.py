"""Short ways to apply resources, and to wait for what the operator says of them."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster import Cluster, ClusterCommandError

API_VERSION = "heliograph.dev/v1alpha1"
PLURALS = {
    "Subscription": "hsub",
    "Topic": "htopic",
    "Namespace": "hns",
    "Tenant": "htenant",
    "BrokerCluster": "bcl",
    "Backup": "hbackup",
    "ScheduledBackup": "hsbackup",
    "BrokerConnection": "hconnection",
    "User": "huser",
}
WITHIN_S = 120.0


#: The resources of :meth:`Resources.family`, in an order in which they may be deleted.
FAMILY = (("Topic", "orders"), ("Namespace", "payments"), ("Tenant", "shop"))


class Resources:
    """The resources of one Kubernetes namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def cluster_at(self, name: str, http_url: str, broker_url: str = "pulsar://127.0.0.1:1") -> None:
        """Apply a BrokerCluster without pods, with the endpoints of another broker in its status."""
        self.apply("BrokerCluster", name, {}, annotations={"heliograph.dev/managed": "false"})
        self.endpoints(name, http_url, broker_url)

    def connection_to(self, name: str, http_url: str, **spec: Any) -> None:
        """Apply a BrokerConnection."""
        self.apply("BrokerConnection", name, {"adminUrl": http_url, **spec})

    def endpoints(self, name: str, http_url: str, broker_url: str = "pulsar://127.0.0.1:1") -> None:
        patch = {"status": {"endpoints": {"http": http_url, "broker": broker_url}}}
        self._kubectl("patch", "bcl", name, "--subresource=status", "--type=merge", "-p", json.dumps(patch))

    def manifest(
        self, kind: str, name: str, spec: dict[str, Any], annotations: dict[str, str] | None = None
    ) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "namespace": self.namespace}
        if annotations:
            metadata["annotations"] = annotations
        return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}

    def apply(self, kind: str, name: str, spec: dict[str, Any], annotations: dict[str, str] | None = None) -> None:
        self.cluster.apply(self.manifest(kind, name, spec, annotations))

    def tenant(self, name: str = "shop", **spec: Any) -> None:
        self.apply("Tenant", name, spec)

    def hns(self, name: str = "payments", tenant: str = "shop", **spec: Any) -> None:
        self.apply("Namespace", name, {"tenantRef": {"name": tenant}, **spec})

    def topic(self, name: str = "orders", namespace: str = "payments", **spec: Any) -> None:
        self.apply("Topic", name, {"namespaceRef": {"name": namespace}, **spec})

    def subscription(self, name: str = "billing", topic: str = "orders", **spec: Any) -> None:
        self.apply("Subscription", name, {"topicRef": {"name": topic}, **spec})

    def family(self, **spec: Any) -> None:
        """Apply Tenant shop, Namespace payments and Topic orders, and wait for them."""
        self.tenant()
        self.hns()
        self.topic(**spec)
        self.wait_ready("Topic", "orders")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.kubectl_json("get", PLURALS[kind], name, "-n", self.namespace)
        return found

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(kind, name).get("status", {})
        return found

    def condition(self, kind: str, name: str, condition: str = "Ready") -> dict[str, Any]:
        conditions = self.status(kind, name).get("conditions", [])
        return next((each for each in conditions if each["type"] == condition), {})

    def wait_ready(self, kind: str, name: str, *, within_s: float = WITHIN_S) -> None:
        self._kubectl("wait", "--for=condition=Ready", PLURALS[kind], name, f"--timeout={within_s:g}s")

    def wait_reason(self, kind: str, name: str, reason: str, condition: str = "Ready") -> str:
        """Wait until a condition has a reason; return its message."""

        def output() -> dict[str, Any]:
            found = self.condition(kind, name, condition)
            assert found.get("reason") == reason, found
            return found

        return str(self.wait(f"{kind} {name} is {reason}", output)["message"])

    def wait(self, what: str, check: Any, within_s: float = WITHIN_S) -> Any:
        return self.cluster.wait_for(what, check, within_s=within_s, namespace=self.namespace)

    def delete(self, kind: str, name: str) -> None:
        self._kubectl("delete", PLURALS[kind], name, "--wait=false")

    def is_gone(self, kind: str, name: str) -> bool:
        return self._kubectl("get", PLURALS[kind], name, "--ignore-not-found", "-o", "name") == ""

    def wait_gone(self, kind: str, name: str, *, within_s: float = WITHIN_S) -> None:
        self.wait(f"{kind} {name} is gone", lambda: self.is_gone(kind, name), within_s)

    def annotate(self, kind: str, name: str, *annotations: str) -> None:
        self._kubectl("annotate", "--overwrite", PLURALS[kind], name, *annotations)

    def events(self, name: str, reason: str) -> list[str]:
        """Return the messages of the Events about a resource."""
        selector = f"involvedObject.name={name},reason={reason}"
        items = self.cluster.kubectl_json("get", "events", "-n", self.namespace, "--field-selector", selector)["items"]
        return [item["message"] for item in items]

    def remove_finalizers(self) -> None:
        while names := self._kubectl("get", "heliograph", "-o", "name").split():
            try:
                self._kubectl("patch", *names, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
                return
            except ClusterCommandError as error:
                # One may have gone by itself meanwhile; the others are still to go.
                if "NotFound" not in str(error):
                    raise

    def _kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl(*arguments, "-n", self.namespace)
