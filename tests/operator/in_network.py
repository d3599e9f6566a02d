"""An operator in the pods' network, and the BrokerCluster it makes pods for."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

from .resources import Resources

SPEC: dict[str, Any] = {
    "imagePullPolicy": "Never",
    "storage": {"size": "1Gi"},
    "terminationGracePeriodSeconds": 10,
    "brokerDefaults": {"messageTTL": "1d"},
}


class OperatorInNetwork(OperatorProcess):
    """An operator on this host that reaches brokers by the names of their Services, as one in a pod does."""

    def __init__(
        self,
        log: Path,
        cluster: Cluster,
        namespace: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(log, namespace, environment or cluster.environment, arguments=("--refresh", "2", *arguments))
        assert self._command[0] == sys.executable
        self._command = cluster.command_in_netns(*self._command)
        self._cluster = cluster

    def get(self, path: str) -> str:
        program = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
        return self._cluster.run_in_netns(sys.executable, "-c", program, f"http://127.0.0.1:{self.port}{path}")

    def stand_by(self) -> None:
        """Start it as one that does not lead, and wait until it is up."""
        self.launch()
        self._cluster.wait_for("the second operator is up", lambda: "operator started" in self.log_tail())

    def leads(self) -> bool:
        return "acquired leadership" in self.log_tail(1000)


class Brokers:
    """The BrokerCluster main and what is made for it."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._cluster = resources.cluster
        self._namespace = resources.namespace

    def kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl(*arguments, "-n", self._namespace)

    def get(self, kind: str, name: str = "main") -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.kubectl_json("get", kind, name, "-n", self._namespace)
        return found

    def pod_uid(self) -> str:
        return str(self.get("pod", "main-0")["metadata"]["uid"])

    def pod_is_ready(self, *, not_uid: str) -> bool:
        """Whether there is a ready pod that is not the one with this uid."""
        pod = self.get("pod", "main-0")
        ready = {"type": "Ready", "status": "True"}.items()
        conditions = pod["status"].get("conditions", [])
        return pod["metadata"]["uid"] != not_uid and any(ready <= each.items() for each in conditions)

    def patch(self, spec: dict[str, Any]) -> None:
        self.kubectl("patch", "bcl", "main", "--type=merge", "-p", json.dumps({"spec": spec}))

    def wait(self, what: str, check: Any, within_s: float = 60.0) -> None:
        self._cluster.wait_for(what, check, within_s=within_s, namespace=self._namespace)

    def wait_observed(self) -> None:
        """Wait until the status is about the spec as it is, and the brokers are Ready."""

        def observed() -> bool:
            body = self.get("bcl")
            conditions = body.get("status", {}).get("conditions", [])
            ready: dict[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
            assert ready.get("observedGeneration") == body["metadata"]["generation"], "it is not reconciled yet"
            assert ready["status"] == "True", ready
            return True

        self.wait("BrokerCluster main is Ready", observed, 120)

    def events(self) -> list[str]:
        found = self._cluster.kubectl_json("get", "events", "-n", self._namespace)["items"]
        return [f"{each['reason']}: {each['message']}" for each in found if each["source"].get("component")]
