"""A topic is archived by its CronJob, in the installed chart: files on a volume, rows and lag in the status.

The broker has no port without TLS and asks for a token, and its authority is replaced between two runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.client_pod import USER
from tests.e2e.guide import commands
from tests.e2e.waiting import conditions, uid, wait_ready, wait_replaced
from tests.support.cluster_fixtures import Images

from .conftest import HOST, Installation

pytestmark = pytest.mark.spark_image

TOPIC = "persistent://shop/payments/receipts"
#: Spark's driver and one executor, as small as they can be.
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    # Python works beside the Java of 512m.
    "spark.executor.memoryOverhead": "1g",
    "spark.kubernetes.executor.request.cores": "200m",
    # Those that ended are still there to be counted.
    "spark.kubernetes.executor.deleteOnTermination": "false",
    # The etcd of scripts/cluster knows no such watch; asking now and then is enough.
    "spark.kubernetes.executor.enableApiWatcher": "false",
}
MASTER = "k8s://https://kubernetes.default.svc"
#: Time (s) that one run has: a Java and a Python start, on a machine that does other things, too.
RUN_WITHIN_S = 600.0

ROWS = """
import json, sys
from pyarrow import dataset
table = dataset.dataset(sys.argv[1], partitioning="hive", ignore_prefixes=["_", "."]).to_table(columns=["value"])
print(json.dumps(sorted(bytes(value).decode() for value in table.column("value").to_pylist())))
"""


class Archive:
    """Topic ``receipts`` with its archive, and what becomes of it."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.client = installation.client.at(f"pulsar+ssl://{HOST}:6651")
        self.cluster, self.namespace = installation.cluster, installation.namespace

    def topic(self, **archive: Any) -> None:
        """Apply the Topic; without arguments it archives in its job's pod alone."""
        spec = {"schedule": "0 3 1 1 *", "path": "/archive/shop", "volumeClaimRef": {"name": "archive"}, "conf": SMALL}
        self.cluster.apply(
            {
                "apiVersion": "heliograph.dev/v1alpha1",
                "kind": "Topic",
                "metadata": {"name": "receipts", "namespace": self.namespace},
                "spec": {"namespaceRef": {"name": "payments"}, "archive": {**spec, **archive}},
            }
        )
        wait_ready(self.cluster, self.namespace, "htopic/receipts")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.kubectl_json("get", "htopic", "receipts", "-n", self.namespace)
        return {**found["status"]["archive"], "conditions": conditions(found)}

    def wait_lag(self, messages: int) -> None:
        self._wait(f"{messages} messages are to be archived", lambda: self.status().get("lag") == messages, 60)

    def run(self, name: str) -> dict[str, Any]:
        """Have the CronJob's job run now; return the archive's status when the operator has told of it."""
        self._installation.kubectl("create", "job", name, "--from=cronjob/receipts-archive")
        return self.status_of(name)

    def status_of(self, name: str) -> dict[str, Any]:
        """Return the archive's status when the operator has told of a run; it was a good one."""

        def output() -> dict[str, Any]:
            found = self.status()
            archived = found["conditions"]["Archived"]
            assert name in archived.get("message", ""), found
            return found

        found: dict[str, Any] = self._wait(f"run {name} is reported", output, RUN_WITHIN_S)
        assert found["conditions"]["Archived"]["status"] == "True", found
        return found

    def rows(self) -> list[str]:
        """The content of the files, read by a pod of the job's own image from the volume."""
        volume = [{"name": "files", "persistentVolumeClaim": {"claimName": "archive"}}]
        reader = {
            "name": "reader",
            "image": f"heliograph/spark:{self._tag()}",
            "command": ["python", "-c", ROWS, "/archive/shop"],
            "volumeMounts": [{"name": "files", "mountPath": "/archive"}],
        }
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "reader", "namespace": self.namespace},
                "spec": {"restartPolicy": "Never", "containers": [reader], "volumes": volume},
            }
        )
        try:
            self._installation.kubectl(
                "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/reader", "--timeout=120s"
            )
            found: list[str] = json.loads(self._installation.kubectl("logs", "reader"))
            return found
        finally:
            self._installation.kubectl("delete", "pod", "reader", "--grace-period=1")

    def _tag(self) -> str:
        cron = self.cluster.kubectl_json("get", "cronjob", "receipts-archive", "-n", self.namespace)
        image: str = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["image"]
        return image.rpartition(":")[2]

    def authorities(self, name: str) -> str:
        """The authorities in a ConfigMap or a Secret."""
        found = self.cluster.kubectl_json("get", name, "-n", self.namespace)
        assert "ca.crt" in found["data"]
        entry: str = found["data"]["ca.crt"]
        return entry if found["kind"] == "ConfigMap" else base64.b64decode(entry).decode()

    def wait_authorities_of_clients(self) -> None:
        """Wait until the User of the client's pod has the authorities."""
        self._wait("the client has the authorities", lambda: self.authorities(f"secret/{USER}-token"), 90)

    def wait_authorities_of_runs(self, before: str) -> str:
        """The authorities in the Secret of the runs, once they are those that are published, and others than before.

        The operator reads its own ones once a minute.
        """

        def renewed() -> str:
            published, of_runs = self.authorities("cm/default-ca"), self.authorities("secret/receipts-archive-token")
            assert of_runs == published != before
            return of_runs

        found: str = self._wait("runs have the authorities", renewed, 150)
        return found

    def arguments(self) -> list[str]:
        """The command line of the runs."""
        cron = self.cluster.kubectl_json("get", "cronjob", "receipts-archive", "-n", self.namespace)
        found: list[str] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
        return found

    def executors(self) -> list[str]:
        labels = "spark-role=executor"
        found = self.cluster.kubectl_json("get", "pods", "-n", self.namespace, "-l", labels)["items"]
        return [pod["metadata"]["name"] for pod in found]

    def _wait(self, what: str, check: Any, within_s: float) -> Any:
        return self.cluster.wait_for(what, check, within_s=within_s, namespace=self.namespace)


