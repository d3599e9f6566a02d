"""The chart on a real Kubernetes: installed, used as its documentation says, and uninstalled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.support.cluster import PROJECT, Cluster
from tests.support.cluster_fixtures import Images

CHART = PROJECT / "charts" / "heliograph"
KINDS = ("topics", "namespaces", "tenants", "brokerclusters")


def values(images: Images, namespace: str, directory: Path) -> Path:
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
        "defaultCluster": {"spec": {"imagePullPolicy": "Never", "storage": {"size": "1Gi"}}},
    }
    file = directory / "values.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def test_a_release_is_installed_publishes_and_consumes_and_goes_away(
    cluster: Cluster, images: Images, kube_namespace: str, tmp_path: Path
) -> None:
    settings = str(values(images, kube_namespace, tmp_path))
    here = ("-n", kube_namespace)
    # Restricted is what the pods are made for: the API server refuses any that is not.
    cluster.kubectl("label", "namespace", kube_namespace, "pod-security.kubernetes.io/enforce=restricted")
    # Definitions that are there stay as they are on an install; those of this tree are wanted.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CHART / "crds"))
    rendered = cluster.helm("template", "main", str(CHART), *here, "--values", settings, "--kube-version=1.34.4")
    cluster.kubectl("apply", *here, "--dry-run=server", "-f", "-", input=rendered)

    cluster.helm("install", "main", str(CHART), *here, "--values", settings, "--wait", "--timeout=5m", timeout_s=330)
    wait_ready(cluster, kube_namespace, "brokercluster/default", within_s=180)

    for file in sorted((PROJECT / "examples" / "orders").glob("*.yaml")):
        for resource in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            # The example lives in a Kubernetes namespace of its own; here it is to be where the broker is.
            resource["metadata"]["namespace"] = kube_namespace
            cluster.apply(resource)
    topics = cluster.kubectl("get", "topics.heliograph.dev", *here, "-o", "name").split()
    assert topics
    for topic in topics:
        wait_ready(cluster, kube_namespace, topic, within_s=60)

    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)

    holder = leader(cluster, kube_namespace)
    cluster.kubectl("delete", "pod", holder.rpartition("_")[0], *here, "--wait=false")
    cluster.wait_for(
        "the other operator leads",
        lambda: leader(cluster, kube_namespace) not in ("", holder),
        within_s=60,
        namespace=kube_namespace,
    )
    # It works, too: what is drifted is set right again.
    cluster.kubectl("delete", "service", "default", *here)
    cluster.wait_for(
        "the Service is there again",
        lambda: cluster.kubectl("get", "service", "default", *here, "--ignore-not-found").strip(),
        within_s=60,
        namespace=kube_namespace,
    )
    said = cluster.kubectl("logs", *here, "-l", "app.kubernetes.io/component=operator", "--tail=-1")
    assert "forbidden" not in said.lower()

    for kind in KINDS:
        cluster.kubectl("delete", f"{kind}.heliograph.dev", *here, "--all", "--timeout=100s")
    cluster.helm("uninstall", "main", *here, "--wait")
    left = cluster.kubectl(
        "get", "deployments,statefulsets,services,roles,serviceaccounts", *here, "-o", "name"
    ).split()
    assert left == ["serviceaccount/default"]
    # Messages are worth more than a release.
    assert cluster.kubectl("get", "pvc", *here, "-o", "name").split() == ["persistentvolumeclaim/data-default-0"]


def wait_ready(cluster: Cluster, namespace: str, name: str, *, within_s: float) -> None:
    def ready() -> bool:
        found: dict[str, Any] = cluster.kubectl_json("get", "-n", namespace, name)
        conditions = {each["type"]: each for each in (found.get("status") or {}).get("conditions", [])}
        assert conditions.get("Ready", {}).get("status") == "True", conditions
        return True

    cluster.wait_for(f"{name} is Ready", ready, within_s=within_s, namespace=namespace)


def leader(cluster: Cluster, namespace: str) -> str:
    lease = cluster.kubectl_json("get", "-n", namespace, "lease", "main-operator")
    return str(lease["spec"].get("holderIdentity") or "")
