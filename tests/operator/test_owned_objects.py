"""The objects of a BrokerCluster and of an archive are watched: what others change is repaired without a poll.

No pod runs here. The operator refreshes and looks again later than any test waits, so only a watch can tell it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .resources import Resources

#: Seconds; the operator looks at everything again after 300.
LATER = "250"
WITHIN_S = 100.0
#: Without brokers, the BrokerCluster is as it should be: nothing is waited for. Quantities as people write them.
SPEC: dict[str, Any] = {
    "replicas": 0,
    "serviceType": "ClusterIP",
    "resources": {
        "requests": {"cpu": 0.5, "memory": 1073741824},
        "limits": {"cpu": 1, "memory": "1024Mi", "ephemeral-storage": "1500M"},
    },
}
STATEFUL_SET = ("statefulset", "main")
#: Each object, and a JSON patch with which somebody else changes it.
CHANGES: dict[tuple[str, str], list[dict[str, Any]]] = {
    STATEFUL_SET: [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "example.org/other:1"}],
    ("service", "main"): [{"op": "replace", "path": "/spec/ports/0/port", "value": 1}],
    ("service", "main-admin"): [{"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1managed-by"}],
    ("configmap", "main"): [{"op": "add", "path": "/data", "value": {"HELIOGRAPH_X": "1"}}],
    ("serviceaccount", "main-brokers"): [{"op": "remove", "path": "/metadata/ownerReferences"}],
    ("networkpolicy", "main"): [{"op": "add", "path": "/spec/ingress/-", "value": {}}],
    ("poddisruptionbudget", "main"): [{"op": "replace", "path": "/spec/maxUnavailable", "value": 7}],
}

patient = pytest.mark.parametrize("operator", [("--refresh", LATER)], indirect=True)


class Owned:
    """The objects of BrokerCluster ``main``."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def kubectl(self, *arguments: str) -> str:
        return self.resources.cluster.kubectl(*arguments, "-n", self.resources.namespace)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.resources.cluster.kubectl_json("get", kind, name, "-n", self.resources.namespace)
        return found

    def ours(self, kind: str, name: str) -> dict[str, Any]:
        """Return the part of an object that the operator is about."""
        found = self.get(kind, name)
        metadata = found["metadata"]
        named = ("spec", "data", "automountServiceAccountToken")
        parts: dict[str, Any] = {part: found[part] for part in named if part in found}
        # Somebody else may have removed either, and the operator not yet repaired it.
        return {**parts, "labels": metadata.get("labels"), "owners": metadata.get("ownerReferences")}

    def wait_stopped(self) -> None:
        self.resources.wait_reason("BrokerCluster", "main", "Stopped")


@patient
def test_what_others_change_or_delete_is_repaired(operator: OperatorProcess, resources: Resources) -> None:
    resources.apply("BrokerCluster", "main", SPEC)
    owned = Owned(resources)
    owned.wait_stopped()
    before = {each: owned.ours(*each) for each in CHANGES}
    for (kind, name), change in CHANGES.items():
        owned.kubectl("patch", kind, name, "--type=json", "-p", json.dumps(change))

    def repaired() -> bool:
        assert {each: owned.ours(*each) for each in CHANGES} == before
        return True

    resources.wait("every change is repaired", repaired, WITHIN_S)
    uids = {each: owned.get(*each)["metadata"]["uid"] for each in CHANGES}
    for kind, name in CHANGES:
        owned.kubectl("delete", kind, name, "--wait=false")

    def recreated() -> bool:
        for each in CHANGES:
            metadata = owned.get(*each)["metadata"]
            assert metadata["uid"] != uids[each], each
            assert "deletionTimestamp" not in metadata, each
        return True

    resources.wait("every object is there again", recreated, WITHIN_S)


@patient
def test_a_reconcile_of_what_is_as_it_should_be_writes_nothing(operator: OperatorProcess, resources: Resources) -> None:
    resources.apply("BrokerCluster", "main", SPEC)
    owned = Owned(resources)
    owned.wait_stopped()
    limits = owned.get(*STATEFUL_SET)["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert limits["requests"] == {"cpu": "500m", "memory": "1073741824"}

    def reconciles() -> float:
        return operator.metric("heliograph_operator_reconciles_total", kind="BrokerCluster")

    def at_rest() -> bool:
        busy = ("heliograph_operator_queue_length", "heliograph_operator_working")
        return not any(operator.metric(name) for name in busy)

    writes = -1.0
    for number in range(6):
        before = reconciles()
        # It is not the operator's business, and still makes it look.
        owned.kubectl("annotate", "--overwrite", *STATEFUL_SET, f"example.org/number={number}")
        resources.wait("the operator looks", lambda before=before: reconciles() > before)
        resources.wait("it has looked", at_rest)
        if number == 2:
            # Its own first writes have come back by the watches.
            writes = operator.writes()
    assert operator.writes() == writes
    version = owned.get(*STATEFUL_SET)["metadata"]["generation"]
    assert version == 1


@pytest.mark.parametrize("operator", [("--refresh", LATER, "--archives")], indirect=True)
def test_the_cron_job_of_an_archive_is_repaired_and_goes_with_it(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    consent = {"spec": {"archives": {"enabled": True, "volumeClaims": ["files"]}}}
    Owned(served).kubectl("patch", "bcl", "main", "--type=merge", "-p", json.dumps(consent))
    volume = {"name": "files"}
    served.family(archive={"schedule": "0 3 * * *", "path": "/archive", "volumeClaimRef": volume, "suspend": False})
    owned = Owned(served)
    cron_job = ("cronjob", "orders-archive")

    def suspended() -> bool:
        return bool(owned.get(*cron_job)["spec"]["suspend"])

    served.wait("it is there", lambda: not suspended())
    owned.kubectl("patch", *cron_job, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    served.wait("it runs again", lambda: not suspended(), WITHIN_S)
    uid = owned.get(*cron_job)["metadata"]["uid"]
    owned.kubectl("delete", *cron_job)
    served.wait("it is there again", lambda: owned.get(*cron_job)["metadata"]["uid"] != uid, WITHIN_S)
