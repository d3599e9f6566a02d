"""The operator as a user that the machine does not know, in root's group, as OpenShift assigns them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

from .resources import Resources

USER = 1_000_650_000
_AS_USER = ("setpriv", f"--reuid={USER}", "--regid=0", "--clear-groups", "--no-new-privs", "--bounding-set=-all")


class OperatorOfAnybody(OperatorProcess):
    """An operator of a user without a name, a home directory and capabilities."""

    def __init__(self, log: Path, cluster: Cluster, namespace: str, kubeconfig: Path) -> None:
        environment = {**cluster.environment, "KUBECONFIG": str(kubeconfig), "HOME": "/"}
        for name in ("USER", "LOGNAME", "LNAME", "USERNAME"):
            environment.pop(name, None)
        super().__init__(log, namespace, environment, arguments=("--no-fixed-user", "--lease", "anybody"))
        self._command = [*_AS_USER, *self._command]


@pytest.fixture
def kubeconfig(cluster: Cluster) -> Iterator[Path]:
    """The credentials, where that user can read them."""
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, USER, 0)
        found = Path(directory, "kubeconfig")
        shutil.copyfile(cluster.kubeconfig, found)
        os.chown(found, USER, 0)
        yield found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_operator_of_a_user_without_a_name_makes_pods_that_name_none(
    cluster: Cluster, resources: Resources, kube_namespace: str, kubeconfig: Path, tmp_path: Path
) -> None:
    operator = OperatorOfAnybody(tmp_path / "operator.log", cluster, kube_namespace, kubeconfig)
    try:
        operator.start()
        resources.apply("BrokerCluster", "main", {"replicas": 0, "storage": {"size": "1Gi"}})
        resources.wait_reason("BrokerCluster", "main", "Stopped")
        found = cluster.kubectl_json("get", "statefulset", "main", "-n", kube_namespace)
        security = found["spec"]["template"]["spec"]["securityContext"]
        assert security.keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup"})
    finally:
        operator.close()
