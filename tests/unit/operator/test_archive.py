"""An archive's CronJob follows from the Topic, and its runs from what jobs and pods say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from heliograph_api.resources.archive_consent_spec import ArchiveJobsSpec
from heliograph_api.resources.archive_spec import ArchiveSpec
from heliograph_operator.decide.archive_cron_job import ArchiveSite, Source, cron_job, cron_job_name
from heliograph_operator.decide.archive_runs import runs_of, with_result

from .bodies import topic

SITE = ArchiveSite("heliograph/spark:1")
SOURCE = Source("persistent://shop/payments/orders", "pulsar://main:6650", "http://main:8080")
ON_VOLUME = {"schedule": "@hourly", "path": "/archive/x", "volumeClaimRef": {"name": "files"}}


def pod_of(jobs: dict[str, Any] | None = None, site: ArchiveSite = SITE, **archive: Any) -> dict[str, Any]:
    spec = ArchiveSpec.model_validate({**ON_VOLUME, **archive})
    made = cron_job(spec, topic(), SOURCE, site, ArchiveJobsSpec.model_validate(jobs or {}))
    found: dict[str, Any] = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def test_a_pod_keeps_to_the_restricted_standard_and_has_no_token() -> None:
    pod = pod_of()
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/tmp", "/archive"}


def test_what_the_resource_says_is_in_the_pod() -> None:
    resources = {"limits": {"memory": "2Gi"}}
    pod = pod_of(
        image="mine:2",
        serviceAccountName="archiver",
        secretRef={"name": "s3"},
        resources=resources,
        fileSize="1Mi",
        mergeTo="1Gi",
        keep="90d",
        conf={"spark.driver.memory": "1g"},
    )
    (container,) = pod["containers"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("archiver", True)
    assert container["image"] == "mine:2"
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert container["resources"] == resources
    expected = {"--file-size=1048576", "--merge-to=1073741824", "--keep=90d", "--master=local[*]"}
    assert expected | {"--conf=spark.driver.memory=1g"} <= set(container["args"])
    # An image of an older version knows neither.
    (container,) = pod_of()["containers"]
    assert not any(argument.startswith(("--merge-to", "--keep")) for argument in container["args"])


def test_the_pods_are_as_the_cluster_says() -> None:
    jobs = {
        "imagePullSecrets": [{"name": "registry"}, {"name": "mirror"}],
        "nodeSelector": {"pool": "batch"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
        "priorityClassName": "low",
        "resources": {"limits": {"memory": "4Gi"}},
        "activeDeadlineSeconds": 3600,
    }
    pod = pod_of(jobs, master="k8s://https://kubernetes.default.svc")
    assert {name: pod[name] for name in jobs.keys() & pod.keys()} == {
        name: jobs[name] for name in ("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName")
    }
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"memory": "4Gi"}}
    assert "--conf=spark.kubernetes.container.image.pullSecrets=registry,mirror" in container["args"]
    assert "--conf=spark.kubernetes.executor.node.selector.pool=batch" in container["args"]
    # A Topic's own resources come first; without any, a pod is never the first to be evicted.
    (container,) = pod_of(jobs, resources={"limits": {"cpu": 1}})["containers"]
    assert container["resources"] == {"limits": {"cpu": 1}}
    (container,) = pod_of()["containers"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize(("jobs", "seconds"), [({}, 86_400), ({"activeDeadlineSeconds": 3600}, 3600)])
def test_a_run_that_hangs_ends(jobs: dict[str, Any], seconds: int) -> None:
    spec = ArchiveSpec.model_validate(ON_VOLUME)
    made = cron_job(spec, topic(), SOURCE, SITE, ArchiveJobsSpec.model_validate(jobs))
    assert made["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] == seconds


def test_where_users_are_assigned_no_pod_of_an_archive_names_one() -> None:
    for fixed, file in ((True, "executor-pod.yaml"), (False, "executor-pod-assigned-user.yaml")):
        pod = pod_of(site=ArchiveSite("spark", fixed_user=fixed), master="k8s://https://kubernetes.default.svc")
        assert ("runAsUser" in pod["securityContext"]) is fixed
        option = f"--conf=spark.kubernetes.executor.podTemplateFile=/opt/heliograph/{file}"
        assert option in pod["containers"][0]["args"]
        template = yaml.safe_load((Path(__file__).parents[3] / "images" / file).read_text())
        assert ("runAsUser" in template["spec"]["securityContext"]) is fixed
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_executors_have_the_image_the_volume_and_the_way_back_to_the_job_unless_the_resource_says_otherwise() -> None:
    pod = pod_of(master="k8s://https://kubernetes.default.svc", conf={"spark.driver.bindAddress": "::"})
    arguments = pod["containers"][0]["args"]
    for expected in (
        "--conf=spark.kubernetes.container.image=heliograph/spark:1",
        "--conf=spark.kubernetes.namespace=team",
        "--conf=spark.driver.host=$(POD_IP)",
        "--conf=spark.kubernetes.driver.pod.name=$(POD_NAME)",
        "--conf=spark.kubernetes.executor.volumes.persistentVolumeClaim.archive.options.claimName=files",
        "--conf=spark.driver.bindAddress=::",
        # A NetworkPolicy lets executors read from the broker by this label.
        "--conf=spark.kubernetes.executor.label.app.kubernetes.io/name=heliograph-archive",
    ):
        assert expected in arguments
    assert "--conf=spark.driver.bindAddress=$(POD_IP)" not in arguments


@pytest.mark.parametrize("name", ["orders", "a" * 44, "a" * 45, "a" * 253, "a.b.c", "a" * 34 + "." + "b" * 60])
def test_names_of_cron_jobs_fit(name: str) -> None:
    made = cron_job_name(name)
    assert len(made) <= 52
    assert re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", made)


def test_names_that_are_cut_stay_different() -> None:
    names = ["a" * 250 + "b", "a" * 250 + "c", "x.y", "x-y", "x.y.z"]
    assert len({cron_job_name(name) for name in names}) == len(names)


def job(name: str, began: str, ended: str = "", kind: str = "Complete") -> dict[str, Any]:
    status: dict[str, Any] = {"startTime": began}
    if ended:
        status["conditions"] = [{"type": kind, "status": "True", "message": "said", "lastTransitionTime": ended}]
        status |= {"completionTime": ended} if kind == "Complete" else {}
    return {"metadata": {"name": name, "uid": name}, "status": status}


def pod(message: str, exit_code: int = 0, at: str = "1") -> dict[str, Any]:
    end = {"message": message, "exitCode": exit_code, "reason": "Error" if exit_code else "Completed", "finishedAt": at}
    return {"status": {"containerStatuses": [{"name": "archive", "state": {"terminated": end}}]}}


def test_runs_are_in_the_order_in_which_they_began() -> None:
    runs = runs_of(
        [job("b", "2026-01-02"), job("a", "2026-01-01", "2026-01-01", "Failed"), job("c", "2026-01-03", "x")]
    )
    assert [(run.name, run.succeeded) for run in runs] == [("a", False), ("b", None), ("c", True)]
    assert (runs[0].message, runs[2].message) == ("said", "")


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([], "said"),
        ([pod(json.dumps({"error": "no such topic"}), 1)], "no such topic"),
        ([pod("log\nlast line\n", 1)], "last line"),
        ([pod("", 137)], "its container ended with Error (exit code 137)"),
        ([pod(json.dumps({"error": "second"}), 1, "2"), pod(json.dumps({"error": "first"}), 1, "1")], "second"),
        ([pod("[1, 2]", 1)], "[1, 2]"),
    ],
)
def test_a_run_that_failed_says_why_in_the_best_words_there_are(pods: list[dict[str, Any]], message: str) -> None:
    (run,) = runs_of([job("a", "2026-01-01", "2026-01-01", "Failed")])
    assert with_result(run, pods).message == message


@pytest.mark.parametrize(
    ("output", "rows"), [('{"rows": 5}', 5), ('{"rows": "5"}', None), ('{"rows": -1}', None), ("", None)]
)
def test_rows_are_those_of_the_jobs_own_word(output: str, rows: int | None) -> None:
    (run,) = runs_of([job("a", "2026-01-01", "2026-01-01")])
    done = with_result(run, [pod(output)])
    assert (done.rows, done.message) == (rows, "")
