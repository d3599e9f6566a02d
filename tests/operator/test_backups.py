"""Backups, their schedule and a restore on a real API server, with a real broker.

No pod runs here: no node has the label that they ask for. The tests run the command of a pod's container on this host
and report its end as the kubelet would. ``tests/e2e/test_backup_guide.py`` has the pods themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect
from tests.support.cluster import ClusterCommandError
from tests.support.operator_process import OperatorProcess

from .broker_side import publish_to
from .resources import Resources

NOWHERE = {"nodeSelector": {"example.org/no-node": "has-this"}}
DESTINATION = {"volume": {"claimRef": {"name": "disk"}, "directory": "team/main"}}
SPEC: dict[str, Any] = {"clusterRef": {"name": "main"}, "destination": DESTINATION}
AT = "2026-01-01T03:00:42Z"


class Pods:
    """The pods of Jobs and brokers: a test runs their containers, in directories of this host."""

    def __init__(self, resources: Resources, directory: Path) -> None:
        self._resources = resources
        self._directory = directory
        self.data = directory / "data"

    def kubectl(self, *arguments: str) -> str:
        return self._resources.cluster.kubectl(*arguments, "-n", self._resources.namespace)

    def of_job(self, job: str) -> dict[str, Any]:
        """Return the newest pod of a Job that has not ended, once it is there."""

        def waiting() -> dict[str, Any] | None:
            selector = f"batch.kubernetes.io/job-name={job}"
            found = self._resources.cluster.kubectl_json(
                "get", "pods", "-l", selector, "-n", self._resources.namespace
            )["items"]
            return next((pod for pod in found if pod["status"].get("phase") == "Pending"), None)

        found: dict[str, Any] = self._resources.wait(f"Job {job} has a pod", waiting)
        return found

    def run(self, container: dict[str, Any]) -> dict[str, Any]:
        """Run the command of a container; return how it ended, as the status of a pod has it."""
        result = self._directory / "termination-log"
        result.unlink(missing_ok=True)
        places = {
            "/dev/termination-log": str(result),
            "file:///backups": f"file://{self._directory}/backups",
            "/scratch": str(self._directory / "scratch"),
            "/data": str(self.data),
        }
        arguments = []
        for argument in container["args"]:
            place = next((each for each in places if argument.startswith(each)), "")
            arguments.append(places.get(place, "") + argument.removeprefix(place))
        command = [sys.executable, "-m", "heliograph_broker", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        message = result.read_text() if result.exists() else done.stderr
        ended = {"exitCode": done.returncode, "reason": "Error" if done.returncode else "Completed"}
        return {**ended, "message": message, "startedAt": AT, "finishedAt": AT}

    def end(self, pod: dict[str, Any], ended: dict[str, Any]) -> None:
        """Report the end of the only container of a Job's pod."""
        state = {"image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
        phase = "Failed" if ended["exitCode"] else "Succeeded"
        status = {"phase": phase, "containerStatuses": [{"name": "backup", **state}]}
        self.report(pod["metadata"]["name"], status)

    def report(self, pod: str, status: dict[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch)

    def finish(self, job: str) -> dict[str, Any]:
        """Run the next pod of a Job to its end; return how it ended."""
        pod = self.of_job(job)
        (container,) = pod["spec"]["containers"]
        ended = self.run(container)
        self.end(pod, ended)
        return ended

    def damage(self, backup: str) -> None:
        """Change a byte of a stored backup."""
        (part,) = (self._directory / "backups" / "team" / "main" / backup).glob("part-*")
        content = part.read_bytes()
        part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def stored(self) -> set[str]:
        """Return the names of the stored backups, complete or not."""
        directory = self._directory / "backups" / "team" / "main"
        return {path.name for path in directory.iterdir() if any(path.iterdir())} if directory.exists() else set()


@pytest.fixture
def pods(resources: Resources, broker: BrokerProcess, tmp_path: Path) -> Pods:
    """Those of BrokerCluster main, which stands for the broker of this host; it has a message for somebody."""
    resources.apply("BrokerCluster", "main", NOWHERE, annotations={"heliograph.dev/managed": "false"})
    resources.endpoints("main", broker.http_url, broker.service_url)
    with closing(connect(broker.service_url)) as client:
        client.subscribe("orders", "keeps").close()
    publish_to(broker, "orders", 3)
    return Pods(resources, tmp_path)


def phase(resources: Resources, name: str) -> str:
    return str(resources.status("Backup", name).get("phase", ""))


def test_a_backup_is_stored_verified_and_deleted_with_its_resource(
    resources: Resources, operator: OperatorProcess, pods: Pods
) -> None:
    resources.apply("Backup", "monday", {**SPEC, "verify": True, "deletionPolicy": "Delete"})
    resources.wait_reason("Backup", "monday", "BackupRunning")
    # A second one has to wait.
    resources.apply("Backup", "tuesday", SPEC)
    assert "Backup monday" in resources.wait_reason("Backup", "tuesday", "BackupWaiting")
    assert pods.finish("monday-backup")["exitCode"] == 0
    resources.wait_ready("Backup", "monday")
    status = resources.status("Backup", "monday")
    (name,) = pods.stored()
    assert (status["phase"], status["name"], status["topics"]) == ("Succeeded", name, 1)
    assert name.startswith("monday-")
    assert {"size", "pointInTime", "verifiedTime", "startTime", "completionTime"} <= status.keys()
    shown = pods.kubectl("get", "hbackup", "monday")
    assert shown.splitlines()[0].split()[:4] == ["NAME", "PHASE", "CLUSTER", "SIZE"]
    resources.wait("the second one runs", lambda: phase(resources, "tuesday") == "Running")

    resources.delete("Backup", "monday")
    resources.wait_reason("Backup", "monday", "Deleting")
    assert pods.finish("monday-backup-delete")["exitCode"] == 0
    resources.wait_gone("Backup", "monday")
    assert pods.stored() == set()
    # By default, the stored backup stays; Kubernetes deletes the Jobs.
    assert pods.finish("tuesday-backup")["exitCode"] == 0
    resources.wait_ready("Backup", "tuesday")

    def kept_s() -> bool:
        job = resources.cluster.kubectl_json("get", "job", "tuesday-backup", "-n", resources.namespace)
        return bool(job["spec"].get("ttlSecondsAfterFinished") == 86_400)

    resources.wait("Kubernetes is to delete the Job in a day", kept_s)
    resources.delete("Backup", "tuesday")
    resources.wait_gone("Backup", "tuesday")
    assert len(pods.stored()) == 1
    resources.wait("the Jobs are gone", lambda: pods.kubectl("get", "jobs", "-o", "name") == "")


def test_a_broker_that_cannot_be_backed_up_is_in_the_message_and_the_attempt_in_the_jobs_hands(
    resources: Resources, operator: OperatorProcess, pods: Pods, broker: BrokerProcess
) -> None:
    broker.terminate()
    resources.apply("Backup", "monday", SPEC)
    assert pods.finish("monday-backup")["exitCode"] == 1

    def reported() -> str:
        message = str(resources.condition("Backup", "monday").get("message", ""))
        return message if "it is tried again after" in message else ""

    assert resources.wait("the error is reported", reported)
    # It goes at once: nothing was stored.
    resources.delete("Backup", "monday")
    resources.wait_gone("Backup", "monday")


def test_a_backup_whose_verification_failed_is_not_the_latest(
    resources: Resources, operator: OperatorProcess, pods: Pods
) -> None:
    resources.apply("Backup", "monday", SPEC)
    assert pods.finish("monday-backup")["exitCode"] == 0
    resources.apply("Backup", "tuesday", {**SPEC, "verify": True})
    resources.wait_ready("Backup", "monday")
    pod = pods.of_job("tuesday-backup")
    (container,) = pod["spec"]["containers"]
    verify = container["args"].index("--verify")
    # It is damaged between its upload and its verification.
    upload = {**container, "args": [*container["args"][:verify], *container["args"][verify + 2 :]]}
    assert pods.run(upload)["exitCode"] == 0
    pods.damage(next(name for name in pods.stored() if name.startswith("tuesday-")))
    ended = pods.run(container)
    assert ended["exitCode"] == 1
    pods.end(pod, ended)
    for _ in range(3):
        pods.finish("tuesday-backup")
    message = resources.wait_reason("Backup", "tuesday", "BackupFailed")
    assert "but was not verified" in message
    assert "is damaged" in message
    status = resources.status("Backup", "tuesday")
    assert status["name"].startswith("tuesday-")
    pulled = pods.run({"args": ["backup", "pull", "file:///backups/team/main", "latest", "--data-dir", "/data"]})
    assert f"backup {status['name']} is left out" in pulled["message"]


def test_a_backup_cannot_be_changed_once_it_is_there(resources: Resources, pods: Pods) -> None:
    resources.apply("Backup", "monday", SPEC)
    for change in (
        {"verify": True},
        {"destination": {"volume": {"directory": "other"}}},
        {"clusterRef": {"name": "x"}},
    ):
        with pytest.raises(ClusterCommandError, match="cannot be changed"):
            pods.kubectl("patch", "hbackup", "monday", "--type=merge", "-p", json.dumps({"spec": change}))
    pods.kubectl("patch", "hbackup", "monday", "--type=merge", "-p", '{"spec": {"deletionPolicy": "Delete"}}')


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("monday", {"destination": {}}, "s3 or volume, and not both"),
        ("a" * 50, {}, "at most 49 characters"),
        ("monday", {"destination": {"volume": {"claimRef": {"name": "x"}, "directory": "../x"}}}, "not a path"),
        ("monday", {"destination": {"s3": {"bucket": "B", "prefix": "p", "credentialsRef": {"name": "s"}}}}, "bucket"),
    ],
)
def test_the_api_server_refuses_what_the_operator_does(
    resources: Resources, name: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClusterCommandError, match=message):
        resources.apply("Backup", name, {**SPEC, **change})


