"""The chart on a real Kubernetes: installed, used as its documentation says, and uninstalled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster import PROJECT, Cluster, ClusterCommandError
from tests.support.cluster_fixtures import APP_VERSION, Images
from tests.support.pod_logs import secrets_in_logs

from . import release
from .client_pod import POD, ClientPod
from .guide import Shell
from .waiting import leader, wait_ready

CHART = PROJECT / "charts" / "heliograph"
PRODUCE = "heliograph produce hello -m x"


def values(images: Images, namespace: str, directory: Path, **spec: Any) -> Path:
    """Values for images of this working tree, which no registry has."""

    def image(target: str, **more: str) -> dict[str, str]:
        repository, _, tag = images[target].rpartition(":")
        return {"repository": repository, "tag": tag, **more}

    content = {
        "watchNamespaces": [namespace],
        "operator": {
            "image": image("operator", pullPolicy="Never"),
            "replicas": 2,
            "refreshSeconds": 2,
            "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "512Mi"}},
        },
        "broker": {"image": image("broker")},
        "test": {"image": image("client", pullPolicy="Never")},
        "defaultCluster": {"spec": {"imagePullPolicy": "Never", "storage": {"size": "1Gi"}, **spec}},
    }
    file = directory / "values.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def install(cluster: Cluster, namespace: str, settings: str) -> None:
    """Install the release ``main`` in its Kubernetes namespace, and wait for its broker."""
    # Definitions that are there stay as they are on an install; those of this tree are wanted.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    here = ("-n", namespace, "--values", settings)
    cluster.helm("install", "main", str(CHART), *here, "--wait", "--timeout=5m", timeout_s=330)
    wait_ready(cluster, namespace, "brokercluster/default", within_s=180)


def account(image: str) -> list[dict[str, Any]]:
    """A service account, the User whose identity it is, and a pod with no other credentials that connects by TLS."""
    identity = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "User",
        "metadata": {"name": "account"},
        "spec": {
            "clusterRef": {"name": "default"},
            "authentication": [{"serviceAccount": {"name": "account"}}],
            "permissions": [{"namespace": "public/default", "actions": ["produce", "consume"]}],
        },
    }
    pod = yaml.safe_load(POD.replace("IMAGE", image))
    pod["metadata"]["name"] = "account"
    pod["spec"]["serviceAccountName"] = "account"
    [container] = pod["spec"]["containers"]
    container["env"] = [
        {"name": "HELIOGRAPH_SERVICE_URL", "value": "pulsar+ssl://default:6651"},
        {"name": "HELIOGRAPH_TLS_CA", "value": "/etc/heliograph/ca/ca.crt"},
        {"name": "HELIOGRAPH_TOKEN_FILE", "value": "/etc/heliograph/token/token"},
    ]
    container["volumeMounts"] = [{"name": each, "mountPath": f"/etc/heliograph/{each}"} for each in ("ca", "token")]
    shown = {"audience": "heliograph", "expirationSeconds": 3600, "path": "token"}
    pod["spec"]["volumes"] = [
        {"name": "ca", "configMap": {"name": "default-ca"}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": shown}]}},
    ]
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "account"}}, identity, pod]


def test_a_release_is_installed_publishes_and_consumes_and_goes_away(
    cluster: Cluster, images: Images, kube_namespace: str, tmp_path: Path
) -> None:
    settings = str(values(images, kube_namespace, tmp_path))
    here = ("-n", kube_namespace)
    # Restricted is what the pods are made for: the API server refuses any that is not.
    cluster.kubectl("label", "namespace", kube_namespace, "pod-security.kubernetes.io/enforce=restricted")
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    rendered = cluster.helm("template", "main", str(CHART), *here, "--values", settings)
    cluster.kubectl("apply", *here, "--dry-run=server", "-f", "-", input=rendered)

    install(cluster, kube_namespace, settings)
    # As the notes say: a User, its Secret, a client that shows the token.
    notes = cluster.helm("get", "notes", "main", *here)
    first = [line.strip() for line in notes.splitlines() if "client" in line and line.strip().startswith("kubectl")]
    assert [line.split()[1] for line in first] == ["apply", "wait", "exec"]
    assert images["client"] == f"heliograph/client:{APP_VERSION}"
    shell = Shell(cluster.environment, tmp_path)
    for command in first:
        shell.run(command)
    refused = f"kubectl exec -n {kube_namespace} client -- heliograph produce other/than/granted -m x"
    with pytest.raises(AssertionError, match=r"may not|Authorization"):
        shell.run(refused)
    with pytest.raises(AssertionError, match=r"credentials|Authentication|token"):
        shell.run(f"kubectl exec -n {kube_namespace} client -- env -u HELIOGRAPH_TOKEN_FILE {PRODUCE}")
    cluster.kubectl("delete", *here, "-f", str(PROJECT / "charts" / "examples" / "client.yaml"))

    cluster.kubectl("apply", *here, "-f", str(PROJECT / "examples" / "orders.yaml"))
    topics = cluster.kubectl("get", "topics.heliograph.dev", *here, "-o", "name").split()
    assert topics
    for topic in topics:
        wait_ready(cluster, kube_namespace, topic, within_s=180)

    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)
    # The identity of the test goes with it.
    named = ("users.heliograph.dev/main-test", "secret/main-test-token")
    users = ("get", *named, *here, "--ignore-not-found", "-o", "name")
    cluster.wait_for("its User is gone", lambda: not cluster.kubectl(*users).strip(), namespace=kube_namespace)

    holder = leader(cluster, kube_namespace, "main-operator")
    cluster.kubectl("delete", "pod", holder.rpartition("_")[0], *here, "--wait=false")
    cluster.wait_for(
        "the other operator leads",
        lambda: leader(cluster, kube_namespace, "main-operator") not in ("", holder),
        within_s=180,
        namespace=kube_namespace,
    )
    # It works, too: what is drifted is set right again.
    cluster.kubectl("delete", "service", "default", *here)
    cluster.wait_for(
        "the Service is there again",
        lambda: cluster.kubectl("get", "service", "default", *here, "--ignore-not-found").strip(),
        within_s=180,
        namespace=kube_namespace,
    )
    # A pod whose container is still being created has no logs.
    cluster.kubectl("rollout", "status", "deployment/main-operator", *here, "--timeout=180s")
    output = cluster.kubectl("logs", *here, "-l", "app.kubernetes.io/component=operator", "--tail=-1")
    assert "forbidden" not in output.lower()

    assert secrets_in_logs(cluster, kube_namespace) == []
    for kind in release.KINDS:
        cluster.kubectl("delete", kind, *here, "--all", "--timeout=100s")
    cluster.helm("uninstall", "main", *here, "--wait")
    left = cluster.kubectl(
        "get", "deployments,statefulsets,services,roles,serviceaccounts", *here, "-o", "name"
    ).split()
    assert left == ["serviceaccount/default"]
    # Messages are worth more than a release.
    assert cluster.kubectl("get", "pvc", *here, "-o", "name").split() == ["persistentvolumeclaim/data-default-0"]


def test_a_release_without_authentication_is_open_and_an_upgrade_does_not_close_it_without_a_word(
    cluster: Cluster, images: Images, kube_namespace: str, tmp_path: Path
) -> None:
    here = ("-n", kube_namespace)
    opened = str(values(images, kube_namespace, tmp_path, authentication={"enabled": False}))
    install(cluster, kube_namespace, opened)
    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)

    closed = str(values(images, kube_namespace, tmp_path))
    # The release's own values have no default of the chart that closes it.
    cluster.helm("upgrade", "main", str(CHART), *here, "--reuse-values")
    with pytest.raises(ClusterCommandError, match="BrokerCluster default exists and is open"):
        cluster.helm("upgrade", "main", str(CHART), *here, "--values", closed)
    found = cluster.kubectl_json("get", "brokercluster", "default", *here)
    assert found["spec"]["authentication"]["enabled"] is False

    # Clients without credentials go on, and others show theirs.
    going_on = (
        "--set=defaultCluster.spec.config.anonymous_role=before",
        "--set=defaultCluster.spec.authentication.superusers={before}",
    )
    cluster.helm("upgrade", "main", str(CHART), *here, "--values", closed, *going_on)
    wait_ready(cluster, kube_namespace, "brokercluster/default", within_s=180)
    client = ClientPod(cluster, kube_namespace, f"pulsar://default.{kube_namespace}.svc.cluster.local:6650")
    client.start(images["client"])
    client.subscribe("persistent://public/default/before", "all")
    client.publish("persistent://public/default/before", ["without a token"])
    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)

    # Helm takes the values away again. There is no way in without TLS any more, and service accounts are identities.
    spec = "defaultCluster.spec"
    encrypted = f"--set=tls.enabled=true,{spec}.tls.enabled=true,{spec}.tls.only=true"
    accounts = f"--set={spec}.authentication.serviceAccounts.enabled=true"
    cluster.helm("upgrade", "main", str(CHART), *here, "--values", closed, encrypted, accounts)
    wait_ready(cluster, kube_namespace, "brokercluster/default", within_s=180)
    cluster.apply(*account(images["client"]), namespace=kube_namespace)
    wait_ready(cluster, kube_namespace, "huser/account")
    cluster.wait_until_ready(kube_namespace, "account")
    shell = ("exec", "account", *here, "--")
    publish = (*shell, "heliograph", "produce", "before", "-m", "by a service account")
    cluster.wait_for("the service account may publish", lambda: [cluster.kubectl(*publish)], namespace=kube_namespace)
    subscription = ("consume", "before", "-s", "all", "-n", "2", "--timeout", "60")
    received = cluster.kubectl(*shell, "heliograph", *subscription)
    assert received.index("without a token") < received.index("by a service account")
    with pytest.raises(ClusterCommandError, match=r"may not|Authorization"):
        cluster.kubectl(*shell, "heliograph", "produce", "other/than/granted", "-m", "x")
    with pytest.raises(ClusterCommandError, match=r"credentials|Authentication|token"):
        cluster.kubectl(*shell, "env", "-u", "HELIOGRAPH_TOKEN_FILE", *PRODUCE.split())
    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)
    assert secrets_in_logs(cluster, kube_namespace) == []
    for kind in release.KINDS:
        cluster.kubectl("delete", kind, *here, "--all", "--timeout=100s")
    cluster.helm("uninstall", "main", *here, "--wait")
