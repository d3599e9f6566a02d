"""The way from v1alpha1 to another version: both are served, every resource is rewritten, and the old one ends."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.guide import Shell, commands
from tests.support.cluster import Cluster, ClusterCommandError

_CRD = Path(__file__).parents[2] / "crds" / "topics.yaml"
_OLD, _NEW = "v1alpha1", "v1beta1"
_SPEC = {"namespaceRef": {"name": "payments"}, "messageTTL": "1h", "deletionPolicy": "Retain"}


@pytest.fixture
def definition(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """The definition of Topics in a group of its own: other tests use the real one."""
    found: dict[str, Any] = yaml.safe_load(_CRD.read_text())
    group = f"versions-{time.time_ns():x}.example.org"
    found["metadata"]["name"] = f"topics.{group}"
    found["spec"]["group"] = group
    for own in ("shortNames", "categories"):
        found["spec"]["names"].pop(own)
    cluster.apply(found)
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/topics.{group}")
    yield found
    cluster.kubectl("delete", "crd", f"topics.{group}", "--timeout=60s")


def test_resources_become_those_of_another_version_without_being_created_again(
    cluster: Cluster, definition: dict[str, Any], kube_namespace: str, tmp_path: Path
) -> None:
    group, plural = definition["spec"]["group"], definition["metadata"]["name"]
    manifest = {
        "apiVersion": f"{group}/{_OLD}",
        "kind": "Topic",
        "metadata": {"name": "orders", "namespace": kube_namespace, "finalizers": ["example.org/holds"]},
        "spec": _SPEC,
    }
    cluster.apply(manifest)

    def found(version: str) -> dict[str, Any]:
        body: dict[str, Any] = cluster.kubectl_json("get", f"topics.{version}.{group}", "orders", "-n", kube_namespace)
        assert body["apiVersion"] == f"{group}/{version}"
        return body

    before = found(_OLD)
    # 1. Both versions are served, and the new one is stored. Its schema has the same fields.
    both = copy.deepcopy(definition)
    [old] = both["spec"]["versions"]
    both["spec"]["versions"] = [{**old, "storage": False}, {**copy.deepcopy(old), "name": _NEW}]
    cluster.apply(both)
    cluster.wait_for("the new version is served", lambda: found(_NEW))
    assert (found(_NEW)["spec"], found(_NEW)["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])
    # 2. Until every resource is rewritten, the old version has to stay.
    ended = copy.deepcopy(both)
    ended["spec"]["versions"] = both["spec"]["versions"][1:]
    with pytest.raises(ClusterCommandError, match="storedVersions"):
        cluster.apply(ended)
    shell = Shell(cluster.environment, tmp_path)
    for command in commands("docs/install.md", "Another version of the definitions"):
        shell.run(command.strip().replace("topics.heliograph.dev", plural))
    # 3. The old version ends, and nothing was created again.
    cluster.apply(ended)
    after = found(_NEW)
    assert (after["spec"], after["metadata"]["uid"]) == (before["spec"], before["metadata"]["uid"])
    assert after["metadata"]["finalizers"] == ["example.org/holds"]
    released = '{"metadata": {"finalizers": null}}'
    cluster.kubectl("patch", plural, "orders", "-n", kube_namespace, "--type=merge", "-p", released)
