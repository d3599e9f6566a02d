"""The Helm chart: what it renders is allowed, enough, and no more than is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import yaml
from heliograph_api.crds.definitions import DEFINITIONS
from heliograph_api.resources.model import BrokerCluster, User
from heliograph_operator.decide.cluster_objects import OWNED
from heliograph_operator.decide.cluster_objects import manifests as manifests_of
from heliograph_operator.decide.network_policy import network_policy
from heliograph_operator.decide.program_tokens import metrics_token
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.kube.permissions import (
    ARCHIVE_PERMISSIONS,
    AUTHENTICATION_PERMISSIONS,
    CONNECTION_PERMISSIONS,
    LEADER_PERMISSIONS,
    PERMISSIONS,
    TLS_PERMISSIONS,
    Permission,
)

from .conftest import CHART, PROJECT, Helm, Manifest

Grants = set[tuple[str, str, str]]
MONITORING = [
    "--api-versions=monitoring.coreos.com/v1/ServiceMonitor",
    "--api-versions=monitoring.coreos.com/v1/PrometheusRule",
]


def of_kind(manifests: Iterable[Manifest], kind: str) -> list[Manifest]:
    """Return the objects of a kind, without the ClusterRoles that Kubernetes adds to its own (:func:`aggregated`)."""
    return [each for each in manifests if each["kind"] == kind and not _aggregates(each)]


def operator_pod(manifests: Iterable[Manifest]) -> dict[str, Any]:
    [deployment] = of_kind(manifests, "Deployment")
    template: dict[str, Any] = deployment["spec"]["template"]
    return template


def granted(role: Manifest) -> Grants:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed(permissions: Iterable[Permission]) -> Grants:
    return {(each.group, each.resource, verb) for each in permissions for verb in each.verbs}


def test_helm_finds_nothing_wrong_with_the_chart(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_copied_and_generated_is_current() -> None:
    for file in sorted((PROJECT / "crds").glob("*.yaml")):
        assert (CHART / "crds" / file.name).read_text() == file.read_text(), "run scripts/generate-chart"
    command = [sys.executable, str(PROJECT / "scripts" / "chart_readme.py"), str(CHART)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert made == (CHART / "README.md").read_text(), "run scripts/generate-chart"


def test_every_value_is_in_the_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def unknown(values: Any, part: dict[str, Any], path: str) -> list[str]:
        if "$ref" in part:
            part = schema["definitions"][part["$ref"].rpartition("/")[2]]
        if "properties" not in part:
            return []
        found = []
        for name, value in values.items():
            if name not in part["properties"]:
                found.append(f"{path}{name}")
            elif isinstance(value, dict):
                found += unknown(value, part["properties"][name], f"{path}{name}.")
        return found

    assert unknown(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "") == []


def test_the_cluster_role_grants_what_the_operator_needs_and_nothing_else(helm: Helm) -> None:
    manifests = helm.template()
    [role] = of_kind(manifests, "ClusterRole")
    assert granted(role) == needed(PERMISSIONS)
    leader, secrets = of_kind(manifests, "Role")
    assert granted(leader) == needed(LEADER_PERMISSIONS)
    assert granted(secrets) == needed(AUTHENTICATION_PERMISSIONS)
    for binding in [*of_kind(manifests, "ClusterRoleBinding"), *of_kind(manifests, "RoleBinding")]:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "main-operator", "namespace": "here"}]


def test_an_operator_that_runs_no_archives_may_not_make_cron_jobs(helm: Helm) -> None:
    [off] = of_kind(helm.template(), "ClusterRole")
    assert not any(resource == "cronjobs" for _, resource, _ in granted(off))
    manifests = helm.template(archive={"enabled": True, "executors": True})
    [on] = of_kind(manifests, "ClusterRole")
    assert granted(on) == needed((*PERMISSIONS, *ARCHIVE_PERMISSIONS))
    for each, archives in ((helm.template(), False), (manifests, True)):
        [container] = operator_pod(each)["spec"]["containers"]
        assert ("--archives" in container["args"]) is archives


def test_the_operator_reads_no_secrets_but_those_that_are_named(helm: Helm) -> None:
    [without] = of_kind(helm.template(), "ClusterRole")
    assert not any(resource == "secrets" for _, resource, _ in granted(without))
    [role] = of_kind(helm.template(connections={"secrets": ["pulsar-token", "pulsar-ca"]}), "ClusterRole")
    assert granted(role) == needed((*PERMISSIONS, *CONNECTION_PERMISSIONS))
    [rule] = [each for each in role["rules"] if "secrets" in each["resources"]]
    assert rule["resourceNames"] == ["pulsar-token", "pulsar-ca"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get"])


def secret_roles(manifests: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return the roles for keys and tokens by their Kubernetes namespaces."""
    roles = [*of_kind(manifests, "Role"), *of_kind(manifests, "ClusterRole")]
    named = [each for each in roles if each["metadata"]["name"].endswith("-secrets")]
    return {each["metadata"].get("namespace", "*"): each for each in named}