@pytest.fixture
def archive(installation: Installation, images: Images) -> Iterator[Archive]:
    """The image is in the cluster, and so is a volume."""
    assert images["spark"].startswith("heliograph/spark:")
    found = Archive(installation)
    helm = ["upgrade", "heliograph", "charts/heliograph", "-n", installation.namespace, "--reuse-values"]
    installation.cluster.helm(*helm, "--set", "archive.enabled=true,tls.enabled=true", "--wait")
    accounts = {"serviceAccounts": ["heliograph-archive"], "masters": [MASTER]}
    allowed = {"enabled": True, "volumeClaims": ["archive"], **accounts}
    change(installation, archives=allowed, tls={"enabled": True, "only": True})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "archive", "namespace": installation.namespace}
    installation.cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim}
    )
    found.wait_authorities_of_clients()
    # The kubelet would bring them into the pod as well, but later.
    found.client.start(images["client"], shows_token=True)
    yield found
    installation.kubectl("delete", "htopic/receipts", "--timeout=120s")
    installation.kubectl("delete", "pvc/archive", "--wait=false")
    # The other tests connect without TLS.
    change(installation, archives=None, tls=None)


def change(installation: Installation, **spec: Any) -> None:
    """Change the BrokerCluster by what restarts its pod, and wait until that serves again."""
    cluster, namespace = installation.cluster, installation.namespace
    pod = uid(cluster, namespace, "pod/default-0")
    installation.kubectl("patch", "bcl", "default", "--type=merge", "-p", json.dumps({"spec": spec}))
    wait_replaced(cluster, namespace, "default-0", pod)
    wait_ready(cluster, namespace, "brokercluster/default")


def test_a_topic_is_archived_by_its_cron_job_and_then_by_executors(
    installation: Installation, archive: Archive
) -> None:
    archive.topic()
    archive.client.publish(TOPIC, [f"{number:03}" for number in range(100)])
    archive.wait_lag(100)
    assert f"--service-url=pulsar+ssl://{HOST}:6651" in archive.arguments()
    # While the run is under way, another authority is published, beside the one that issues.
    published = archive.authorities("cm/default-ca")
    installation.kubectl("delete", "secret", "default-tls-authority")
    begin, wait, show = commands("docs/operator.md", "Archives")
    installation.shell.run(begin)
    installation.shell.run(wait, timeout_s=RUN_WITHIN_S + 60)
    assert '"rows":100' in installation.shell.run(show)
    first = archive.status_of("archive-now")
    assert first["rows"] == 100
    assert first["lastSuccessTime"] >= first["lastRunTime"]
    archive.wait_lag(0)

    assert published in archive.wait_authorities_of_runs(published)

    # The second run adds what is new, and is done by a pod that the driver's pod has asked for.
    helm = ["upgrade", "heliograph", "charts/heliograph", "-n", installation.namespace, "--reuse-values"]
    installation.cluster.helm(*helm, "--set", "archive.executors=true", "--wait")
    archive.topic(master=MASTER, serviceAccountName="heliograph-archive")
    archive.client.publish(TOPIC, [f"{number:03}" for number in range(100, 150)])
    archive.wait_lag(50)
    second = archive.run("second")
    assert second["rows"] == 50
    assert second["lastSuccessTime"] > first["lastSuccessTime"]
    archive.wait_lag(0)
    assert len(archive.executors()) == 1
    assert archive.rows() == [f"{number:03}" for number in range(150)]
