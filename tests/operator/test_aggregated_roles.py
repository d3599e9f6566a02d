"""Kubernetes' own roles view and edit reach the chart's kinds, asked of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from heliograph_api.crds.definitions import DEFINITIONS, GROUP

from tests.support.cluster import PROJECT, Cluster

CHART = PROJECT / "charts" / "heliograph"
TEMPLATE = "templates/aggregatedroles.yaml"
VERBS = ("get", "create", "patch", "delete")


@pytest.fixture
def roles(cluster: Cluster, definitions: None, kube_namespace: str) -> Iterator[None]:
    """The chart's ClusterRoles, and two persons with Kubernetes' own roles in the Kubernetes namespace."""
    rendered = cluster.helm("template", "main", str(CHART), "-n", kube_namespace, "-s", TEMPLATE)
    cluster.kubectl("apply", "-f", "-", input=rendered)
    for role in ("view", "edit"):
        cluster.kubectl(
            "create", "rolebinding", role, f"--clusterrole={role}", f"--user=with-{role}", "-n", kube_namespace
        )
    yield
    cluster.kubectl("delete", "-f", "-", input=rendered)


def allowed(cluster: Cluster, namespace: str, user: str) -> set[tuple[str, str]]:
    """Return what a person may do there, with the plural names of the kinds and with their status."""
    asked = [
        {"namespace": namespace, "verb": verb, "group": GROUP, "resource": kind.plural, "subresource": part}
        for kind in DEFINITIONS.values()
        for part in ("", "status")
        for verb in VERBS
    ]
    reviews = [
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": each},
        }
        for each in asked
    ]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": reviews})
    of = "{.spec.resourceAttributes"
    shown = f"{of}.verb}}|{of}.resource}}|{of}.subresource}}|{{.status.allowed}}{{'\\n'}}"
    answers = cluster.kubectl("create", "-f", "-", "-o", f"jsonpath={shown}", input=given).splitlines()
    assert len(answers) == len(asked)
    return {
        (verb, f"{resource}/{part}" if part else resource)
        for verb, resource, part, granted in (answer.split("|") for answer in answers)
        if granted == "true"
    }


def test_who_may_view_or_edit_a_kubernetes_namespace_may_view_or_edit_what_is_heliographs_there(
    cluster: Cluster, kube_namespace: str, roles: None
) -> None:
    plurals = {kind.plural for kind in DEFINITIONS.values()}
    reads, writes = {("get", each) for each in plurals}, {(verb, each) for verb in VERBS[1:] for each in plurals}
    # Kubernetes adds the permissions to its own roles a moment later.
    cluster.wait_for("edit has them", lambda: allowed(cluster, kube_namespace, "with-edit") == reads | writes)
    cluster.wait_for("view has them", lambda: allowed(cluster, kube_namespace, "with-view") == reads)
    assert allowed(cluster, kube_namespace, "with-neither") == set()
    assert allowed(cluster, "default", "with-edit") == set()
    whoever = ("auth", "can-i", "patch", f"topics.{GROUP}", "--as=with-edit", "-n", kube_namespace)
    assert cluster.kubectl(*whoever).strip() == "yes"
