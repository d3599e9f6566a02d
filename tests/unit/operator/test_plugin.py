"""``kubectl heliograph``: what it makes of the objects that kubectl returns, and its errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.rollout import TEMPLATE, with_origin
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.reason_guide import (
    OF_BACKUPS,
    OF_CLUSTERS,
    OF_CONNECTIONS,
    OF_POLICIES,
    OF_USERS,
    guide,
)
from heliograph_operator.plugin.explanation import explanation
from heliograph_operator.plugin.overview import cluster_rows, connection_rows, kind_rows, not_ready, state_of
from heliograph_operator.plugin.support_bundle import redacted

from tests.support.cluster import PROJECT
from tests.support.programs import Programs

from .test_cluster_objects import made

_ROWS = re.compile(r"\| reason \| it means \| what to do \|\n\|---\|---\|---\|\n(.*?)\n\n", re.DOTALL)


def resource(kind: str = "Topic", name: str = "orders", *, status: Any = None, **metadata: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "metadata": {"namespace": "shop", "name": name, "generation": 2, **metadata},
        "status": status or {},
    }


def ready(status: str, reason: str = "Reconciled", message: str = "", generation: int = 2) -> dict[str, Any]:
    found = {"type": "Ready", "status": status, "reason": reason, "message": message, "observedGeneration": generation}
    return {"conditions": [found], "observedGeneration": generation}


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("docs/operator.md", OF_POLICIES),
        ("docs/install.md", OF_CLUSTERS),
        ("docs/backup.md", OF_BACKUPS),
        ("docs/broker-connections.md", OF_CONNECTIONS),
        ("docs/security-kubernetes.md", OF_USERS),
    ],
)
def test_the_tables_of_the_guides_are_those_of_the_command(page: str, rows: Any) -> None:
    found = _ROWS.search((PROJECT / page).read_text("utf-8"))
    assert found is not None
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    assert shown == [[", ".join(f"`{each}`" for each in row.reasons), row.means, row.advice] for row in rows]


def test_every_reason_has_a_row() -> None:
    of_backups = {reason for row in OF_BACKUPS for reason in row.reasons}
    kinds = ("Topic", "BrokerConnection", "User")
    known = [each for each in Reason if each is not Reason.DELETING and any(guide(kind, each) for kind in kinds)]
    assert [each for each in Reason if each not in of_backups and each not in known] == [Reason.DELETING]
    assert all(guide(kind, each) is not None for kind in ("Backup", "ScheduledBackup") for each in of_backups)
    assert [each for each in ClusterReason if guide("BrokerCluster", each) is None] == []


def test_a_resource_is_ready_only_for_the_spec_as_it_is() -> None:
    assert state_of(resource(status=ready("True"))).ready
    assert not state_of(resource(status=ready("True"), deletionTimestamp="2026-01-01T00:00:00Z")).ready
    earlier = state_of(resource(status=ready("True", generation=1)))
    assert (earlier.ready, earlier.reason) == (False, "NotReconciled")
    assert state_of(resource()).message == "the operator has not reported yet"


def test_clusters_and_kinds_have_a_row_each() -> None:
    status = ready("True") | {"replicas": 1, "readyReplicas": 1, "endpoints": {"broker": "pulsar://main.shop:6650"}}
    bodies = [
        resource("BrokerCluster", "main", status=status),
        resource(status=ready("True")),
        resource(name="again", status=ready("False", "Conflict", "Topic orders has the same topic")),
    ]
    assert cluster_rows(bodies) == [("shop", "main", "True", "Reconciled", "1/1", "-", "pulsar://main.shop:6650")]
    assert ("topics.heliograph.dev", "2", "1") in kind_rows(bodies)
    assert [row[0] for row in kind_rows(bodies)] == [
        f"{each}.heliograph.dev"
        for each in ("tenants", "namespaces", "topics", "subscriptions", "backups", "scheduledbackups", "users")
    ]
    assert [(each.name, each.reason) for each in not_ready(bodies)] == [("again", "Conflict")]


def test_connections_have_a_row_with_what_answers() -> None:
    status = ready("True") | {"product": "Apache Pulsar", "version": "4.2.4"}
    found = {**resource("BrokerConnection", "external", status=status), "spec": {"adminUrl": "http://pulsar:8080"}}
    unreached = {**found, "status": ready("False", "BrokerUnreachable")}
    assert connection_rows([resource(), found, unreached]) == [
        ("shop", "external", "True", "Reconciled", "Apache Pulsar", "4.2.4", "http://pulsar:8080"),
        ("shop", "external", "False", "BrokerUnreachable", "-", "-", "http://pulsar:8080"),
    ]


def test_an_explanation_says_what_a_reason_means_and_what_to_do() -> None:
    annotations = {"heliograph.dev/broker-object": "persistent://shop/payments/orders", "heliograph.dev/paused": "true"}
    body = resource(status=ready("False", "ShrinkRefused", "it has 4 partitions"), annotations=annotations)
    event = {"reason": "Applied", "message": "created", "lastTimestamp": "2026-01-01T00:00:00Z", "count": 3}
    text = "\n".join(explanation(body, [event]))
    assert "object in the broker: persistent://shop/payments/orders" in text
    assert "paused: nothing is changed until" in text
    assert "Ready is False: ShrinkRefused\n  it has 4 partitions\n  It means: the topic has more partitions" in text
    assert "What to do: set the number it has" in text
    assert "2026-01-01T00:00:00Z Applied: created (3 times)" in text
    unseen = "\n".join(explanation(resource(), []))
    assert (
        "The operator has not reported anything yet: see `kubectl heliograph logs --operator -n OPERATOR-NAMESPACE`."
        in unseen
    )


def test_links_of_the_guide_are_left_out() -> None:
    found = guide("Topic", "AdoptionPending")
    assert found is not None
    assert "](" not in found.advice
    assert "adoptionPolicy: Replace" in found.advice


def test_values_of_environment_variables_are_removed_but_not_our_own() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "a"}
    body = {
        "metadata": {"annotations": applied},
        "spec": {
            "containers": [{"env": [{"name": "AWS_KEY", "value": "x"}, {"name": "HELIOGRAPH_BIND", "value": "*"}]}]
        },
    }
    assert redacted(body) == {
        "metadata": {"annotations": {"team": "a"}},
        "spec": {
            "containers": [
                {"env": [{"name": "AWS_KEY", "value": "(removed)"}, {"name": "HELIOGRAPH_BIND", "value": "*"}]}
            ]
        },
    }


def test_the_kept_pod_template_of_a_stateful_set_has_no_values_of_variables() -> None:
    variables = [{"name": "DB_PASSWORD", "value": "hunter2"}]
    sidecar = {"name": "logs", "image": "logs:1", "env": [{"name": "TOKEN", "value": "s3cr3t"}]}
    body = {"apiVersion": "heliograph.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "main"}}
    cluster = BrokerCluster.model_validate(body)
    stateful_set = made(env=variables, podTemplate={"spec": {"containers": [sidecar]}})["StatefulSet main"]
    shown = redacted(with_origin(stateful_set, cluster))
    assert "hunter2" not in json.dumps(shown)
    assert "s3cr3t" not in json.dumps(shown)
    template = json.loads(shown["metadata"]["annotations"][TEMPLATE])
    assert template == shown["spec"]["template"]
    assert "HELIOGRAPH_METRICS_PORT" in json.dumps(template)


def test_a_kept_pod_template_that_cannot_be_read_is_left_out() -> None:
    found = redacted({"metadata": {"annotations": {TEMPLATE: "TOKEN=s3cr3t"}}})
    assert found == {"metadata": {"annotations": {TEMPLATE: "(removed)"}}}


class Plugin:
    """Runs the command, for which the only program on the ``PATH`` may be a ``kubectl`` that is a shell script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._programs = Programs(directory)

    def kubectl(self, script: str) -> None:
        self._programs.add("kubectl", script)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "heliograph_operator.plugin", *arguments],
            cwd=self.directory,
            env={"PATH": str(self.directory), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_what_kubectl_complains_of_is_the_error(plugin: Plugin) -> None:
    assert plugin.run("status").stderr == "Error: there is no kubectl on the PATH\n"
    plugin.kubectl("echo 'error: You must be logged in to the server' >&2; exit 1")
    for arguments in (("status", "-A"), ("explain", "htopic", "orders"), ("logs",)):
        refused = plugin.run(*arguments)
        assert (refused.returncode, refused.stderr) == (2, "Error: error: You must be logged in to the server\n")


def test_wrong_arguments_are_named(plugin: Plugin) -> None:
    for arguments, message in (
        (("status", "-n", "a", "-A"), "not both"),
        (("status", "-o", "yaml"), "text or json"),
        (("explain", "queue", "a"), "none of bcl, hconnection, htenant, hns, htopic, hsub, hbackup, hsbackup"),
        (("logs", "main", "--operator"), "not both"),
    ):
        refused = plugin.run(*arguments)
        assert refused.returncode == 2
        assert message in " ".join(refused.stderr.replace("│", " ").split())


def test_an_empty_place_and_programs_get_their_answers(plugin: Plugin) -> None:
    plugin.kubectl("""echo '{"kind": "List", "items": []}'""")
    assert "There are no resources of heliograph.dev here" in plugin.run("status").stdout
    listed = {"kind": "List", "items": [resource(status=ready("False", "Refused", "no"))]}
    plugin.kubectl(f"echo '{json.dumps(listed)}'")
    found = plugin.run("status", "-o", "json")
    assert found.returncode == 1
    assert json.loads(found.stdout)["notReady"][0]["reason"] == "Refused"


#: Answers a request for a schedule, keeps what is created, and has a Backup that runs once and then has ended.
_BACKUPS = """
case "$*" in
  *scheduledbackups*) echo '{"kind": "ScheduledBackup", "spec": {"template": {"clusterRef": {"name": "main"}}}}';;
  create*) read -r given; echo "$given" > created.json; echo '{"kind": "Backup"}';;
  *) if [ -e began ]; then cat ended.json; exit; fi
     : > began; echo '{"kind": "Backup", "status": {"phase": "Running"}}';;
esac
"""


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_backup_is_created_and_followed(plugin: Plugin, phase: str, code: int) -> None:
    plugin.kubectl("PATH=/usr/bin:/bin\n" + _BACKUPS)
    conditions = [{"type": "Ready", "message": "as the operator says"}]
    ended = {"kind": "Backup", "status": {"phase": phase, "conditions": conditions}}
    (plugin.directory / "ended.json").write_text(json.dumps(ended))
    done = plugin.run("backup", "now", "--like", "nightly", "--verify", "--wait")
    assert (done.returncode, done.stdout.splitlines()) == (
        code,
        [
            "backups.heliograph.dev now created",
            "Running: the operator has not reported yet",
            f"{phase}: as the operator says",
        ],
    ), done.stderr
    created = json.loads((plugin.directory / "created.json").read_text())
    assert created["spec"] == {"clusterRef": {"name": "main"}, "verify": True}
    late = plugin.run("backup", "now", "--like", "nightly", "--wait", "--timeout", "0")
    assert late.returncode == code


def test_a_backup_goes_to_a_bucket_or_a_volume(plugin: Plugin) -> None:
    plugin.kubectl("PATH=/usr/bin:/bin\n" + _BACKUPS)
    bucket = ("--bucket", "b", "--prefix", "p", "--endpoint", "http://s3", "--secret", "store")
    s3 = {"bucket": "b", "prefix": "p", "endpoint": "http://s3", "credentialsRef": {"name": "store"}}
    volume = {"claimRef": {"name": "disk"}, "directory": "main"}
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (bucket, {"s3": s3}),
        (("--claim", "disk", "--directory", "main"), {"volume": volume}),
    ]
    for arguments, destination in places:
        done = plugin.run("backup", "now", "--cluster", "main", *arguments)
        assert done.returncode == 0, done.stderr
        created = json.loads((plugin.directory / "created.json").read_text())
        assert created == {
            "apiVersion": "heliograph.dev/v1alpha1",
            "kind": "Backup",
            "metadata": {"name": "now"},
            "spec": {"clusterRef": {"name": "main"}, "destination": destination},
        }
    wrong: list[tuple[tuple[str, ...], str]] = [
        ((), "give either --like, or --cluster"),
        (("--like", "a", "--cluster", "b"), "give either --like, or --cluster"),
        (("--cluster", "main"), "give --bucket, --prefix and --secret"),
        (("--cluster", "main", "--bucket", "b", "--claim", "c"), "give --bucket, --prefix and --secret"),
    ]
    for arguments, message in wrong:
        refused = plugin.run("backup", "now", *arguments)
        assert refused.returncode == 2
        assert message in " ".join(refused.stderr.replace("│", " ").split())
    plugin.kubectl("PATH=/usr/bin:/bin\n" + _BACKUPS.replace("cat ended.json", "false"))
    (plugin.directory / "began").unlink(missing_ok=True)
    late = plugin.run("backup", "now", "--like", "nightly", "--wait", "--timeout", "0")
    assert (late.returncode, late.stderr) == (1, "Error: Backup now has not ended within 0 s; it goes on\n")


