"""The ``heliograph`` command as people use it: real processes against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import STOPPED_WITHIN_S, BrokerProcess
from tests.support.clients import backlog, fresh_name
from tests.support.interrupts import take_interrupts
from tests.support.polling import eventually
from tests.support.ports import free_ports

MANIFEST = """
apiVersion: heliograph.dev/v1alpha1
kind: Tenant
metadata: {name: TENANT}
---
apiVersion: heliograph.dev/v1alpha1
kind: Namespace
metadata: {name: fleet}
spec: {tenantRef: {name: TENANT}, retention: {time: 1h, size: 1Mi}}
---
apiVersion: heliograph.dev/v1alpha1
kind: Topic
metadata: {name: positions}
spec: {namespaceRef: {name: fleet}, partitions: PARTITIONS, subscriptions: [maps]}
"""


def heliograph(
    broker: BrokerProcess | None, *arguments: str, code: int = 0, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command against ``broker`` and assert its exit code; stderr must never hold a traceback."""
    environment = dict(os.environ)
    if broker is not None:
        environment |= {"HELIOGRAPH_HTTP_URL": broker.http_url, "HELIOGRAPH_SERVICE_URL": broker.service_url}
    done = subprocess.run(
        [sys.executable, "-m", "heliograph_broker", *arguments],
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    "command",
    [
        ["standalone"],
        ["apply"],
        ["topics", "list"],
        ["topics", "stats"],
        ["topics", "create"],
        ["topics", "delete"],
        ["produce"],
        ["consume"],
    ],
)
def test_every_command_teaches_with_examples(command: list[str]) -> None:
    shown = heliograph(None, *command, "--help").stdout
    assert "Examples:" in shown
    assert f"heliograph {' '.join(command)}" in shown


def test_a_message_goes_through(broker: BrokerProcess) -> None:
    topic = fresh_name()
    heliograph(broker, "topics", "create", topic)
    heliograph(broker, "consume", topic, "-s", "s", "-n", "0", "--timeout", "0.2")
    sent = heliograph(broker, "produce", topic, "-m", "hé", "--key", "k", "--property", "a=b=c", "-n", "2")
    assert sent.stdout == f"sent 2 messages to persistent://public/default/{topic}\n"
    first = json.loads(heliograph(broker, "consume", topic, "-s", "s", "-o", "json").stdout)
    assert (first["value"], first["key"], first["properties"]) == ("hé", "k", {"a": "b=c"})
    assert heliograph(broker, "consume", topic, "-s", "s").stdout == "hé\n"
    eventually(lambda: backlog(broker, topic, "s") == 0, what="both messages acknowledged")


def test_lines_of_a_file_become_messages_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    topic, lines = fresh_name(), tmp_path / "lines.txt"
    lines.write_text("one\ntwo\r\n\nfour")
    heliograph(broker, "produce", topic, "--file", str(lines))
    heliograph(broker, "produce", topic, "--file", "-", text="five\n")
    shown = heliograph(broker, "topics", "stats", topic).stdout
    assert "received 5 messages, " in shown
    assert "\nkept only as long as their ledger, because no retention is set: 5 messages, " in shown
    assert shown.endswith("\n\nno subscriptions\n")
    # A new subscription begins with what comes next, so the lines are sent again for one.
    heliograph(broker, "consume", topic, "-s", "s", "-n", "0", "--timeout", "0.2")
    heliograph(broker, "produce", topic, "--file", str(lines))
    heliograph(broker, "produce", topic, "--file", "-", text="five\n")
    taken = heliograph(broker, "consume", topic, "-s", "s", "-n", "5", "--timeout", "60")
    assert taken.stdout.splitlines() == ["one", "two", "", "four", "five"]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "key_shared"])
def test_consume_with_every_type(broker: BrokerProcess, kind: str) -> None:
    topic = fresh_name()
    heliograph(broker, "consume", topic, "-s", "s", "-t", kind, "-n", "0", "--timeout", "0.2")
    heliograph(broker, "produce", topic, "-m", "x", "-n", "3")
    taken = heliograph(broker, "consume", topic, "-s", "s", "-t", kind, "-n", "3", "--timeout", "60")
    assert taken.stdout == "x\n" * 3


def test_consume_says_what_it_did_not_get(broker: BrokerProcess) -> None:
    topic = fresh_name()
    failed = heliograph(broker, "consume", topic, "-s", "s", "-n", "2", "--timeout", "0.3", code=1)
    assert f"received 0 of 2 messages from persistent://public/default/{topic}: none came for 0.3 s" in failed.stderr


