"""The release that the guides install, and how a test is rid of it."""

from __future__ import annotations

from typing import Final

from heliograph_operator.objects import kinds

from tests.support.cluster import Cluster

#: The Kubernetes namespace, as the guides call it.
NAMESPACE: Final = "heliograph"
#: The full names of the kinds, parents last.
KINDS: Final = tuple(kinds.full_name(kind) for kind in reversed(kinds.KINDS))


def remove(cluster: Cluster) -> None:
    """Remove the release and everything in its Kubernetes namespace, of a session that was interrupted too."""
    if cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"):
        _remove_namespace(cluster)
    # Not in a namespace: they stay when only that was deleted.
    role = "heliograph-heliograph-operator"
    cluster.kubectl("delete", f"clusterrole/{role}", f"clusterrolebinding/{role}", "--ignore-not-found")


def _remove_namespace(cluster: Cluster) -> None:
    if cluster.helm("list", "-n", NAMESPACE, "-q").split():
        for kind in KINDS:
            cluster.kubectl("delete", kind, "-n", NAMESPACE, "--all", "--timeout=100s")
        cluster.helm("uninstall", "heliograph", "-n", NAMESPACE, "--wait")
    for resource in cluster.kubectl("get", "heliograph", "-n", NAMESPACE, "-o", "name").split():
        cluster.kubectl("patch", resource, "-n", NAMESPACE, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s")
