"""The chart on a real Kubernetes: installed, used as its documentation says, and uninstalled."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cluster import PROJECT, Cluster
from tests.support.cluster_fixtures import Images

from . import release
from .waiting import leader, wait_ready

CHART = PROJECT / "charts" / "heliograph"


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
    rendered = cluster.helm("template", "main", str(CHART), *here, "--values", settings)
    cluster.kubectl("apply", *here, "--dry-run=server", "-f", "-", input=rendered)

    cluster.helm("install", "main", str(CHART), *here, "--values", settings, "--wait", "--timeout=5m", timeout_s=330)
    wait_ready(cluster, kube_namespace, "brokercluster/default", within_s=180)

    cluster.kubectl("apply", *here, "-f", str(PROJECT / "examples" / "orders.yaml"))
    topics = cluster.kubectl("get", "topics.heliograph.dev", *here, "-o", "name").split()
    assert topics
    for topic in topics:
        wait_ready(cluster, kube_namespace, topic, within_s=180)

    cluster.helm("test", "main", *here, "--timeout=3m", timeout_s=200)

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

    for kind in release.KINDS:
        cluster.kubectl("delete", kind, *here, "--all", "--timeout=100s")
    cluster.helm("uninstall", "main", *here, "--wait")
    left = cluster.kubectl(
        "get", "deployments,statefulsets,services,roles,serviceaccounts", *here, "-o", "name"
    ).split()
    assert left == ["serviceaccount/default"]
    # Messages are worth more than a release.
    assert cluster.kubectl("get", "pvc", *here, "-o", "name").split() == ["persistentvolumeclaim/data-default-0"]