def test_ctrl_c_ends_an_endless_consume_and_keeps_its_acknowledgements(broker: BrokerProcess) -> None:
    topic = fresh_name()
    command = [sys.executable, "-m", "heliograph_broker", "consume", topic, "-s", "s", "-n", "0"]
    with subprocess.Popen(
        [*command, "--service-url", broker.service_url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=take_interrupts,
    ) as consumer:
        try:
            heliograph_ready(broker, topic)
            heliograph(broker, "produce", topic, "-m", "seen")
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "seen\n"
            consumer.send_signal(signal.SIGINT)
            _, errors = consumer.communicate(timeout=120)
        finally:
            # Does nothing to one that has ended; one that goes on must not be waited for.
            consumer.kill()
    assert (consumer.returncode, errors) == (0, "")
    eventually(lambda: backlog(broker, topic, "s") == 0, what="the message acknowledged")


def heliograph_ready(broker: BrokerProcess, topic: str) -> None:
    """Wait until a consumer is connected to the topic's subscription ``s``."""

    def connected() -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "heliograph_broker", "topics", "stats", topic, "-o", "json"],
            env=os.environ | {"HELIOGRAPH_HTTP_URL": broker.http_url},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode == 0 and bool(json.loads(done.stdout)["subscriptions"].get("s", {}).get("consumers"))

    eventually(connected, what="the consumer connected")


def test_topics_are_listed_described_and_deleted(broker: BrokerProcess) -> None:
    plain, parts = fresh_name("plain"), fresh_name("parts")
    heliograph(broker, "topics", "create", plain)
    heliograph(broker, "topics", "create", parts, "--partitions", "3")
    listed = {
        row["name"]: row["partitions"] for row in json.loads(heliograph(broker, "topics", "list", "-o", "json").stdout)
    }
    assert listed[f"persistent://public/default/{plain}"] == 0
    assert listed[f"persistent://public/default/{parts}"] == 3
    assert not any("-partition-" in name for name in listed)
    table = heliograph(broker, "topics", "list").stdout
    assert table.startswith("TOPIC")
    assert f"persistent://public/default/{parts}" in table

    heliograph(broker, "consume", parts, "-s", "slow", "-n", "0", "--timeout", "0.2")
    heliograph(broker, "produce", parts, "-m", "12345", "-n", "7")
    shown = heliograph(broker, "topics", "stats", parts).stdout
    assert f"persistent://public/default/{parts} (3 partitions)" in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("slow"))
    assert row[row.index("7") :][0] == "7"
    stats = json.loads(heliograph(broker, "topics", "stats", parts, "-o", "json").stdout)
    assert stats["subscriptions"]["slow"]["msgBacklog"] == 7

    for name in (plain, parts):
        heliograph(broker, "topics", "delete", name, "--force")
    assert f"/{parts}" not in heliograph(broker, "topics", "list").stdout


def test_apply_creates_configures_and_then_changes_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    tenant = fresh_name("acme")
    manifest = tmp_path / "fleet.yaml"
    manifest.write_text(MANIFEST.replace("TENANT", tenant).replace("PARTITIONS", "2"))
    topic = f"topic/persistent://{tenant}/fleet/positions"
    created = [f"tenant/{tenant} created", f"namespace/{tenant}/fleet created", f"{topic} created"]
    assert heliograph(broker, "apply", "-f", str(manifest)).stdout.splitlines() == created
    again = [line.replace("created", "unchanged") for line in created]
    assert heliograph(broker, "apply", "-f", str(tmp_path)).stdout.splitlines() == again
    manifest.write_text(MANIFEST.replace("TENANT", tenant).replace("PARTITIONS", "4"))
    assert heliograph(broker, "apply", "-f", str(manifest)).stdout.splitlines()[2] == f"{topic} configured"
    stats = json.loads(heliograph(broker, "topics", "stats", f"{tenant}/fleet/positions", "-o", "json").stdout)
    assert (len(stats["partitions"]), list(stats["subscriptions"])) == (4, ["maps"])


