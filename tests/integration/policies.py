"""A namespace with policies of its own for a test, applied as manifests are."""

from __future__ import annotations

from typing import Any

from tests.support.clients import RunningBroker, fresh_name
from tests.support.rest import apply


class PolicyNamespace:
    """``tenant/namespace`` of one's own; :meth:`set` replaces its policies (as in a Namespace's ``spec``)."""

    def __init__(self, broker: RunningBroker, **policies: Any) -> None:
        self._broker = broker
        self._tenant = fresh_name("tenant")
        self.name = f"{self._tenant}/ns"
        self.set(**policies)

    def set(self, **policies: Any) -> None:
        apply(
            self._broker.http_url,
            {"kind": "Tenant", "metadata": {"name": self._tenant}},
            {
                "kind": "Namespace",
                "metadata": {"name": f"{self._tenant}-ns"},
                "spec": {"tenantRef": {"name": self._tenant}, "name": "ns", **policies},
            },
        )

    def topic(self, local: str = "t") -> str:
        return f"persistent://{self.name}/{local}"
