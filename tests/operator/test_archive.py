"""``Topic.spec.archive``: its CronJob on a real API server, and what the status makes of its jobs.

No pod runs here: jobs are marked as managed by somebody else, and the tests say how they and their pods end, as the job
controller and the kubelet would. ``tests/e2e/installed/test_archive.py`` has the job itself.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from heliograph_operator.decide.archive_cron_job import OF
from heliograph_operator.objects.kinds import Body

from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

from .broker_side import publish_to, topic_state
from .resources import Resources

ORDERS = "persistent://shop/payments/orders"
NAME = "orders-archive"
ARCHIVE: dict[str, Any] = {
    "schedule": "0 3 * * *",
    "path": "/archive/topics",
    "volumeClaimRef": {"name": "files"},
    "suspend": False,
}


class Runs:
    """The jobs of one archive, made and ended by hand."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._cluster, self._namespace = resources.cluster, resources.namespace

    def kubectl(self, *arguments: str) -> str:
        return self._cluster.kubectl(*arguments, "-n", self._namespace)

    def cron_job(self) -> dict[str, Any]:
        found: dict[str, Any] = self._cluster.kubectl_json("get", "cronjob", NAME, "-n", self._namespace)
        return found

    def wait_cron_job(self) -> dict[str, Any]:
        found: dict[str, Any] = self._resources.wait("the CronJob is there", self.cron_job)
        return found

    def begin(self, name: str) -> Body:
        """Make a job as the CronJob would, and say that it began; return it."""
        cron = self.cron_job()
        template = cron["spec"]["jobTemplate"]
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": NAME, "uid": cron["metadata"]["uid"]}
        metadata = {"name": name, "namespace": self._namespace, "labels": template["metadata"]["labels"]}
        self._cluster.apply(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    **metadata,
                    "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
                },
                "spec": {**template["spec"], "managedBy": "example.org/test"},
            }
        )
        self._status("job", name, {"startTime": "2026-01-01T03:00:00Z", "active": 1, "ready": 0})
        job: Body = self._cluster.kubectl_json("get", "job", name, "-n", self._namespace)
        return job

    def end(self, job: Body, *, message: str, succeeded: bool = True) -> None:
        """Make the job's pod and say what it ended with."""
        name, at = job["metadata"]["name"], "2026-01-01T03:00:42Z"
        template = job["spec"]["template"]
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
        container = template["spec"]["containers"][0]
        self._cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{name}-pod", "namespace": self._namespace, "labels": labels},
                # No scheduler is called so: nothing runs.
                "spec": {"schedulerName": "nobody", "containers": [{"name": "archive", "image": container["image"]}]},
            }
        )
        ended = {"exitCode": 0 if succeeded else 1, "reason": "Completed" if succeeded else "Error", "message": message}
        state = {"name": "archive", "image": "x", "imageID": "x", "ready": False, "restartCount": 0}
        terminated = {"terminated": {**ended, "startedAt": at, "finishedAt": at}}
        phase = "Succeeded" if succeeded else "Failed"
        self._status("pod", f"{name}-pod", {"phase": phase, "containerStatuses": [{**state, "state": terminated}]})
        kinds = ("SuccessCriteriaMet", "Complete") if succeeded else ("FailureTarget", "Failed")
        for number, kind in enumerate(kinds):
            conditions = [
                {"type": each, "status": "True", "reason": "Test", "lastTransitionTime": at, "lastProbeTime": at}
                for each in kinds[: number + 1]
            ]
            status: dict[str, Any] = {"conditions": conditions}
            if kind in ("Complete", "Failed"):
                status |= {"active": 0, "succeeded" if succeeded else "failed": 1}
                status |= {"completionTime": at} if succeeded else {}
            self._status("job", name, status)

    def _status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        patch = json.dumps({"status": status})
        self.kubectl("patch", kind, name, "--subresource=status", "--type=merge", "-p", patch)


CONSENT = {"enabled": True, "volumeClaims": ["files"]}
pytestmark = pytest.mark.parametrize("operator", [("--archives",)], indirect=True, ids=["archives"])


def allow(resources: Resources, archives: dict[str, Any] | None) -> None:
    """Let the BrokerCluster say which archives it allows."""
    patch = json.dumps({"spec": {"archives": archives}})
    resources.cluster.kubectl("patch", "bcl", "main", "-n", resources.namespace, "--type=merge", "-p", patch)