def test_apply_names_the_file_document_field_and_value(broker: BrokerProcess, tmp_path: Path) -> None:
    manifest = tmp_path / "wrong.yaml"
    manifest.write_text(MANIFEST.replace("TENANT", fresh_name("never")).replace("1Mi", "1Moo"))
    failed = heliograph(broker, "apply", "-f", str(manifest), code=1)
    assert "wrong.yaml: document 2" in failed.stderr
    assert "1Moo" in failed.stderr
    assert failed.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["topics", "list"], "no broker answers at http://127.0.0.1:PORT: Connection refused; start one with"),
        (["apply", "-f", "MANIFEST"], "no broker answers at http://127.0.0.1:PORT"),
        (["produce", "t", "-m", "x"], "no broker answers at pulsar://127.0.0.1:PORT: Connection refused; start"),
        (["consume", "t", "-s", "s", "--timeout", "0.1"], "no broker answers at pulsar://127.0.0.1:PORT"),
    ],
)
def test_without_a_broker_one_line_says_how_to_start_one(arguments: list[str], hint: str, tmp_path: Path) -> None:
    port = str(free_ports(1)[0])
    manifest = tmp_path / "ok.yaml"
    manifest.write_text(MANIFEST.replace("TENANT", "acme").replace("PARTITIONS", "0"))
    option = "--service-url=pulsar" if arguments[0] in ("produce", "consume") else "--http-url=http"
    given = [str(manifest) if argument == "MANIFEST" else argument for argument in arguments]
    failed = heliograph(None, *given, f"{option}://127.0.0.1:{port}", code=1)
    assert hint.replace("PORT", port) in failed.stderr
    assert "'heliograph standalone'" in failed.stderr
    waits = arguments[0] in ("produce", "consume")
    assert ("trying again for" in failed.stderr) is waits
    assert failed.stderr.count("\n") == 1 + waits


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["produce", "early", "-m", "x"], "sent 1 message to"),
        (["consume", "early", "-s", "audit", "--earliest", "--timeout", "120"], "x\n"),
    ],
)
def test_a_command_waits_for_a_broker_that_comes_up(tmp_path: Path, arguments: list[str], output: str) -> None:
    """In Kubernetes, a Service's address refuses connections for some seconds after its broker is ready."""
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    try:
        heliograph(broker, "produce", "early", "-m", "x")
        broker.terminate()
        command = [sys.executable, "-m", "heliograph_broker", *arguments, "--service-url", broker.service_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            assert "Connection refused; trying again" in running.stderr.readline()
            broker.start()
            printed, errors = running.communicate(timeout=240)
            assert (running.returncode, errors) == (0, "")
            assert output in printed
    finally:
        broker.close()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["topics", "stats", "no-such-topic"], 1, "heliograph topics list public/default"),
        (["topics", "stats", "a/b"], 1, "a/b"),
        (["topics", "create", "x/y/z"], 1, "x/y"),
        (["topics", "list", "public"], 2, "tenant/namespace"),
        (["topics", "create", "t", "--partitions", "-1"], 2, "--partitions"),
        (["produce", "t"], 2, "give -m TEXT or --file FILE"),
        (["produce", "t", "-m", "x", "--property", "a"], 2, "name=value"),
        (["produce", "t", "--file", "/no/such/file"], 1, "cannot read /no/such/file"),
        (["produce", "no/such/topic", "-m", "x"], 1, "pulsar://"),
        (["consume", "t"], 2, "-s"),
        (["consume", "t", "-s", "s", "-t", "Sharred"], 2, "Sharred"),
        (["apply"], 2, "-f"),
        (["topics", "list", "--http-url", "localhost:8080"], 2, "http://"),
    ],
)
def test_mistakes_are_named(broker: BrokerProcess, arguments: list[str], code: int, message: str) -> None:
    failed = heliograph(broker, *arguments, code=code)
    assert message in failed.stderr


def test_standalone_refuses_a_data_directory_in_use(broker: BrokerProcess) -> None:
    options = ["--data-dir", str(broker.data_dir), "--broker-port", "0", "--http-port", "0"]
    failed = heliograph(None, "standalone", *options, code=1)
    assert f"data directory {broker.data_dir} is in use by another process (pid {broker.pid})" in failed.stderr


def test_standalone_says_which_port_is_taken(broker: BrokerProcess, tmp_path: Path) -> None:
    taken = broker.service_url.rpartition(":")[2]
    options = ["--data-dir", str(tmp_path / "d"), "--http-port", "0", "--broker-port", taken]
    failed = heliograph(None, "standalone", *options, code=1)
    assert taken in failed.stderr
    assert "--broker-port" in failed.stderr


def test_standalone_applies_manifests_and_a_restart_keeps_everything(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    manifest = tmp_path / "fleet.yaml"
    manifest.write_text(MANIFEST.replace("TENANT", "acme").replace("PARTITIONS", "2"))
    broker = broker_factory(manifests=[manifest])
    broker.start()
    heliograph(broker, "produce", "acme/fleet/positions", "-m", "kept", "-n", "5")
    broker.restart()
    stats = json.loads(heliograph(broker, "topics", "stats", "acme/fleet/positions", "-o", "json").stdout)
    assert stats["subscriptions"]["maps"]["msgBacklog"] == 5
    assert broker.terminate() == 0


def test_standalone_refuses_wrong_manifests_before_it_listens(tmp_path: Path) -> None:
    manifest = tmp_path / "wrong.yaml"
    manifest.write_text("kind: Toppic\n")
    options = ["--data-dir", str(tmp_path / "d"), "--broker-port", "0", "--http-port", "0", "-f", str(manifest)]
    failed = heliograph(None, "standalone", *options, code=1)
    assert "Toppic" in failed.stderr
    assert failed.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_broker_in_good_order(
    broker_factory: Callable[..., BrokerProcess], number: signal.Signals
) -> None:
    broker = broker_factory()
    broker.start()
    os.kill(broker.pid, number)
    assert broker.process.wait(STOPPED_WITHIN_S) == 0
    assert broker.process.stdout is not None
    assert broker.process.stdout.read() == ""
    broker.process.stdout.close()


def test_log_settings_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LOG_LEVEL", "loud")
    failed = heliograph(None, "standalone", "--data-dir", str(tmp_path / "d"), code=1)
    assert "HELIOGRAPH_LOG_LEVEL is 'loud': it should be one of debug, info, warning, error" in failed.stderr
