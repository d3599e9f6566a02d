"""BrokerCluster: its pods, volumes and Services on a real Kubernetes, with the operator in the pods' network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources


@pytest.fixture
def operator(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> Iterator[OperatorInNetwork]:
    image = ("--broker-image", images["broker"], "--operator-namespace", kube_namespace, "--lease", "operator")
    process = OperatorInNetwork(tmp_path / "operator.log", cluster, kube_namespace, *image)
    process.launch()
    yield process
    process.close()
    assert "Traceback" not in process.log_tail(100_000), process.log_tail(120)


@pytest.fixture
def brokers(operator: OperatorInNetwork, resources: Resources) -> Brokers:
    resources.apply("BrokerCluster", "main", SPEC)
    found = Brokers(resources)
    found.wait_observed()
    return found


def test_a_broker_comes_up_with_its_policies_and_says_where_it_is(brokers: Brokers) -> None:
    status = brokers.get("bcl")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["endpoints"]["broker"].startswith("pulsar://main.")
    assert status["version"]
    applied = brokers.resources.condition("BrokerCluster", "main", "PoliciesApplied")
    assert applied["status"] == "True"
    brokers.resources.family()
    assert brokers.resources.condition("BrokerCluster", "main", "Progressing")["status"] == "False"


def test_what_somebody_changed_is_set_right_again_and_said(brokers: Brokers) -> None:
    brokers.kubectl("patch", "configmap", "main", "--type=merge", "-p", '{"data": {"HELIOGRAPH_X": "1"}}')
    brokers.kubectl("delete", "service", "main")
    brokers.kubectl("scale", "statefulset", "main", "--replicas=0")

    def right() -> bool:
        assert "HELIOGRAPH_X" not in brokers.get("configmap").get("data", {})
        assert brokers.get("statefulset")["spec"]["replicas"] == 1
        return bool(brokers.get("service"))

    brokers.wait("everything is as it was", right)
    said = [each for each in brokers.events() if each.startswith("DriftRepaired")]
    for expected in ("data.HELIOGRAPH_X", "Service main was gone", "spec.replicas"):
        assert any(expected in each for each in said), said


def test_a_paused_cluster_is_left_as_it_is(brokers: Brokers) -> None:
    brokers.kubectl("annotate", "bcl", "main", "heliograph.dev/paused=true")
    brokers.resources.wait_reason("BrokerCluster", "main", "Paused")
    brokers.kubectl("delete", "poddisruptionbudget", "main")
    brokers.kubectl("annotate", "bcl", "main", "heliograph.dev/paused-")
    brokers.wait("the budget is there again", lambda: brokers.get("poddisruptionbudget"))


def test_a_volume_grows_under_its_running_broker_and_never_shrinks(cluster: Cluster, brokers: Brokers) -> None:
    if cluster.is_kind:
        pytest.skip("kind's volumes cannot grow")
    before = brokers.pod_uid()
    brokers.patch({"storage": {"size": "2Gi"}})

    def grown() -> bool:
        claim = brokers.get("pvc", "data-main-0")
        assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
        [template] = brokers.get("statefulset")["spec"]["volumeClaimTemplates"]
        return bool(template["spec"]["resources"]["requests"]["storage"] == "2Gi")

    brokers.wait("volume and StatefulSet have the new size", grown)
    brokers.wait_observed()
    assert brokers.pod_uid() == before


def test_a_changed_setting_rolls_the_pod_and_a_changed_policy_does_not(brokers: Brokers) -> None:
    before = brokers.pod_uid()
    brokers.patch({"brokerDefaults": {"messageTTL": "2d"}})
    brokers.wait_observed()
    assert brokers.pod_uid() == before
    brokers.patch({"config": {"metrics_level": "broker"}})
    brokers.wait("the pod is another one", lambda: brokers.pod_uid() != before, 90)
    brokers.wait_observed()


def test_an_image_that_is_not_there_is_named_and_taking_it_back_is_enough(brokers: Brokers) -> None:
    brokers.patch({"image": "localhost/not-there:1"})
    message = brokers.resources.wait_reason("BrokerCluster", "main", "PodNotReady")
    brokers.wait(
        "the kubelet's reason is said",
        lambda: "ErrImageNeverPull" in brokers.resources.condition("BrokerCluster", "main")["message"],
    )
    assert message
    brokers.patch({"image": None})
    brokers.wait_observed()


@pytest.mark.parametrize("keep", [True, False])
def test_a_deleted_cluster_goes_with_everything_but_its_volumes(brokers: Brokers, keep: bool) -> None:
    brokers.patch({"storage": {"retainOnDelete": keep}})
    brokers.wait_observed()
    brokers.kubectl("delete", "bcl", "main", "--timeout=100s")
    kinds = "pods,statefulsets,services,networkpolicies,poddisruptionbudgets"
    brokers.wait("nothing is left", lambda: brokers.kubectl("get", kinds, "-o", "name") == "")
    left = ["persistentvolumeclaim/data-main-0"] if keep else []
    brokers.wait("the volume is as asked", lambda: brokers.kubectl("get", "pvc", "-o", "name").split() == left)


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

    cluster.wait_for("the Kubernetes namespace is gone", gone, within_s=120)
    # The fixtures' end expects it.
    cluster.kubectl("create", "namespace", namespace)


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
