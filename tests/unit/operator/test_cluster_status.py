"""The status of a BrokerCluster gives Kubernetes' own reasons, not only that something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from heliograph_operator.decide.cluster_status import (
    ClusterReason,
    Pods,
    pod_problem,
    pods_of,
    policies_verdict,
    progressing,
    readiness,
)
from heliograph_operator.objects.conditions import Reason

APPLIED = policies_verdict("True", Reason.RECONCILED)
UNKNOWN = policies_verdict("Unknown", Reason.BROKER_UNREACHABLE, "no broker answers")


def pod(*, ready: bool = False, revision: str = "new", **status: Any) -> dict[str, Any]:
    conditions = [*status.pop("conditions", []), {"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "main-0", "labels": {"controller-revision-hash": revision}},
        "spec": {"nodeName": "far"},
        "status": {"phase": "Running", "conditions": conditions, **status},
    }


def waiting(reason: str, message: str = "", **more: Any) -> list[dict[str, Any]]:
    return [{"name": "broker", "state": {"waiting": {"reason": reason, "message": message}}, **more}]


def stateful_set(replicas: int = 1, seen: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": "main", "generation": 1},
        "spec": {"replicas": replicas},
        "status": {"observedGeneration": seen, "updateRevision": "new"},
    }


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient memory.",
}
CRASHED = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("found", "output"),
    [
        (pod(conditions=[UNSCHEDULABLE], phase="Pending"), "Unschedulable: 0/1 nodes are available"),
        (pod(containerStatuses=waiting("ImagePullBackOff", "Back-off pulling image x")), "ImagePullBackOff: Back-off"),
        (
            pod(containerStatuses=waiting("CrashLoopBackOff", "back-off 10s", lastState=CRASHED)),
            "CrashLoopBackOff: back-off 10s; it ended with OOMKilled (exit code 137)",
        ),
        (pod(containerStatuses=[{"state": {"running": {}}}]), "ContainerNotReady"),
        (pod(containerStatuses=[{"ready": True, "state": {"running": {}}}]), "NodeNotReady: node far does not report"),
        (
            pod(
                containerStatuses=[
                    {"ready": True, "state": {"running": {}}},
                    {"ready": False, "state": {"running": {}}},
                ]
            ),
            "ContainerNotReady",
        ),
        (pod(containerStatuses=[{"state": CRASHED}]), "OOMKilled (exit code 137)"),
        (pod(phase="Pending"), "Pending: its container has not started yet"),
        (pod(phase="Failed", reason="Evicted", message="disk pressure"), "Evicted: disk pressure"),
    ],
)
def test_a_pod_that_is_not_ready_says_why(found: dict[str, Any], output: str) -> None:
    problem = pod_problem(found)
    assert problem is not None
    assert problem.startswith(output)


def test_a_node_that_does_not_report_may_be_lost() -> None:
    problem = pod_problem(pod(containerStatuses=[{"ready": True, "state": {"running": {}}}]))
    advice = "delete the Node, or run `kubectl taint node far node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
    assert (problem or "").endswith(f"; if the node is lost, {advice}")


def test_a_pod_that_is_missing_is_explained_by_its_stateful_set() -> None:
    verdict = readiness(pods_of(stateful_set(), []), APPLIED, None, None)
    assert verdict.message == "0 of 1 pods exist; see why with `kubectl describe statefulset main`"


def test_a_pod_that_is_ready_has_no_problem_until_it_is_deleted() -> None:
    found = pod(ready=True)
    assert pod_problem(found) is None
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_problem(found) == "Terminating"
    assert pods_of(stateful_set(), [found]).ready == 0


def test_brokers_that_are_as_they_should_be_are_ready() -> None:
    pods = pods_of(stateful_set(), [pod(ready=True)])
    assert pods.rolled_out
    verdict = readiness(pods, APPLIED, None, None)
    assert (verdict.status, verdict.reason) == ("True", Reason.RECONCILED)
    assert progressing(pods).status == "False"


@pytest.mark.parametrize(
    ("pods", "reason"),
    [
        (pods_of(stateful_set(), [pod(containerStatuses=waiting("ErrImagePull"))]), ClusterReason.POD_NOT_READY),
        (pods_of(stateful_set(), []), ClusterReason.POD_MISSING),
        (pods_of(stateful_set(0), []), ClusterReason.STOPPED),
        (pods_of(stateful_set(), [pod(ready=True, revision="old")]), ClusterReason.ROLLING_OUT),
        (pods_of(stateful_set(seen=0), [pod(ready=True)]), ClusterReason.ROLLING_OUT),
    ],
)
def test_everything_else_is_not_ready_for_a_reason(pods: Pods, reason: ClusterReason) -> None:
    verdict = readiness(pods, APPLIED, None, None)
    assert (verdict.status, verdict.reason) == ("False", reason)


def test_a_broker_that_does_not_answer_is_not_ready_whatever_its_pod_says() -> None:
    verdict = readiness(pods_of(stateful_set(), [pod(ready=True)]), UNKNOWN, None, None)
    assert (verdict.status, verdict.reason) == ("False", Reason.BROKER_UNREACHABLE)


def test_what_the_api_server_refuses_comes_before_what_the_pods_say() -> None:
    pods = pods_of(stateful_set(), [pod(ready=True)])
    verdict = readiness(pods, APPLIED, (Reason.INVALID, "StatefulSet main: no"), None)
    assert (verdict.reason, verdict.message) == (Reason.INVALID, "StatefulSet main: no")


def test_while_pods_are_replaced_it_is_progressing() -> None:
    verdict = progressing(pods_of(stateful_set(), [pod(ready=True, revision="old")]))
    assert (verdict.status, verdict.reason) == ("True", ClusterReason.ROLLING_OUT)
    assert "0 of 1 broker" in verdict.message


def test_every_reason_of_a_cluster_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "install.md").read_text(encoding="utf-8")
    assert [reason for reason in ClusterReason if f"`{reason}`" not in page] == []
