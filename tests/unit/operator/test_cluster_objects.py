"""The Kubernetes objects of a BrokerCluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_objects import OWNED, endpoints, manifests
from heliograph_operator.decide.stateful_set import CONFIG_HASH, Manifest, Site, name_problem

SITE = Site("registry.test/broker:1", "cluster.test")
METADATA = {"name": "main", "namespace": "shop", "uid": "uid-1", "generation": 1}


def made(stated: str | None = None, **spec: Any) -> dict[str, Manifest]:
    """The manifests by kind and name."""
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": METADATA, "spec": spec}
    cluster = BrokerCluster.model_validate(body)
    return {
        f"{each['kind']} {each['metadata']['name']}": each for each in manifests(cluster, body, SITE, storage=stated)
    }


def pod(**spec: Any) -> dict[str, Any]:
    template: dict[str, Any] = made(**spec)["StatefulSet main"]["spec"]["template"]
    return template


def container(**spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = pod(**spec)["spec"]["containers"][0]
    return found


def test_a_cluster_is_seven_objects_that_go_with_it() -> None:
    everything = made()
    assert sorted(everything) == [
        "ConfigMap main",
        "NetworkPolicy main",
        "PodDisruptionBudget main",
        "Service main",
        "Service main-brokers",
        "ServiceAccount main-brokers",
        "StatefulSet main",
    ]
    for manifest in everything.values():
        assert OWNED[manifest["kind"]].api_version == manifest["apiVersion"]
        assert manifest["metadata"]["namespace"] == "shop"
        assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "heliograph-operator"
        [owner] = manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == ("uid-1", True)
        json.dumps(manifest)


def test_services_select_the_pods_of_this_cluster_only() -> None:
    everything = made(podLabels={"app.kubernetes.io/instance": "not mine", "team": "shop"})
    labels = everything["StatefulSet main"]["spec"]["template"]["metadata"]["labels"]
    assert labels["team"] == "shop"
    for name in ("Service main", "Service main-brokers"):
        selected = everything[name]["spec"]["selector"]
        assert selected["app.kubernetes.io/instance"] == "main"
        assert selected.items() <= labels.items()
    assert everything["StatefulSet main"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_a_broker_is_known_by_a_name_that_stays_ready_or_not() -> None:
    everything = made()
    headless = everything["Service main-brokers"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True
    assert everything["StatefulSet main"]["spec"]["serviceName"] == "main-brokers"
    variables = {each["name"]: each.get("value") for each in container()["env"]}
    assert variables["HELIOGRAPH_ADVERTISED_HOST"] == "$(POD_NAME).main-brokers.shop.svc.cluster.test"
    # A reference to a variable is resolved only if that one comes before it.
    assert list(variables).index("POD_NAME") < list(variables).index("HELIOGRAPH_ADVERTISED_HOST")
    assert endpoints({"metadata": METADATA}, SITE) == {
        "broker": "pulsar://main.shop.svc.cluster.test:6650",
        "http": "http://main.shop.svc.cluster.test:8080",
    }


def test_a_pod_keeps_to_the_restricted_standard() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert all("hostPath" not in volume for volume in spec["volumes"])


def test_settings_become_variables_and_a_change_of_them_rolls_the_pods() -> None:
    plain, changed = made(), made(config={"metrics_level": "broker", "tail_cache_bytes": 0})
    assert changed["ConfigMap main"]["data"] == {
        "HELIOGRAPH_METRICS_LEVEL": "broker",
        "HELIOGRAPH_TAIL_CACHE_BYTES": "0",
    }
    assert container()["envFrom"] == [{"configMapRef": {"name": "main"}}]
    before, after = (
        each["StatefulSet main"]["spec"]["template"]["metadata"]["annotations"][CONFIG_HASH]
        for each in (plain, changed)
    )
    assert before != after


def test_policies_do_not_roll_the_pods() -> None:
    assert pod(brokerDefaults={"messageTTL": "1d"}) == pod()


def test_variables_that_are_the_operators_are_not_overruled() -> None:
    env = [{"name": "HELIOGRAPH_ADVERTISED_HOST", "value": "elsewhere"}, {"name": "TZ", "value": "UTC"}]
    found = container(env=env)["env"]
    assert [each["name"] for each in found] == ["POD_NAME", "HELIOGRAPH_ADVERTISED_HOST", "TZ"]
    assert "elsewhere" not in json.dumps(found)


def test_a_secret_as_a_variable_is_passed_on_as_it_is() -> None:
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert secret in container(env=[secret])["env"]


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("nodeSelector", {"disk": "ssd"}, "nodeSelector"),
        ("tolerations", [{"key": "dedicated", "operator": "Exists"}], "tolerations"),
        ("affinity", {"nodeAffinity": {}}, "affinity"),
        ("topologySpreadConstraints", [{"maxSkew": 1}], "topologySpreadConstraints"),
        ("priorityClassName", "high", "priorityClassName"),
        ("terminationGracePeriodSeconds", 5, "terminationGracePeriodSeconds"),
        ("imagePullSecrets", [{"name": "pull"}], "imagePullSecrets"),
    ],
)
def test_what_is_said_of_the_pod_is_in_the_pod(field: str, value: Any, where: str) -> None:
    assert pod(**{field: value})["spec"][where] == value
    assert field == "terminationGracePeriodSeconds" or where not in pod()["spec"]


def test_the_image_is_the_operators_unless_the_resource_names_one() -> None:
    assert container()["image"] == "registry.test/broker:1"
    named = container(image="mine:2", imagePullPolicy="Never", resources={"limits": {"memory": "1Gi"}})
    assert (named["image"], named["imagePullPolicy"]) == ("mine:2", "Never")
    assert named["resources"] == {"limits": {"memory": "1Gi"}}


def test_volumes_stay_unless_they_are_asked_to_go() -> None:
    kept = made()["StatefulSet main"]["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    asked = made(storage={"size": "1Gi", "retainOnDelete": False})["StatefulSet main"]["spec"]
    assert asked["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_the_stated_size_of_the_volume_stays_when_it_is_given() -> None:
    def stated(storage: str | None) -> str:
        [claim] = made(storage)["StatefulSet main"]["spec"]["volumeClaimTemplates"]
        size: str = claim["spec"]["resources"]["requests"]["storage"]
        return size

    assert stated(None) == "10Gi"
    assert stated("7Gi") == "7Gi"


def test_a_broker_may_be_moved_by_those_who_maintain_nodes() -> None:
    budget = made()["PodDisruptionBudget main"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_brokers_are_reached_at_their_ports_and_reach_nothing_but_names() -> None:
    policy = made()["NetworkPolicy main"]["spec"]
    assert [port["port"] for rule in policy["ingress"] for port in rule["ports"]] == [6650, 8080]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


@pytest.mark.parametrize("name", ["1st", "a.b", "x" * 53])
def test_a_name_no_service_can_have_is_said_before_anything_is_made(name: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert "valid:" in problem
    assert name_problem("x" * 52) is None


def test_the_account_is_not_the_one_every_kubernetes_namespace_has() -> None:
    assert pod()["spec"]["serviceAccountName"] == "main-brokers"
    assert "ServiceAccount main-brokers" in made()