def test_a_bundle_says_what_could_not_be_read_and_replaces_no_file(plugin: Plugin) -> None:
    plugin.kubectl(
        """case "$*" in *events*) echo 'forbidden' >&2; exit 1;; *) echo '{"kind": "List", "items": []}';; esac"""
    )
    written = plugin.run("support-bundle", "-f", "bundle.tar.gz")
    assert (written.returncode, written.stdout) == (1, "bundle.tar.gz\n")
    with tarfile.open(plugin.directory / "bundle.tar.gz") as archive:
        events = archive.extractfile("bundle/events.txt")
        assert events is not None
        assert events.read() == b"forbidden"
    again = plugin.run("support-bundle", "-f", "bundle.tar.gz")
    assert (again.returncode, again.stderr) == (
        2,
        "Error: bundle.tar.gz exists already: name another file with --file\n",
    )


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [((), "broker pods"), (("main",), "broker pods of main"), (("--operator",), "pods of the operator")],
)
def test_logs_without_pods_say_which_and_where(plugin: Plugin, arguments: tuple[str, ...], wanted: str) -> None:
    plugin.kubectl("""echo '{"kind": "List", "items": []}'""")
    found = plugin.run("logs", *arguments)
    error = f"Error: no {wanted} in this Kubernetes namespace; name another with -n\n"
    assert (found.returncode, found.stderr) == (2, error)