def test_the_operator_uses_secrets_for_keys_only_where_that_is_enabled(helm: Helm) -> None:
    """A cluster-wide right on Secrets would be worth breaking into."""
    assert secret_roles(helm.template()).keys() == {"here"}
    several = {"enabled": True, "namespaces": ["here", "shop"]}
    assert secret_roles(helm.template(authentication=several)).keys() == {"here", "shop"}
    watched = helm.template(watchNamespaces=["one", "two"])
    assert secret_roles(watched).keys() == {"one", "two"}
    assert secret_roles(helm.template(authentication={"namespaces": ["*"]})).keys() == {"*"}
    refused = helm.refusal(authentication={"namespaces": ["*"]}, watchNamespaces=["one"])
    assert "authentication.namespaces" in refused
    for manifests in (watched, helm.template(authentication={"namespaces": ["*"]})):
        for role in secret_roles(manifests).values():
            assert granted(role) == needed(AUTHENTICATION_PERMISSIONS)
            [binding] = [
                each
                for each in [*of_kind(manifests, "RoleBinding"), *of_kind(manifests, "ClusterRoleBinding")]
                if each["roleRef"]["name"] == role["metadata"]["name"]
                and each["metadata"].get("namespace") == role["metadata"].get("namespace")
            ]
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "main-operator", "namespace": "here"}]
    names = ["default-token-signing-key", "default-token-keys"]
    role = secret_roles(helm.template(authentication={"secrets": names}))["here"]
    rules = {tuple(each["verbs"]): each.get("resourceNames") for each in role["rules"]}
    assert rules == {("get", "update"): names, ("create",): None}
    off = helm.template(authentication={"enabled": False}, defaultCluster={"spec": OPEN})
    assert "secrets" not in {resource for role in all_roles(off) for _, resource, _ in granted(role)}


def test_the_operator_uses_secrets_for_certificates_only_where_that_is_enabled(helm: Helm) -> None:
    [role] = of_kind(helm.template(tls={"enabled": True}), "ClusterRole")
    assert granted(role) == needed((*PERMISSIONS, *TLS_PERMISSIONS))
    names = ["default-tls", "default-tls-authority"]
    [role] = of_kind(helm.template(tls={"enabled": True, "secrets": names}), "ClusterRole")
    rules = {
        tuple(each["verbs"]): each.get("resourceNames") for each in role["rules"] if "secrets" in each["resources"]
    }
    assert rules == {("get", "update"): names, ("create",): None}


