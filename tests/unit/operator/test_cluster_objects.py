"""The Kubernetes objects of a BrokerCluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_objects import (
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    OWNED,
    endpoints,
    manifests,
    unwanted,
)
from heliograph_operator.decide.cluster_tls import OpenPorts
from heliograph_operator.decide.stateful_set import CONFIG_HASH, Manifest, Site, name_problem

SITE = Site("registry.test/broker:1", "cluster.test", "operators")
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


def test_a_cluster_is_nine_objects_that_go_with_it() -> None:
    everything = made()
    assert sorted(everything) == [
        "ConfigMap main",
        "NetworkPolicy main",
        "PodDisruptionBudget main",
        "Service main",
        "Service main-admin",
        "Service main-brokers",
        "Service main-metrics",
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
    for name in [name for name, each in everything.items() if each["kind"] == "Service"]:
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
    assert endpoints({"metadata": METADATA}, SITE, OpenPorts()) == {
        "broker": "pulsar://main.shop.svc.cluster.test:6650",
        "http": "http://main-admin.shop.svc.cluster.test:8080",
        "metrics": "http://main-metrics.shop.svc.cluster.test:8081/metrics",
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
        # There is no authentication, and other pods reach the broker.
        "HELIOGRAPH_INSECURE": "true",
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
    own = ["POD_NAME", "HELIOGRAPH_ADVERTISED_HOST", "HELIOGRAPH_METRICS_PORT"]
    assert [each["name"] for each in found] == [*own, "TZ"]
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


def test_an_image_may_be_named_by_its_digest() -> None:
    image = f"registry.test:5000/team/broker@sha256:{'0' * 64}"
    assert container(image=image)["image"] == image
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": METADATA, "spec": {}}
    by_default = manifests(BrokerCluster.model_validate(body), body, Site(image))[-1]
    assert by_default["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_a_broker_has_requests_and_a_limit_unless_the_resource_names_its_own() -> None:
    assert container()["resources"] == {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    assert container(resources={"requests": {"cpu": "1"}})["resources"] == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize("retained", [True, False])
def test_volumes_stay_when_the_stateful_set_is_deleted_or_scaled(retained: bool) -> None:
    spec = made(storage={"size": "1Gi", "retainOnDelete": retained})["StatefulSet main"]["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


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
    assert made(podDisruptionBudget={"maxUnavailable": 0})["PodDisruptionBudget main"]["spec"]["maxUnavailable"] == 0


def test_without_a_budget_there_is_none_and_one_that_was_there_goes() -> None:
    spec: dict[str, Any] = {"podDisruptionBudget": {"enabled": False}}
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": METADATA, "spec": spec}
    assert "PodDisruptionBudget main" not in made(**spec)
    assert unwanted(BrokerCluster.model_validate(body), body) == [(DISRUPTION_BUDGET, "main")]


OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "operators"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "heliograph", "app.kubernetes.io/component": "operator"}},
}
ARCHIVES = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "heliograph-archive"}}}
BACKUPS = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "heliograph-backup"}}}
PROMETHEUS = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
}


def let_in(*, archives: bool = True, **policy: Any) -> dict[int, Any]:
    """Return the allowed peers by port; None where everybody is allowed."""
    spec = made(networkPolicy=policy, archives={"enabled": archives})["NetworkPolicy main"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule.get("from") != [] for rule in spec["ingress"]), "an empty list would let everybody in"
    return {port["port"]: rule.get("from") for rule in spec["ingress"] for port in rule["ports"]}


def test_clients_come_from_everywhere_admins_are_the_operator_and_metrics_are_prometheus() -> None:
    assert let_in() == {6650: None, 8080: [OPERATOR, BACKUPS, ARCHIVES], 8081: [PROMETHEUS]}


def test_who_is_named_may_connect_and_nobody_else() -> None:
    shop = {"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}}
    office = {"ipBlock": {"cidr": "10.1.0.0/16"}}
    tools = {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["tools"]}]}}
    assert let_in(clients=[shop, office], admin=[tools], metrics=[tools]) == {
        6650: [ARCHIVES, shop, office],
        8080: [OPERATOR, BACKUPS, ARCHIVES, tools],
        8081: [tools],
    }


def test_an_empty_list_lets_nobody_in() -> None:
    assert let_in(clients=[], metrics=[]) == {6650: [ARCHIVES], 8080: [OPERATOR, BACKUPS, ARCHIVES]}


def test_where_archives_are_not_allowed_their_pods_are_like_any_others() -> None:
    assert let_in(archives=False) == {6650: None, 8080: [OPERATOR, BACKUPS], 8081: [PROMETHEUS]}
    assert let_in(archives=False, clients=[], metrics=[]) == {8080: [OPERATOR, BACKUPS]}


def test_brokers_connect_to_dns_only_where_its_pods_listen_too() -> None:
    [rule] = made()["NetworkPolicy main"]["spec"]["egress"]
    assert {(port["port"], port["protocol"]) for port in rule["ports"]} == {
        (53, "UDP"),
        (53, "TCP"),
        (5353, "UDP"),
        (5353, "TCP"),
    }


@pytest.mark.parametrize("issuing", [{"oidc_issuer": "https://id.example"}, {"oidc_kubernetes": True}])
def test_brokers_connect_to_issuers_of_tokens_that_they_accept(issuing: dict[str, Any]) -> None:
    config = {"auth": "oidc", "oidc_audience": "heliograph", **issuing}
    _, rule = made(config=config)["NetworkPolicy main"]["spec"]["egress"]
    assert rule == {"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]}


def test_brokers_have_a_token_of_their_own_if_they_accept_those_of_service_accounts() -> None:
    assert pod()["spec"]["automountServiceAccountToken"] is False
    config = {"auth": "oidc", "oidc_audience": "heliograph", "oidc_kubernetes": True}
    cluster = made(config=config)
    assert cluster["StatefulSet main"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    # Other pods with this account have none.
    assert cluster["ServiceAccount main-brokers"]["automountServiceAccountToken"] is False
    assert cluster["ConfigMap main"]["data"]["HELIOGRAPH_OIDC_KUBERNETES"] == "true"


def test_the_spec_switches_on_service_accounts_and_issuers() -> None:
    accepting = {
        "enabled": True,
        "serviceAccounts": {"enabled": True, "audience": "brokers"},
        "oidc": {"issuers": ["https://id.example"], "audiences": ["apps"], "roleClaim": "client_id"},
    }
    cluster = made(authentication=accepting)
    data = cluster["ConfigMap main"]["data"]
    assert data["HELIOGRAPH_AUTH"] == "token,oidc"
    assert data["HELIOGRAPH_OIDC_KUBERNETES"] == "true"
    assert data["HELIOGRAPH_OIDC_ISSUER"] == "https://id.example"
    assert data["HELIOGRAPH_OIDC_AUDIENCE"] == "apps"
    assert data["HELIOGRAPH_OIDC_AUDIENCE_BY_ISSUER"] == "kubernetes=brokers"
    assert data["HELIOGRAPH_OIDC_ROLE_CLAIM"] == "client_id"
    assert cluster["StatefulSet main"]["spec"]["template"]["spec"]["automountServiceAccountToken"] is True
    rules = cluster["NetworkPolicy main"]["spec"]["egress"]
    assert {"ports": [{"port": 1, "endPort": 65535, "protocol": "TCP"}]} in rules
    BrokerConfig.from_environment(data).check_together()
    # The settings of the config are accepted, too.
    config = {"auth": "oidc", "oidc_issuer": "https://other.example", "oidc_audience": "apps"}
    data = made(authentication=accepting, config=config)["ConfigMap main"]["data"]
    assert data["HELIOGRAPH_OIDC_ISSUER"] == "https://id.example,https://other.example"
    assert "HELIOGRAPH_OIDC_KUBERNETES" not in made(authentication={"enabled": True})["ConfigMap main"]["data"]


def test_audiences_are_by_issuer_where_the_spec_says_so() -> None:
    issuers: dict[str, Any] = {"issuers": ["https://a.example", "https://b.example"], "audiences": ["apps"]}
    issuers |= {"audiencesByIssuer": [{"issuer": "https://b.example", "audiences": ["orders", "shop"]}]}
    data = made(authentication={"enabled": True, "oidc": issuers})["ConfigMap main"]["data"]
    assert data["HELIOGRAPH_OIDC_AUDIENCE"] == "apps"
    assert data["HELIOGRAPH_OIDC_AUDIENCE_BY_ISSUER"] == "https://b.example=orders,https://b.example=shop"
    BrokerConfig.from_environment(data)
    # Each of them may have its own, and those of the config are kept.
    of_a = {"issuer": "https://a.example", "audiences": ["billing"]}
    oidc = {"issuers": issuers["issuers"], "audiencesByIssuer": [of_a, *issuers["audiencesByIssuer"]]}
    accepting = {"enabled": True, "serviceAccounts": {"enabled": True}, "oidc": oidc}
    data = made(authentication=accepting)["ConfigMap main"]["data"]
    assert "HELIOGRAPH_OIDC_AUDIENCE" not in data
    assert data["HELIOGRAPH_OIDC_AUDIENCE_BY_ISSUER"].split(",") == [
        "https://a.example=billing",
        "https://b.example=orders",
        "https://b.example=shop",
        "kubernetes=heliograph",
    ]
    BrokerConfig.from_environment(data)
    config = {"auth": "oidc", "oidc_issuer": "https://c.example", "oidc_audience_by_issuer": "https://c.example=c"}
    data = made(authentication=accepting, config=config)["ConfigMap main"]["data"]
    assert data["HELIOGRAPH_OIDC_AUDIENCE_BY_ISSUER"].endswith(",kubernetes=heliograph,https://c.example=c")
    BrokerConfig.from_environment(data)


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ({"secretRef": {"name": "private-ca"}}, {"secret": {"secretName": "private-ca", "items": "ca.crt"}}),
        (
            {"configMapRef": {"name": "private-ca", "key": "issuers.pem"}},
            {"configMap": {"name": "private-ca", "items": "issuers.pem"}},
        ),
    ],
)
def test_the_authorities_of_issuers_are_a_file_of_the_brokers(
    source: dict[str, Any], volume: dict[str, dict[str, Any]]
) -> None:
    issuers: dict[str, Any] = {"issuers": ["https://id.internal"], "audiences": ["apps"]}
    cluster = made(authentication={"enabled": True, "oidc": {**issuers, "ca": source}})
    config = BrokerConfig.from_environment(cluster["ConfigMap main"]["data"])
    assert config.oidc_ca == "/etc/heliograph/issuer-ca/ca.crt"
    template = cluster["StatefulSet main"]["spec"]["template"]["spec"]
    [(kind, expected)] = volume.items()
    entry = expected.pop("items")
    expected["items"] = [{"key": entry, "path": "ca.crt"}]
    assert {"name": "issuer-ca", kind: expected} in template["volumes"]
    mount = {"name": "issuer-ca", "mountPath": "/etc/heliograph/issuer-ca", "readOnly": True}
    assert mount in template["containers"][0]["volumeMounts"]
    # Without authorities, or without authentication, there is no such file.
    without = made(authentication={"enabled": True, "oidc": issuers})
    assert "HELIOGRAPH_OIDC_CA" not in without["ConfigMap main"]["data"]
    assert "issuer-ca" not in json.dumps(without)
    assert "issuer-ca" not in json.dumps(made(authentication={"enabled": False, "oidc": {**issuers, "ca": source}}))


def test_pods_alone_have_their_audience_as_that_of_all() -> None:
    data = made(authentication={"enabled": True, "serviceAccounts": {"enabled": True}})["ConfigMap main"]["data"]
    assert data["HELIOGRAPH_OIDC_AUDIENCE"] == "heliograph"
    assert "HELIOGRAPH_OIDC_AUDIENCE_BY_ISSUER" not in data


def test_without_a_policy_there_is_none_and_one_that_was_there_goes() -> None:
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": METADATA}
    off = {**body, "spec": {"networkPolicy": {"enabled": False}}}
    assert "NetworkPolicy main" not in made(networkPolicy={"enabled": False})
    assert unwanted(BrokerCluster.model_validate(off), off) == [(NETWORK_POLICY, "main")]
    assert unwanted(BrokerCluster.model_validate(body), body) == []


def test_only_the_client_service_leaves_the_kubernetes_cluster_and_has_the_binary_port_only() -> None:
    everything = made(serviceType="LoadBalancer", serviceAnnotations={"a": "b"})
    services = {name: each["spec"] for name, each in everything.items() if each["kind"] == "Service"}
    ports = {name: [port["port"] for port in spec["ports"]] for name, spec in services.items()}
    assert ports == {
        "Service main": [6650],
        "Service main-brokers": [6650],
        "Service main-admin": [8080],
        "Service main-metrics": [8081],
    }
    outside = [name for name, spec in services.items() if spec.get("type") not in (None, "ClusterIP")]
    assert outside == ["Service main"]
    assert services["Service main-metrics"]["clusterIP"] == services["Service main-brokers"]["clusterIP"] == "None"
    assert "annotations" not in everything["Service main-admin"]["metadata"]


def test_the_admin_service_leaves_it_when_that_is_said_in_so_many_words() -> None:
    everything = made(adminServiceType="LoadBalancer", adminServiceAnnotations={"internal": "true"})
    assert everything["Service main-admin"]["spec"]["type"] == "LoadBalancer"
    assert everything["Service main-admin"]["metadata"]["annotations"] == {"internal": "true"}
    assert everything["Service main"]["spec"]["type"] == "ClusterIP"


def test_services_have_the_address_families_there_are() -> None:
    services = [each for each in made().values() if each["kind"] == "Service"]
    assert {each["spec"]["ipFamilyPolicy"] for each in services} == {"PreferDualStack"}
    assert container()["args"][:3] == ["standalone", "--bind", "*"]


def test_every_port_of_a_service_is_a_port_of_the_broker() -> None:
    there = {port["name"]: port["containerPort"] for port in container()["ports"]}
    for each in made().values():
        for port in each["spec"]["ports"] if each["kind"] == "Service" else ():
            assert there[port["targetPort"]] == port["port"]
    variables = {each["name"]: each.get("value") for each in container()["env"]}
    assert variables["HELIOGRAPH_METRICS_PORT"] == str(there["metrics"])


def test_where_users_are_assigned_no_pod_names_one() -> None:
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": METADATA, "spec": {}}
    site = Site("broker", "cluster.test", fixed_user=False)
    found = manifests(BrokerCluster.model_validate(body), body, site)
    [security] = [
        each["spec"]["template"]["spec"]["securityContext"] for each in found if each["kind"] == "StatefulSet"
    ]
    assert security.keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"})
    assert security["runAsNonRoot"] is True


@pytest.mark.parametrize("name", ["1st", "a.b", "x" * 53])
def test_a_name_no_service_can_have_is_said_before_anything_is_made(name: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert "valid:" in problem
    assert name_problem("x" * 52) is None


def test_the_account_is_not_the_one_every_kubernetes_namespace_has() -> None:
    assert pod()["spec"]["serviceAccountName"] == "main-brokers"
    assert "ServiceAccount main-brokers" in made()
