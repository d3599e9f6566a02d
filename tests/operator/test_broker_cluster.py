"""BrokerCluster: its pods, volumes and Services on a real Kubernetes, with the operator in the pods' network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images, only_operator

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources


@contextmanager
def _running(cluster: Cluster, images: Images, namespace: str, directory: Path) -> Iterator[Brokers]:
    """Run an operator, and BrokerCluster main as it makes it."""
    image = ("--broker-image", images["broker"], "--operator-namespace", namespace, "--lease", "operator")
    process = OperatorInNetwork(directory / "operator.log", cluster, namespace, *image)
    resources = Resources(cluster, namespace)
    process.launch()
    try:
        resources.apply("BrokerCluster", "main", SPEC)
        found = Brokers(resources)
        found.wait_observed()
        yield found
    finally:
        process.close()
        resources.remove_finalizers()
    assert "Traceback" not in process.log_tail(100_000), process.log_tail(120)


@pytest.fixture(scope="module")
def lasting(
    cluster: Cluster, images: Images, definitions: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    """A BrokerCluster for tests that leave it as it was, but for its volume's size."""
    namespace = f"lasting-{time.time_ns():x}"
    with only_operator(cluster, everywhere=False):
        cluster.kubectl("create", "namespace", namespace)
        try:
            with _running(cluster, images, namespace, tmp_path_factory.mktemp("lasting")) as found:
                yield found
        finally:
            cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def brokers(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> Iterator[Brokers]:
    """A BrokerCluster for a test that ends it."""
    with _running(cluster, images, kube_namespace, tmp_path) as found:
        yield found


def test_a_broker_comes_up_with_its_policies_and_says_where_it_is(lasting: Brokers) -> None:
    status = lasting.get("bcl")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["endpoints"]["broker"].startswith("pulsar://main.")
    assert status["version"]
    applied = lasting.resources.condition("BrokerCluster", "main", "PoliciesApplied")
    assert applied["status"] == "True"
    lasting.resources.family()
    assert lasting.resources.condition("BrokerCluster", "main", "Progressing")["status"] == "False"


def test_what_somebody_changed_is_set_right_again_and_said(lasting: Brokers) -> None:
    before = lasting.pod_uid()
    lasting.kubectl("patch", "configmap", "main", "--type=merge", "-p", '{"data": {"HELIOGRAPH_X": "1"}}')
    lasting.kubectl("delete", "service", "main")
    lasting.kubectl("scale", "statefulset", "main", "--replicas=0")

    def right() -> bool:
        assert "HELIOGRAPH_X" not in lasting.get("configmap").get("data", {})
        assert lasting.get("statefulset")["spec"]["replicas"] == 1
        return bool(lasting.get("service"))

    lasting.wait("everything is as it was", right)
    output = [each for each in lasting.events() if each.startswith("DriftRepaired")]
    for expected in ("data.HELIOGRAPH_X", "recreated Service main", "spec.replicas"):
        assert any(expected in each for each in output), output
    lasting.wait("the broker that was scaled away is there again", lambda: lasting.pod_is_ready(not_uid=before))
    lasting.wait_observed()


def test_a_paused_cluster_is_left_as_it_is(lasting: Brokers) -> None:
    lasting.kubectl("annotate", "bcl", "main", "heliograph.dev/paused=true")
    lasting.resources.wait_reason("BrokerCluster", "main", "Paused")
    lasting.kubectl("delete", "poddisruptionbudget", "main")
    lasting.patch({"serviceAnnotations": {"example.org/a": "b"}})

    def looked_at() -> bool:
        ready = lasting.resources.condition("BrokerCluster", "main")
        return bool(ready["observedGeneration"] == lasting.get("bcl")["metadata"]["generation"])

    lasting.wait("the change is seen", looked_at)
    assert lasting.kubectl("get", "poddisruptionbudget", "main", "--ignore-not-found") == ""
    assert "example.org/a" not in lasting.get("service")["metadata"].get("annotations", {})
    lasting.kubectl("annotate", "bcl", "main", "heliograph.dev/paused-")
    lasting.wait("the budget is there again", lambda: lasting.get("poddisruptionbudget"))
    lasting.wait_observed()
    assert lasting.get("service")["metadata"]["annotations"]["example.org/a"] == "b"


def test_a_volume_grows_under_its_running_broker_and_never_shrinks(cluster: Cluster, lasting: Brokers) -> None:
    if cluster.is_kind:
        pytest.skip("kind's volumes cannot grow")
    before = lasting.pod_uid()
    lasting.patch({"storage": {"size": "2Gi"}})

    def grown() -> bool:
        claim = lasting.get("pvc", "data-main-0")
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
        [template] = lasting.get("statefulset")["spec"]["volumeClaimTemplates"]
        return bool(template["spec"]["resources"]["requests"]["storage"] == "2Gi")

    lasting.wait("volume and StatefulSet have the new size", grown)
    lasting.wait_observed()
    assert lasting.pod_uid() == before


def test_a_changed_setting_rolls_the_pod_and_a_changed_policy_does_not(lasting: Brokers) -> None:
    before = lasting.pod_uid()
    lasting.patch({"brokerDefaults": {"messageTTL": "2d"}})
    lasting.wait_observed()
    assert lasting.pod_uid() == before
    lasting.patch({"config": {"metrics_level": "broker"}})
    lasting.wait("the pod is another one", lambda: lasting.pod_uid() != before, 90)
    lasting.wait_observed()


def test_an_image_that_is_not_there_is_named_and_taking_it_back_is_enough(lasting: Brokers) -> None:
    before = lasting.pod_uid()
    lasting.patch({"image": "localhost/not-there:1"})
    message = lasting.resources.wait_reason("BrokerCluster", "main", "PreflightFailed")
    assert "ErrImageNeverPull" in message
    lasting.patch({"image": None})
    lasting.wait_observed()
    assert lasting.pod_uid() == before, "the broker ran on"


@pytest.mark.parametrize("keep", [True, False])
def test_a_deleted_cluster_goes_with_everything_but_its_volumes(brokers: Brokers, keep: bool) -> None:
    brokers.patch({"storage": {"retainOnDelete": keep}})
    brokers.wait_observed()
    brokers.kubectl("delete", "bcl", "main", "--timeout=100s")
    kinds = "pods,statefulsets,services,networkpolicies,poddisruptionbudgets"
    brokers.wait("nothing is left", lambda: brokers.kubectl("get", kinds, "-o", "name") == "")
    left = ["persistentvolumeclaim/data-main-0"] if keep else []
    brokers.wait("the volume is as asked", lambda: brokers.kubectl("get", "pvc", "-o", "name").split() == left)


def test_a_stateful_set_that_somebody_deletes_leaves_its_volume(brokers: Brokers) -> None:
    brokers.patch({"storage": {"retainOnDelete": False}})
    brokers.wait_observed()
    pod, volume = brokers.pod_uid(), brokers.get("pvc", "data-main-0")["metadata"]["uid"]
    brokers.kubectl("delete", "statefulset", "main", "--cascade=foreground", "--timeout=100s")
    brokers.wait("another pod is ready", lambda: brokers.pod_is_ready(not_uid=pod), 120)
    assert brokers.get("pvc", "data-main-0")["metadata"]["uid"] == volume


def test_brokers_of_a_cluster_that_is_retained_run_on_and_are_taken_over(brokers: Brokers) -> None:
    before = brokers.pod_uid()
    brokers.patch({"deletionPolicy": "Retain"})
    brokers.wait_observed()
    brokers.kubectl("delete", "bcl", "main", "--timeout=60s")
    assert brokers.get("statefulset")["metadata"].get("ownerReferences") is None
    brokers.resources.apply("BrokerCluster", "main", SPEC)
    brokers.wait_observed()
    assert brokers.pod_uid() == before


def test_a_whole_kubernetes_namespace_ends_with_its_brokers(cluster: Cluster, brokers: Brokers) -> None:
    namespace = brokers.resources.namespace
    brokers.resources.family()
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")

    def gone() -> bool:
        return not cluster.kubectl("get", "namespace", namespace, "--ignore-not-found", "-o", "name")

    cluster.wait_for("the Kubernetes namespace is gone", gone, within_s=120, namespace=namespace)
    # The fixtures' end expects it.
    cluster.kubectl("create", "namespace", namespace)


def test_an_upgrade_replaces_the_brokers_of_one_cluster_after_the_other_and_a_sidecar_runs(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    resources = Resources(cluster, kube_namespace)
    sidecar = {
        "name": "sidecar",
        "image": images["broker"],
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    more = {"first": {"podTemplate": {"spec": {"containers": [sidecar]}}}, "second": {}}

    def pods(image: str) -> dict[str, dict[str, Any]]:
        """Return the pods of both, if they are ready with this image."""
        found = {name: cluster.kubectl_json("get", "pod", f"{name}-0", "-n", kube_namespace) for name in more}
        for name, pod in found.items():
            assert pod["spec"]["containers"][0]["image"] == image, name
            statuses = pod["status"].get("containerStatuses", [])
            assert len(statuses) == len(pod["spec"]["containers"]), name
            assert all(each["ready"] for each in statuses), name
            resources.wait_ready("BrokerCluster", name)
        return found

    def run(image: str, log: str) -> OperatorInNetwork:
        process = OperatorInNetwork(tmp_path / log, cluster, kube_namespace, "--broker-image", image)
        process.launch()
        return process

    operator = run(images["broker"], "before.log")
    try:
        for name, spec in more.items():
            resources.apply("BrokerCluster", name, {**SPEC, **spec})
        found = resources.wait("both are ready", lambda: pods(images["broker"]), within_s=120)
        assert [each["name"] for each in found["first"]["spec"]["containers"]] == ["broker", "sidecar"]
        operator.close()
        after = images.tagged("broker", "next")
        operator = run(after, "after.log")
        found = resources.wait("both have the new image", lambda: pods(after), within_s=180)
    finally:
        operator.close()
        resources.remove_finalizers()
    earlier, later = sorted(found.values(), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    ready = next(each for each in earlier["status"]["conditions"] if each["type"] == "Ready")
    assert ready["lastTransitionTime"] <= later["metadata"]["creationTimestamp"]


def test_of_two_operators_one_leads_and_the_other_takes_over_when_it_is_killed(
    cluster: Cluster, definitions: None, kube_namespace: str, tmp_path: Path, resources: Resources
) -> None:
    def holder() -> str:
        lease = cluster.kubectl_json("get", "lease", "op", "-n", kube_namespace)
        return str(lease["spec"]["holderIdentity"])

    arguments = ("--operator-namespace", kube_namespace, "--lease", "op")
    first = OperatorInNetwork(tmp_path / "first.log", cluster, kube_namespace, *arguments)
    second = OperatorInNetwork(tmp_path / "second.log", cluster, kube_namespace, *arguments)
    first.start()
    led_by = holder()
    try:
        second.stand_by()
        assert holder() == led_by
        assert not second.leads()
        first.kill9()
        cluster.wait_for("the second leads", second.leads, within_s=60)
        assert holder() != led_by
    finally:
        first.close()
        second.close()


def test_an_operator_that_is_told_to_end_ends_well_and_gives_its_lease_back(
    cluster: Cluster, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    arguments = ("--operator-namespace", kube_namespace, "--lease", "op")
    only = OperatorInNetwork(tmp_path / "only.log", cluster, kube_namespace, *arguments)
    only.start()
    cluster.wait_for("it watches", lambda: cluster.kubectl("get", "lease", "op", "-n", kube_namespace))
    assert only.terminate() == 0, only.log_tail()
    lease = cluster.kubectl_json("get", "lease", "op", "-n", kube_namespace)
    assert lease["spec"].get("holderIdentity", "") == ""