def test_a_schedule_creates_backups_and_deletes_old_ones(
    resources: Resources, operator: OperatorProcess, pods: Pods
) -> None:
    resources.apply("ScheduledBackup", "often", {"schedule": "* * * * *", "keep": 1, "template": SPEC})

    def newest(but: str) -> str:
        found = str(resources.status("ScheduledBackup", "often").get("lastBackup", ""))
        return found if found != but else ""

    first = resources.wait("a Backup is created", lambda: newest(""), within_s=180)
    assert pods.finish(f"{first}-backup")["exitCode"] == 0
    second = resources.wait("the next Backup is created", lambda: newest(first), within_s=180)
    resources.cluster.kubectl(
        "patch", "hsbackup", "often", "-n", resources.namespace, "--type=merge", "-p", '{"spec": {"suspend": true}}'
    )
    before = pods.stored()
    assert pods.finish(f"{second}-backup")["exitCode"] == 0
    resources.wait_reason("ScheduledBackup", "often", "BackupSuspended")
    # The first one goes with what is stored, although its deletionPolicy is Retain.
    assert pods.finish(f"{first}-backup-delete")["exitCode"] == 0
    resources.wait_gone("Backup", first)
    assert len(pods.stored()) == 1
    assert pods.stored().isdisjoint(before)
    status = resources.status("ScheduledBackup", "often")
    assert (status["lastSuccess"], status["backups"]) == (second, 1)
    resources.delete("ScheduledBackup", "often")
    resources.wait_gone("Backup", second)
    assert len(pods.stored()) == 1


