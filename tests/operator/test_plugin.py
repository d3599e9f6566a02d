"""``kubectl heliograph`` against a real API server, run by kubectl as its plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.e2e.guide import commands
from tests.support.operator_process import OperatorProcess

from .resources import Resources

STATUS, EXPLAIN, LOGS, BACKUP, BUNDLE = (
    command.removeprefix("kubectl heliograph ").split()
    for command in commands("docs/operator.md", "A plugin for kubectl")
)


def run(resources: Resources, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin that is installed beside this Python."""
    environment = resources.cluster.environment
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["kubectl", "heliograph", *arguments, "-n", resources.namespace],
        cwd=directory,
        env=environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_plugin_shows_and_explains_what_is_not_ready(
    served: Resources, operator: OperatorProcess, tmp_path: Path
) -> None:
    served.family()
    assert (STATUS[0], EXPLAIN, LOGS[0]) == ("status", ["explain", "htopic", "orders"], "logs")
    assert "Ready is True: Reconciled" in run(served, tmp_path, *EXPLAIN).stdout
    # There are no pods here.
    assert (
        "no broker pods of default in this Kubernetes namespace; name another with -n"
        in run(served, tmp_path, *LOGS).stderr
    )
    served.apply("Topic", "again", {"namespaceRef": {"name": "payments"}, "name": "orders"})
    served.wait_reason("Topic", "again", "Conflict")
    shown = run(served, tmp_path, "status")
    assert shown.returncode == 1, shown.stderr
    assert f"Topic {served.namespace}/again: Conflict: " in shown.stdout
    assert "Topic orders" in shown.stdout

    explained = run(served, tmp_path, "explain", "htopic", "again")
    assert explained.returncode == 0, explained.stderr
    assert "Ready is False: Conflict" in explained.stdout
    assert "What to do: delete one of them" in explained.stdout
    assert "Error from server (NotFound)" in run(served, tmp_path, "explain", "htopic", "none").stderr

    # The operator is here, the cluster of the schedule is not.
    volume = {"volume": {"claimRef": {"name": "disk"}, "directory": "main"}}
    template = {"clusterRef": {"name": "nobody"}, "destination": volume}
    served.apply("ScheduledBackup", "nightly", {"schedule": "@yearly", "suspend": True, "template": template})
    assert BACKUP == ["backup", "now", "--like", "nightly"]
    created = run(served, tmp_path, *BACKUP)
    assert (created.returncode, created.stdout) == (0, "backups.heliograph.dev now created\n"), created.stderr
    served.wait_reason("Backup", "now", "ParentMissing")
    assert "Ready is False: ParentMissing" in run(served, tmp_path, "explain", "hbackup", "now").stdout

    bundle = run(served, tmp_path, *BUNDLE, "-f", "bundle.tar.gz")
    assert bundle.returncode == 0, bundle.stderr
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert {"bundle/topics.json", "bundle/events.txt", "bundle/version.json"} <= set(archive.getnames())
