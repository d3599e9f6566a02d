"""Texts of specs reach a container as they are: Kubernetes would put the values of variables, also secret ones, in."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.resources.archive_consent_spec import ArchiveJobsSpec
from heliograph_api.resources.archive_spec import ArchiveSpec
from heliograph_api.resources.backup_spec import BackupSpec, RestoreSpec
from heliograph_operator.decide.archive_cron_job import ArchiveSite, Source, cron_job
from heliograph_operator.decide.backup_jobs import BackupPods, delete_job, push_job
from heliograph_operator.decide.literal_text import literal
from heliograph_operator.decide.restore import restoring

from .backups import BUCKET, backup
from .bodies import body

SECRET = "$(AWS_SECRET_ACCESS_KEY)"
STORE: dict[str, Any] = {"s3": {**BUCKET["s3"], "endpoint": f"http://s3:80{SECRET}", "region": f"x{SECRET}"}}


def expanded(text: str, variables: dict[str, str]) -> str:
    """Replace variables as Kubernetes does (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    found, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            found, at = found + text[at], at + 1
        elif text[at + 1] == "$":
            found, at = found + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            found, at = found + variables.get(name, f"$({name})"), end + 1
        else:
            found, at = found + text[at : at + 2], at + 2
    return found


def texts(container: dict[str, Any]) -> list[str]:
    given = [*container["args"], *(each["value"] for each in container.get("env", ()) if "value" in each)]
    return [expanded(each, {"AWS_SECRET_ACCESS_KEY": "hunter2", "POD_IP": "10.0.0.1"}) for each in given]


@pytest.mark.parametrize(
    "text", ["plain", "$", "a$", "$$", "$(X)", "$$(X)", "$(AWS_SECRET_ACCESS_KEY)", "$($(X))", "$("]
)
def test_a_text_is_what_it_was(text: str) -> None:
    assert expanded(literal(text), {"X": "x", "AWS_SECRET_ACCESS_KEY": "hunter2"}) == text


def test_the_jobs_of_a_backup_show_no_key_of_their_store() -> None:
    stated = backup("monday", STORE)
    spec = BackupSpec.model_validate(stated["spec"])
    pods = BackupPods("image", True, {})
    for job in (push_job(spec, stated, pods, "http://x", "uid"), delete_job(spec.destination, stated, pods)):
        (container,) = job["spec"]["template"]["spec"]["containers"]
        assert "hunter2" not in str(texts(container))
        assert f"http://s3:80{SECRET}" in texts(container)
        assert f"x{SECRET}" in texts(container)


def test_a_restore_shows_no_key_of_its_store() -> None:
    before_start = restoring(RestoreSpec.model_validate({"destination": STORE}), None, {})
    assert before_start is not None
    given = {"args": before_start.arguments, "env": before_start.variables}
    assert "hunter2" not in str(texts(given))
    assert f"http://s3:80{SECRET}" in texts(given)


def test_an_archive_shows_no_variable_of_its_secret() -> None:
    spec = ArchiveSpec.model_validate(
        {
            "schedule": "@daily",
            "path": "s3a://bucket/directory",
            "secretRef": {"name": "store"},
            "conf": {"spark.hadoop.fs.s3a.endpoint": f"http://s3:80{SECRET}"},
            "master": "k8s://https://kubernetes.default.svc",
        }
    )
    topic = f"persistent://shop/payments/x{SECRET}"
    made = cron_job(
        spec, body("Topic", "orders"), Source(topic, "pulsar://x", "http://x"), ArchiveSite("i"), ArchiveJobsSpec()
    )
    (container,) = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    given = texts(container)
    assert "hunter2" not in str(given)
    assert f"--topic={topic}" in given
    assert f"--conf=spark.hadoop.fs.s3a.endpoint=http://s3:80{SECRET}" in given
    assert "--conf=spark.driver.host=10.0.0.1" in given