def test_a_new_broker_begins_with_the_newest_backup_and_nothing_changes_that_later(
    resources: Resources, operator: OperatorProcess, pods: Pods, broker: BrokerProcess, tmp_path: Path
) -> None:
    resources.apply("Backup", "monday", SPEC)
    assert pods.finish("monday-backup")["exitCode"] == 0
    resources.wait_ready("Backup", "monday")
    broker.terminate()

    spec = {**NOWHERE, "bootstrap": {"restoreFrom": {"backup": "never", "destination": DESTINATION}}}
    resources.apply("BrokerCluster", "again", spec)

    def restore(backup: str) -> dict[str, Any]:
        """The container of the broker's pod that restores this backup, once it is there."""
        pod = resources.cluster.kubectl_json("get", "pod", "again-0", "-n", resources.namespace)
        (container,) = pod["spec"]["initContainers"]
        assert backup in container["args"], container["args"]
        found: dict[str, Any] = container
        return found

    def ended(how: dict[str, Any]) -> None:
        state = {"image": "x", "imageID": "x", "ready": False, "restartCount": 0, "state": {"terminated": how}}
        pods.report("again-0", {"initContainerStatuses": [{"name": "restore", **state}]})

    failed = pods.run(resources.wait("the pod is there", lambda: restore("never")))
    ended(failed)
    assert "has no backup 'never'" in resources.wait_reason("BrokerCluster", "again", "RestoreFailed")
    assert resources.condition("BrokerCluster", "again", "Restored")["status"] == "False"
    # Corrected, it begins again.
    correct = {"spec": {"bootstrap": {"restoreFrom": {"backup": "latest"}}}}
    pods.kubectl("patch", "bcl", "again", "--type=merge", "-p", json.dumps(correct))
    good = pods.run(resources.wait("the pod is replaced", lambda: restore("latest"), within_s=180))
    assert good["exitCode"] == 0, good
    ended(good)
    assert "monday-" in resources.wait_reason("BrokerCluster", "again", "Restored", "Restored")
    status = resources.status("BrokerCluster", "again")["restore"]
    assert status["name"] == resources.status("Backup", "monday")["name"]
    assert status["restoredTime"] == AT

    # A later change has no effect on the pods, and says so.
    before = resources.cluster.kubectl_json("get", "statefulset", "again", "-n", resources.namespace)
    other = {"spec": {"bootstrap": {"restoreFrom": {"backup": "other"}}}}
    pods.kubectl("patch", "bcl", "again", "--type=merge", "-p", json.dumps(other))

    def reported() -> bool:
        message = resources.condition("BrokerCluster", "again", "Restored")["message"]
        assert message.endswith("was changed afterwards, which has no effect"), message
        return True

    resources.wait("the status has it", reported)
    now = resources.cluster.kubectl_json("get", "statefulset", "again", "-n", resources.namespace)
    assert now["spec"]["template"] == before["spec"]["template"]

    with BrokerProcess(pods.data, log_path=tmp_path / "restored.log") as restored:
        assert backlog(restored, "orders", "keeps") == 3
