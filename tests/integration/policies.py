"""A namespace with policies of its own for a test, applied as manifests are."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.integration.clients import DEADLINE_S, RunningBroker, fresh_name

_API_VERSION = "heliograph.dev/v1alpha1"


def apply(broker: RunningBroker, *resources: dict[str, Any]) -> list[dict[str, str]]:
    """Apply resources (without ``apiVersion``); return what became of each."""
    documents = "\n---\n".join(json.dumps({"apiVersion": _API_VERSION, **resource}) for resource in resources)
    request = urllib.request.Request(f"{broker.http_url}/heliograph/v1/apply", method="POST", data=documents.encode())
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        applied: list[dict[str, str]] = json.load(response)
    return applied


class PolicyNamespace:
    """``tenant/namespace`` of one's own; :meth:`set` replaces its policies (as in a Namespace's ``spec``)."""

    def __init__(self, broker: RunningBroker, **policies: Any) -> None:
        self._broker = broker
        self._tenant = fresh_name("tenant")
        self.name = f"{self._tenant}/ns"
        self.set(**policies)

    def set(self, **policies: Any) -> None:
        apply(
            self._broker,
            {"kind": "Tenant", "metadata": {"name": self._tenant}},
            {
                "kind": "Namespace",
                "metadata": {"name": f"{self._tenant}-ns"},
                "spec": {"tenantRef": {"name": self._tenant}, "name": "ns", **policies},
            },
        )

    def topic(self, local: str = "t") -> str:
        return f"persistent://{self.name}/{local}"
