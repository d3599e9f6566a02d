"""docs/recovery.md: install, publish, back up, delete everything, restore, receive: every command as written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import APP_VERSION, Images, add_diagnosis, only_operator

from .guide import Shell, script
from .release import NAMESPACE, remove
from .waiting import uid

pytestmark = pytest.mark.whole_cluster

GUIDE = "docs/recovery.md"


@pytest.fixture
def shell(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    with only_operator(cluster, everywhere=True):
        remove(cluster)
        yield Shell(cluster.environment, tmp_path)
        add_diagnosis(request.node, cluster, NAMESPACE)
        remove(cluster)


def test_a_message_comes_back_after_everything_was_deleted(cluster: Cluster, images: Images, shell: Shell) -> None:
    for target in ("operator", "broker", "client"):
        assert images[target] == f"heliograph/{target}:{APP_VERSION}"
    here = ("-n", NAMESPACE)
    shell.run(script(GUIDE, "Install and publish"), timeout_s=600)
    volume = uid(cluster, NAMESPACE, "pvc/data-default-0")

    assert "Succeeded" in shell.run(script(GUIDE, "Back up"), timeout_s=600)
    stored = cluster.kubectl_json("get", "hbackup", "first", *here)["status"]
    assert stored["topics"] == 1

    shell.run(script(GUIDE, "Lose everything"), timeout_s=600)
    claims = cluster.kubectl("get", "pvc,statefulsets,deployments,heliograph", *here, "-o", "name").split()
    assert claims == ["persistentvolumeclaim/backups"]

    assert shell.run(script(GUIDE, "Restore"), timeout_s=900).splitlines()[-1] == "order 1"
    assert uid(cluster, NAMESPACE, "pvc/data-default-0") != volume
    restore = cluster.kubectl_json("get", "brokercluster", "default", *here)["status"]["restore"]
    assert (restore["name"], restore["pointInTime"]) == (stored["name"], stored["pointInTime"])
    # Nothing is restored a second time.
    shell.run(f"kubectl delete pod default-0 -n {NAMESPACE}")
    shell.run(f"kubectl wait -n {NAMESPACE} --for=condition=Ready --timeout=5m brokercluster/default")
    token = f"kubectl get secret client-token -n {NAMESPACE} -o jsonpath={{.data.token}} | base64 -d"
    # A file, which the command reads more than once.
    stats = "cat > /tmp/token; HELIOGRAPH_TOKEN_FILE=/tmp/token heliograph topics stats orders"
    backlog = f"{token} | kubectl exec -i -n {NAMESPACE} default-0 -c broker -- sh -c '{stats}'"
    assert "audit" in shell.run(backlog)