def test_a_default_cluster_with_tls_needs_an_operator_that_may_store_certificates(helm: Helm) -> None:
    spec = {"tls": {"enabled": True}}
    manifests = helm.template(defaultCluster={"spec": spec}, tls={"enabled": True})
    [made] = of_kind(manifests, "BrokerCluster")
    assert made["spec"]["tls"] == {"enabled": True}
    assert "tls.enabled" in helm.refusal(defaultCluster={"spec": spec})
    # The test of the release goes the way of clients.
    [test] = of_kind(manifests, "Pod")
    [container] = test["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "HELIOGRAPH_TOKEN_FILE": "/etc/heliograph/token/token",
        "HELIOGRAPH_SERVICE_URL": "pulsar+ssl://default.here.svc.cluster.local:6651",
        "HELIOGRAPH_TLS_CA": "/etc/heliograph/ca/ca.crt",
    }
    assert {"name": "ca", "configMap": {"name": "default-ca"}} in test["spec"]["volumes"]


@pytest.mark.parametrize("closed", [True, False])
def test_prometheus_verifies_brokers_without_plain_ports(helm: Helm, closed: bool) -> None:
    def endpoint(tls: dict[str, Any], **values: Any) -> dict[str, Any]:
        spec = {"tls": tls, "authentication": {"enabled": closed}}
        rendered = helm.template(*MONITORING, tls={"enabled": True}, defaultCluster={"spec": spec}, **values)
        name = "-brokers-default" if closed else "-brokers"
        monitors = of_kind(rendered, "ServiceMonitor")
        [found] = [each for each in monitors if each["metadata"]["name"].endswith(name)]
        [made] = found["spec"]["endpoints"]
        return dict(made)

    plain, only = {"enabled": False}, {"enabled": True, "only": True}
    assert "tlsConfig" not in endpoint(plain)
    by_label = {"sourceLabels": ["__meta_kubernetes_service_label_heliograph_dev_scheme"], "regex": "https"}
    assert {**by_label, "targetLabel": "__scheme__", "replacement": "https"} in endpoint(plain)["relabelings"]
    assert endpoint(only)["tlsConfig"] == {
        "ca": {"configMap": {"name": "default-ca", "key": "ca.crt"}},
        "serverName": "default-metrics.here.svc.cluster.local",
    }
    others = {"enabled": "auto", "tlsConfig": {"serverName": "mine"}}
    assert endpoint(only, metrics={"serviceMonitor": others})["tlsConfig"] == {"serverName": "mine"}


def all_roles(manifests: Iterable[Manifest]) -> list[Manifest]:
    return [*of_kind(manifests, "Role"), *of_kind(manifests, "ClusterRole")]


OPEN = {"authentication": {"enabled": False}}


def test_the_default_cluster_is_closed_and_one_value_opens_it(helm: Helm) -> None:
    [made] = of_kind(helm.template(), "BrokerCluster")
    assert made["spec"]["authentication"] == {"enabled": True}
    [opened] = of_kind(helm.template("--set=defaultCluster.spec.authentication.enabled=false"), "BrokerCluster")
    assert BrokerCluster.model_validate(opened).spec.authentication.enabled is False
    # Other values of the spec leave it closed.
    [sized] = of_kind(helm.template(defaultCluster={"spec": {"storage": {"size": "1Gi"}}}), "BrokerCluster")
    assert sized["spec"]["authentication"] == {"enabled": True}


def test_a_closed_default_cluster_needs_an_operator_that_may_store_keys(helm: Helm) -> None:
    refused = helm.refusal(authentication={"enabled": False})
    assert "defaultCluster.spec.authentication.enabled" in refused
    assert "authentication.enabled: true" in refused