@pytest.fixture
def runs(served: Resources, operator: OperatorProcess) -> Runs:
    """Those of Topic orders, which has an archive and 7 messages that are not in it."""
    allow(served, CONSENT)
    served.family(archive=ARCHIVE)
    return Runs(served)


def archived(resources: Resources) -> dict[str, Any]:
    found: dict[str, Any] = resources.status("Topic", "orders").get("archive", {})
    return found


def test_an_archive_is_a_cron_job_of_the_topics_and_a_subscription_that_holds_messages(
    served: Resources, runs: Runs, broker: BrokerProcess
) -> None:
    cron = runs.wait_cron_job()
    spec = cron["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == ("0 3 * * *", "Etc/UTC", "Forbid")
    (owner,) = cron["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Topic", "orders")
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("heliograph/spark:")
    assert container["args"][0] == "archive"
    for expected in (
        f"--topic={ORDERS}",
        f"--service-url={broker.service_url}",
        f"--admin-url={broker.http_url}",
        "--path=/archive/topics",
        "--file-size=134217728",
        "--result=/dev/termination-log",
    ):
        assert expected in container["args"]
    assert topic_state(broker, ORDERS).subscriptions == ["heliograph-archive"]
    publish_to(broker, ORDERS, 7)
    served.wait("the lag is shown", lambda: archived(served).get("lag") == 7)
    assert served.events("orders", "DriftRepaired") == []
    pending = served.condition("Topic", "orders", "Archived")
    assert (pending["status"], pending["reason"]) == ("Unknown", "ArchivePending")


def test_the_status_tells_of_a_run_of_one_that_failed_and_of_the_next(served: Resources, runs: Runs) -> None:
    runs.wait_cron_job()
    job = runs.begin("first")
    served.wait("the run is seen", lambda: archived(served).get("running") is True)
    runs.end(job, message=json.dumps({"job": "archive", "rows": 12, "lag": 0, "error": None}))
    output = served.wait_reason("Topic", "orders", "ArchiveSucceeded", "Archived")
    assert output == "first archived 12 messages"
    found = archived(served)
    assert (found["rows"], found["running"]) == (12, False)
    assert found["lastRunTime"] == "2026-01-01T03:00:00Z"
    assert found["lastSuccessTime"] == "2026-01-01T03:00:42Z"

    error = "the broker at pulsar://main:6650 does not answer"
    runs.end(runs.begin("second"), message=json.dumps({"rows": 0, "error": error}), succeeded=False)
    assert error in served.wait_reason("Topic", "orders", "ArchiveFailed", "Archived")
    assert served.condition("Topic", "orders")["status"] == "True"
    assert archived(served)["message"] == error
    assert archived(served)["lastSuccessTime"] == "2026-01-01T03:00:42Z"
    served.wait("an Event tells of it", lambda: served.events("orders", "ArchiveFailed"))

    # A program that ended without a result: its log's end is what Kubernetes has.
    runs.end(runs.begin("third"), message="Traceback\nModuleNotFoundError: pyspark", succeeded=False)
    served.wait("its log is reported", lambda: archived(served).get("message") == "ModuleNotFoundError: pyspark")
    runs.end(runs.begin("zfourth"), message=json.dumps({"rows": 1, "error": None}))
    served.wait_reason("Topic", "orders", "ArchiveSucceeded", "Archived")
    assert "message" not in archived(served)
    assert (archived(served)["rows"]) == 1


def test_what_somebody_changed_or_deleted_is_set_right_and_said(served: Resources, runs: Runs) -> None:
    uid = runs.wait_cron_job()["metadata"]["uid"]
    runs.kubectl("patch", "cronjob", NAME, "--type=merge", "-p", '{"spec": {"schedule": "* * * * *"}}')
    served.wait("the schedule is right", lambda: runs.cron_job()["spec"]["schedule"] == "0 3 * * *")
    served.wait("an event reports the CronJob's drift", lambda: served.events("orders", "DriftRepaired"))
    assert "spec.schedule" in served.events("orders", "DriftRepaired")[0]
    runs.kubectl("delete", "cronjob", NAME)
    served.wait("the CronJob is there again", lambda: runs.cron_job()["metadata"]["uid"] != uid)
    served.topic(archive={**ARCHIVE, "schedule": "@hourly", "suspend": True})
    served.wait("a change is followed", lambda: runs.cron_job()["spec"]["schedule"] == "@hourly")
    assert runs.cron_job()["spec"]["suspend"] is True
    served.wait_reason("Topic", "orders", "ArchiveSuspended", "Archived")


def test_a_paused_topic_keeps_its_cron_job_as_somebody_made_it(served: Resources, runs: Runs) -> None:
    runs.wait_cron_job()
    served.annotate("Topic", "orders", "heliograph.dev/paused=true")
    served.wait_reason("Topic", "orders", "Paused")
    runs.kubectl("patch", "cronjob", NAME, "--type=merge", "-p", '{"spec": {"schedule": "* * * * *"}}')
    runs.begin("meanwhile")
    served.wait("the status goes on", lambda: archived(served).get("running") is True)
    assert runs.cron_job()["spec"]["schedule"] == "* * * * *"


def test_a_cron_job_goes_with_the_archive_and_messages_stay_held(
    served: Resources, runs: Runs, broker: BrokerProcess
) -> None:
    runs.wait_cron_job()
    served.topic(archive=None)
    served.wait("the CronJob is gone", lambda: runs.kubectl("get", "cronjobs", "-o", "name") == "")
    served.wait("the status has none", lambda: "archive" not in served.status("Topic", "orders"))
    assert served.condition("Topic", "orders", "Archived") == {}
    assert "unsubscribe it" in served.events("orders", "ArchiveEnded")[0]
    assert topic_state(broker, ORDERS).subscriptions == ["heliograph-archive"]


def test_a_topic_gets_only_the_archive_that_its_cluster_allows(served: Resources, operator: OperatorProcess) -> None:
    served.family(archive=ARCHIVE)
    output = served.wait_reason("Topic", "orders", "ArchiveNotAllowed", "Archived")
    assert output.startswith("BrokerCluster main allows no archives")
    allow(served, CONSENT)
    runs = Runs(served)
    runs.wait_cron_job()
    runs.begin("under-way")
    served.wait("the run is seen", lambda: archived(served).get("running") is True)
    served.topic(archive={**ARCHIVE, "image": "example.org/evil:1", "serviceAccountName": "admin"})
    output = served.wait_reason("Topic", "orders", "ArchiveNotAllowed", "Archived")
    assert "spec.archive.image: BrokerCluster main does not allow 'example.org/evil:1'" in output
    assert "spec.archive.serviceAccountName: BrokerCluster main does not allow 'admin'" in output
    served.wait("the CronJob is gone with its run", lambda: runs.kubectl("get", "cronjobs,jobs", "-o", "name") == "")
    assert "was deleted with its runs" in served.events("orders", "ArchiveEnded")[0]
    allow(served, {**CONSENT, "images": ["example.org/evil:1"], "serviceAccounts": ["admin"]})
    runs.wait_cron_job()
    allow(served, None)
    served.wait("the CronJob is gone with the consent", lambda: runs.kubectl("get", "cronjobs", "-o", "name") == "")
    assert served.events("orders", "DriftRepaired") == []


def test_a_run_ends_before_its_topic_is_deleted(served: Resources, runs: Runs, broker: BrokerProcess) -> None:
    runs.wait_cron_job()
    runs.begin("under-way")
    # A finalizer that holds up the end of the job holds up the topic's.
    runs.kubectl("patch", "job", "under-way", "--type=merge", "-p", '{"metadata": {"finalizers": ["example.org/x"]}}')
    served.wait("the run is seen", lambda: archived(served).get("running") is True)
    served.delete("Topic", "orders")
    served.wait("the CronJob is to go", lambda: "deletionTimestamp" in runs.cron_job()["metadata"])
    assert topic_state(broker, ORDERS)
    served.wait(
        "the run is to go",
        lambda: "deletionTimestamp" in runs.kubectl("get", "job", "under-way", "-o", "jsonpath={.metadata}"),
    )
    runs.kubectl("patch", "job", "under-way", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    served.wait_gone("Topic", "orders")
    assert runs.kubectl("get", "cronjobs", "-o", "name") == ""


def test_a_cron_job_of_somebody_else_is_named_and_left_alone(
    served: Resources, operator: OperatorProcess, cluster: Cluster
) -> None:
    container = {"name": "x", "image": "x"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": {"spec": pod}}}}
    metadata = {"name": NAME, "namespace": served.namespace, "labels": {OF: "another"}}
    cluster.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec})
    allow(served, CONSENT)
    served.family(archive=ARCHIVE)
    message = served.wait_reason("Topic", "orders", "Conflict", "Archived")
    assert NAME in message
    served.delete("Topic", "orders")
    served.wait_gone("Topic", "orders")
    found = cluster.kubectl_json("get", "cronjob", NAME, "-n", served.namespace)
    assert found["spec"]["schedule"] == "0 0 1 1 *"