def test_helm_test_has_a_user_with_rights_on_what_it_uses(helm: Helm) -> None:
    manifests = helm.template()
    [user], [pod] = of_kind(manifests, "User"), of_kind(manifests, "Pod")
    spec = User.model_validate(user).spec
    [permission] = spec.permissions
    assert (permission.namespace, permission.topics) == ("public/default", "helm-test-*")
    assert (set(permission.actions), spec.cluster_ref.name) == ({"produce", "consume"}, "default")
    # It goes with the test: nobody else is to find the token.
    assert user["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert "hook-succeeded" in user["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    weights = [int(each["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for each in (user, pod)]
    assert weights[0] < weights[1]
    [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "token"]
    assert volume["secret"]["secretName"] == f"{user['metadata']['name']}-token"
    [container] = pod["spec"]["containers"]
    assert "HELIOGRAPH_TOKEN_FILE" in [each["name"] for each in container["env"]]
    opened = helm.template(defaultCluster={"spec": OPEN})
    assert of_kind(opened, "User") == []
    assert "HELIOGRAPH_TOKEN_FILE" not in json.dumps(of_kind(opened, "Pod"))


def test_the_operator_may_connect_to_the_brokers_of_connections(helm: Helm) -> None:
    rule = {"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}], "ports": [{"port": 8443, "protocol": "TCP"}]}

    def allowed(**values: Any) -> list[Any]:
        [policy] = of_kind(helm.template(**values), "NetworkPolicy")
        egress: list[Any] = policy["spec"]["egress"]
        return egress

    assert allowed(connections={"egress": [rule]}) == [*allowed(), rule]


def test_executors_without_archives_are_refused(helm: Helm) -> None:
    done = helm.run("template", str(CHART), "--set", "archive.executors=true")
    assert done.returncode != 0
    assert "archive.executors needs archive.enabled: true" in done.stderr


def aggregated(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the ClusterRoles that Kubernetes adds to its own, by name."""
    return [each for each in manifests if _aggregates(each)]


def _aggregates(role: Manifest) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    labels: dict[str, str] = role["metadata"].get("labels", {})
    return {name.removeprefix(prefix) for name, value in labels.items() if name.startswith(prefix) and value == "true"}


def test_kubernetes_roles_may_read_and_change_every_kind_but_not_its_status(helm: Helm) -> None:
    view, edit = aggregated(helm.template())
    assert _aggregates(view) == {"view", "edit", "admin"}
    assert _aggregates(edit) == {"edit", "admin"}
    plurals = {each.plural for each in DEFINITIONS.values()}
    assert granted(view) == {("heliograph.dev", each, verb) for each in plurals for verb in ("get", "list", "watch")}
    changes = ("create", "update", "patch", "delete", "deletecollection")
    assert granted(edit) == {("heliograph.dev", each, verb) for each in plurals for verb in changes}
    assert aggregated(helm.template(aggregatedRoles=False)) == []
    assert len(aggregated(helm.template(aggregatedRoles=True, watchNamespaces=["one"]))) == 2


def test_the_operator_reads_and_changes_no_lease_but_its_own(helm: Helm) -> None:
    [leader] = [each for each in of_kind(helm.template(), "Role") if each["metadata"]["name"].endswith("-leader")]
    named = {verb: rule.get("resourceNames") for rule in leader["rules"] for verb in rule["verbs"]}
    assert named == {
        verb: ["main-operator"] if permission.own else None
        for permission in LEADER_PERMISSIONS
        for verb in permission.verbs
    }
    [container] = operator_pod(helm.template())["spec"]["containers"]
    assert "--lease=main-operator" in container["args"]


def test_where_users_are_assigned_no_pod_names_one(helm: Helm) -> None:
    manifests = helm.template(fixedUser=False)
    pods = [operator_pod(manifests), *of_kind(manifests, "Pod")]
    assert len(pods) == 2
    for pod in pods:
        assert pod["spec"]["securityContext"].keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup"})
    assert "--no-fixed-user" in pods[0]["spec"]["containers"][0]["args"]
    assert "--no-fixed-user" not in operator_pod(helm.template())["spec"]["containers"][0]["args"]


def test_brokers_let_the_charts_operator_administer_them(helm: Helm) -> None:
    manifests = helm.template()
    labels = operator_pod(manifests)["metadata"]["labels"]
    cluster = {**of_kind(manifests, "BrokerCluster")[0]}
    cluster["metadata"] = {**cluster["metadata"], "uid": "1"}
    made = network_policy(BrokerCluster.model_validate(cluster), cluster, Site("broker", operator_namespace="here"))
    [admins] = [rule["from"] for rule in made["spec"]["ingress"] if rule["ports"][0]["port"] == 8080]
    [peer] = [each for each in admins if "namespaceSelector" in each]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "here"}
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


CLOSED = {"authentication": {"enabled": True}}


def scraped(monitor: Manifest, name: str, spec: dict[str, Any]) -> list[Manifest]:
    """Return the Services of a BrokerCluster that a ServiceMonitor selects."""
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "spec": spec}
    body["metadata"] = {"name": name, "namespace": "shop", "uid": "1"}
    services = of_kind(manifests_of(BrokerCluster.model_validate(body), body, Site("broker")), "Service")
    selector = monitor["spec"]["selector"]
    missing = [each["key"] for each in selector.get("matchExpressions", ()) if each["operator"] == "DoesNotExist"]
    return [
        each
        for each in services
        if selector["matchLabels"].items() <= (labels := each["metadata"]["labels"]).items()
        and not labels.keys() & missing
    ]


def test_prometheus_scrapes_the_services_of_the_metrics(helm: Helm) -> None:
    _, monitor, of_default = of_kind(helm.template(*MONITORING), "ServiceMonitor")
    [found] = scraped(monitor, "main", {})
    assert found["metadata"]["name"] == "main-metrics"
    # Each that is closed has a token of its own, so that each is scraped by a ServiceMonitor of its own.
    assert scraped(monitor, "main", CLOSED) == []
    assert scraped(of_default, "main", CLOSED) == scraped(of_default, "default", {}) == []
    [closed] = scraped(of_default, "default", CLOSED)
    assert closed["metadata"]["name"] == "default-metrics"
    [endpoint] = of_default["spec"]["endpoints"]
    secret = metrics_token("default").secret
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": secret, "key": "token"}}
    for field in ("namespaceSelector", "matchNames"):
        assert field not in of_default["spec"]
    assert of_default["spec"]["targetLabels"] == monitor["spec"]["targetLabels"]
    assert len(of_kind(helm.template(*MONITORING, defaultCluster={"spec": OPEN}), "ServiceMonitor")) == 2
    # The alert knows the targets by a label of the Service, as Prometheus writes its name.
    assert "heliograph.dev/service" in monitor["spec"]["targetLabels"]
    [rule] = of_kind(helm.template(*MONITORING), "PrometheusRule")
    [down] = [each for each in rule["spec"]["groups"][0]["rules"] if each.get("alert") == "HeliographBrokerDown"]
    label = found["metadata"]["labels"]["heliograph.dev/service"]
    assert down["expr"].endswith(f' or up{{heliograph_dev_service="{label}"}} == 0')
    # What the metrics themselves call their namespace stays.
    assert all(endpoint["honorLabels"] for endpoint in monitor["spec"]["endpoints"])
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in found["spec"]["ports"]]


def test_an_operator_of_some_namespaces_has_no_rights_elsewhere(helm: Helm) -> None:
    manifests = helm.template(watchNamespaces=["one", "two"])
    assert of_kind(manifests, "ClusterRole") == []
    secrets = secret_roles(manifests).values()
    others = [role for role in of_kind(manifests, "Role") if role not in secrets]
    roles = {role["metadata"]["namespace"]: granted(role) for role in others}
    assert roles == {"one": needed(PERMISSIONS), "two": needed(PERMISSIONS), "here": needed(LEADER_PERMISSIONS)}
    [container] = operator_pod(manifests)["spec"]["containers"]
    assert [each for each in container["args"] if "namespace" in each] == ["--namespace=one", "--namespace=two"]


def test_everything_that_is_made_for_a_broker_is_in_the_table_of_permissions() -> None:
    for kind in OWNED.values():
        group = kind.api_version.rpartition("/")[0]
        verbs = {verb for one, resource, verb in needed(PERMISSIONS) if (one, resource) == (group, kind.plural)}
        assert verbs == {"get", "list", "watch", "create", "patch", "delete"}, kind.name


def test_no_verb_is_wanted_for_everything_and_each_says_what_for() -> None:
    of_secrets = (*CONNECTION_PERMISSIONS, *AUTHENTICATION_PERMISSIONS, *TLS_PERMISSIONS)
    for permission in (*PERMISSIONS, *ARCHIVE_PERMISSIONS, *of_secrets, *LEADER_PERMISSIONS):
        assert permission.resource != "*"
        assert all(verb != "*" and len(reason) > 5 for verb, reason in permission.verbs.items())
        # An operator that could read all Secrets would be worth breaking into.
        assert permission.resource != "secrets" or permission in of_secrets
        assert permission.resource != "secrets" or not {"list", "watch"} & permission.verbs.keys()


@pytest.mark.parametrize("which", ["Deployment", "Pod"])
def test_pods_keep_to_the_restricted_standard(helm: Helm, which: str) -> None:
    for manifest in of_kind(helm.template(), which):
        spec = manifest["spec"]["template"]["spec"] if which == "Deployment" else manifest["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC"))
        assert all(set(volume) <= {"name", "emptyDir", "configMap", "secret"} for volume in spec["volumes"])
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_operator_has_probes_and_resources_and_knows_where_it_is(helm: Helm) -> None:
    [container] = operator_pod(helm.template())["spec"]["containers"]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()
    assert container["resources"]["requests"]["memory"] == "128Mi"
    assert "--lease=main-operator" in container["args"]
    assert "--broker-image=heliograph/broker:0.1.0" in container["args"]
    [variable] = container["env"]
    assert variable["name"] == "HELIOGRAPH_OPERATOR_NAMESPACE"


def test_the_operator_understands_the_arguments_it_is_given(helm: Helm) -> None:
    [container] = operator_pod(helm.template(watchNamespaces=["one"]))["spec"]["containers"]
    command = [sys.executable, "-m", "heliograph_operator", *container["args"], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for argument in container["args"][1:]:
        assert argument.partition("=")[0] in done.stdout


def test_what_is_said_of_the_pod_is_in_the_pod(helm: Helm) -> None:
    output: dict[str, Any] = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1}],
        "priorityClassName": "high",
    }
    more = {"extraEnv": [{"name": "TZ", "value": "UTC"}], "podLabels": {"team": "x"}, "podAnnotations": {"a": "b"}}
    manifests = helm.template(operator={**output, **more, "replicas": 2}, imagePullSecrets=["pull"])
    pod = operator_pod(manifests)
    assert {field: pod["spec"][field] for field in output} == output
    assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "TZ", "value": "UTC"} in pod["spec"]["containers"][0]["env"]
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert len(of_kind(manifests, "PodDisruptionBudget")) == 1
    assert of_kind(helm.template(), "PodDisruptionBudget") == []


def test_selectors_find_the_operators_pods_and_not_a_brokers(helm: Helm) -> None:
    manifests = helm.template()
    labels = operator_pod(manifests)["metadata"]["labels"]
    [deployment], [service] = of_kind(manifests, "Deployment"), of_kind(manifests, "Service")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert labels["app.kubernetes.io/component"] == "operator"


def test_the_default_cluster_is_one_that_a_broker_takes_and_stays(helm: Helm) -> None:
    [found] = of_kind(helm.template(), "BrokerCluster")
    assert BrokerCluster.model_validate(found).spec.storage.size == 10 * 1024**3
    assert found["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    without = helm.template(defaultCluster={"enabled": False})
    assert of_kind(without, "BrokerCluster") == []
    assert of_kind(without, "Pod") == []


def test_definitions_come_with_the_chart_and_can_be_left_out(helm: Helm) -> None:
    assert len(of_kind(helm.template("--include-crds"), "CustomResourceDefinition")) == len(DEFINITIONS)
    assert of_kind(helm.template(), "CustomResourceDefinition") == []


def test_prometheus_is_told_where_it_is_there(helm: Helm) -> None:
    kinds = ("ServiceMonitor", "PrometheusRule")
    assert [len(of_kind(helm.template(), kind)) for kind in kinds] == [0, 0]
    there = helm.template(*MONITORING)
    assert [len(of_kind(there, kind)) for kind in kinds] == [3, 1]
    off = {"serviceMonitor": {"enabled": False}, "prometheusRule": {"enabled": False}}
    assert [len(of_kind(helm.template(*MONITORING, metrics=off), kind)) for kind in kinds] == [0, 0]


def test_images_may_be_named_by_their_digests(helm: Helm) -> None:
    digests = {name: f"sha256:{index:064x}" for index, name in enumerate(("operator", "broker", "archive", "test"))}
    # A tag beside it is not used.
    values: dict[str, Any] = {name: {"image": {"digest": digest, "tag": "7"}} for name, digest in digests.items()}
    values["archive"]["enabled"] = True
    text = json.dumps(helm.template(**values))
    for name, repository in zip(digests, ("operator", "broker", "spark", "client"), strict=True):
        assert f"heliograph/{repository}@{digests[name]}" in text
        assert f"heliograph/{repository}:" not in text


def test_the_dashboards_are_generated_and_shipped_as_they_are(helm: Helm) -> None:
    command = [sys.executable, str(PROJECT / "scripts" / "dashboards.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert of_kind(helm.template(), "ConfigMap") == []
    [found] = of_kind(helm.template(metrics={"dashboard": {"enabled": True}}), "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = {name: json.loads(text) for name, text in found["data"].items()}
    assert shipped == {path.name: json.loads(path.read_text()) for path in (CHART / "dashboards").glob("*.json")}
    assert sorted(each["title"] for each in shipped.values()) == [
        "Heliograph / Broker",
        "Heliograph / Namespaces and quota",
        "Heliograph / Operator",
        "Heliograph / Overview",
        "Heliograph / Topic and subscription",
    ]
    for dashboard in shipped.values():
        declared = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
        for panel in dashboard["panels"]:
            assert panel["datasource"]["uid"] == "${datasource}"
            for target in panel["targets"]:
                assert set(re.findall(r"\$(\w+)", target["expr"])) <= declared, panel["title"]


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"operator": {"replicas": -1}}, "replicas"),
        ({"operator": {"replica": 1}}, "replica"),
        ({"operator": {"image": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
        ({"operator": {"image": {"digest": "sha256:0"}}}, "digest"),
        ({"operator": {"refreshSeconds": 60}}, "refreshSeconds"),
        ({"watchNamespaces": ["Not_A_Name"]}, "watchNamespaces"),
        ({"defaultCluster": {"name": "1st"}}, "name"),
        ({"metrics": {"serviceMonitor": {"enabled": "maybe"}}}, "enabled"),
        ({"metrics": {"prometheusRule": {"diskFreeRatio": 10}}}, "diskFreeRatio"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(helm: Helm, values: dict[str, Any], where: str) -> None:
    assert where in helm.refusal(**values)


def test_the_notes_update_definitions_as_the_guide_does() -> None:
    """Helm made them, so that another manager of their fields conflicts with it."""
    notes = (PROJECT / "charts/heliograph/templates/NOTES.txt").read_text("utf-8")
    [command] = [line.strip() for line in notes.splitlines() if "kubectl apply --server-side" in line]
    assert command == "kubectl apply --server-side --force-conflicts -f charts/heliograph/crds/"
    assert command in (PROJECT / "docs/install.md").read_text("utf-8")
