"""The command ``heliograph-spark`` itself: its help, wrong usage, what ends it, and what it lacks."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pulsar
import pyspark
import pytest
import typer
from heliograph_api import __version__
from heliograph_spark.cli import app
from heliograph_spark.plan.connection import ask_admin
from heliograph_spark.plan.errors import JobError, PulsarSourceError
from heliograph_spark.plan.options import read_options
from heliograph_spark.run.session import _follows_ctrl_c
from typer.testing import CliRunner

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .conftest import COMMAND
from .kills.killed import end

#: As click's, which typer brings a copy of.
GROUP: Any = typer.main.get_command(app)
JOBS = ("archive", "maintain", "replay", "usage", "compact", "version")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, without a Spark that is set up by variables."""
    return subprocess.run(
        [*COMMAND, *arguments], env=os.environ | variables, capture_output=True, text=True, timeout=300, check=False
    )


def wrong(*arguments: str) -> str:
    """Return the error of a command line that is not valid, which starts no Spark."""
    done = run(*arguments, JAVA_HOME="/not/there")
    assert done.returncode == 2, done.stderr
    result = json.loads(done.stdout)
    assert done.stderr == f"heliograph-spark {arguments[0]}: {result['error']}\n"
    return str(result["error"])


def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    return str(done.output)


def test_every_job_is_listed_and_teaches_with_examples_that_can_be_understood() -> None:
    assert tuple(GROUP.commands) == JOBS
    for job in JOBS:
        text = shown(job)
        assert "[[" not in text
        examples = re.findall(rf"^ +heliograph-spark {job}(.*)$", text.partition("Examples:")[2], re.MULTILINE)
        assert examples
        for example in examples:
            GROUP.commands[job].make_context(job, shlex.split(example))


def test_the_help_of_the_command_says_where_results_and_errors_go() -> None:
    text = " ".join(shown().split())
    assert "The last line on stdout is the result as JSON; progress and errors go to stderr." in text
    assert "0 for success, 1 if the job failed, 2 for an invalid command line, 130 for Ctrl-C" in text


def test_the_versions_are_those_that_run() -> None:
    done = run("version")
    python = ".".join(map(str, sys.version_info[:3]))
    assert done.stdout == f"heliograph-spark {__version__}, Spark {pyspark.__version__}, Python {python}\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            "archive --path a",
            "--topic and --topics-pattern: neither given; valid: --topic NAME, which may be repeated, or"
            " --topics-pattern REGEX",
        ),
        ("archive --path a --topic t --topics-pattern t.*", "--topic and --topics-pattern: both given; valid:"),
        ("archive --topic t", "path (--path): is missing"),
        ("archive --path a --topic t/u", "'t/u' is not the name of a topic; valid: NAME, TENANT/NAMESPACE/NAME or"),
        ("archive --path a --topic t --option topic=u", "--option topic: a job has options of its own for topics"),
        ("replay --path a --topic t --to u --option topics=v", "--option topics: a job has options of its own"),
        ("archive --path a --topic t --option startingOffset=x", "is it 'startingOffsets'?"),
        ("archive --path a --topic t --keep 5d --day-complete-after infinite", "--keep is for complete days"),
        ("replay --path a --topic t --to u --from yesterday", "--from: 'yesterday' is neither ISO 8601, such as"),
        ("replay --path a --topic t --to u --rate 0", "--rate: 0.0 messages a second is no rate above zero"),
        ("replay --topic t --to u", "--path and --catalog: neither given; valid:"),
        ("replay --path a --topic t --to u/v", "'u/v' is not the name of a topic"),
        ("usage --to u --option foo=bar", "option 'foo' is not known here"),
        ("usage --to u --archive a --catalog lake", "--archive and --catalog: both given"),
        ("compact --to t", "--path and --catalog: neither given"),
        ("maintain --catalog lake --topic a/b", "'a/b' is not the name of a topic"),
    ],
)
def test_an_invalid_command_line_is_refused_before_spark_starts(arguments: str, error: str) -> None:
    assert error in wrong(*arguments.split())


def test_without_java_the_error_says_what_spark_needs(tmp_path: Path) -> None:
    done = run("archive", "--topic", "t", "--path", str(tmp_path), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "it needs Java 17 or later (JAVA_HOME or PATH), a master" in json.loads(done.stdout)["error"]
    assert "Traceback" not in done.stderr


def test_a_missing_package_of_an_extra_is_named_in_the_result_too(tmp_path: Path) -> None:
    (tmp_path / "pyiceberg").mkdir()
    (tmp_path / "pyiceberg" / "__init__.py").write_text("raise ModuleNotFoundError(name='pyiceberg')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = tmp_path / "result.json"
    done = run("maintain", "--catalog", "lake", "--result", str(result), PYTHONPATH=path)
    assert done.returncode == 1
    wanted = "pyiceberg is missing: pip install 'heliograph-spark[jobs,iceberg]'"
    assert done.stderr.splitlines()[-1] == f"heliograph-spark maintain: {wanted}"
    assert json.loads(result.read_text())["error"] == json.loads(done.stdout)["error"] == wanted


@pytest.mark.long
def test_a_port_of_metrics_that_is_in_use_is_named(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        urls = ["--service-url", broker.service_url, "--admin-url", broker.http_url, "--master", "local[1]"]
        done = run("archive", "--topic", topic, "--path", str(tmp_path / "a"), "--metrics-port", port, *urls)
    assert done.returncode == 1
    assert f"--metrics-port: port {port} cannot be opened: Address already in use" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ("http", "the server does not speak HTTP; admin.url is the REST API, such as http://localhost:8080"),
        ("https", "the server does not speak TLS on this port"),
    ],
)
def test_a_port_for_clients_that_is_given_as_the_rest_api_is_named(
    broker: BrokerProcess, scheme: str, why: str
) -> None:
    url = broker.service_url.replace("pulsar", scheme)
    connection = read_options({"service.url": broker.service_url, "admin.url": url, "topic": "t"}, streaming=False)
    with pytest.raises(PulsarSourceError) as refused:
        ask_admin(connection.connection, "tenants")
    assert str(refused.value) == f"{url}/admin/v2/tenants: no answer that can be used (admin.url): {why}"


def interrupted(arguments: list[str], at: bytes) -> bytes:
    """Start a job and press Ctrl-C when it prints a text; return what it prints on stderr from there on."""
    job = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert job.stderr is not None
        seen: list[bytes] = []
        while not seen or at not in seen[-1]:
            seen.append(job.stderr.readline())
            assert seen[-1], seen
        # As a terminal does, to all processes of the job.
        os.killpg(job.pid, signal.SIGINT)
        # Java has both pipes, too: they end when it has ended.
        output, errors = job.communicate(timeout=240)
    finally:
        end(job)
    assert job.returncode == 130
    assert json.loads(output.splitlines()[-1])["error"] == "interrupted by Ctrl-C"
    assert b"Traceback" not in errors
    return bytes(errors)


def test_ctrl_c_while_spark_starts_leaves_no_java(tmp_path: Path) -> None:
    errors = interrupted(["archive", "--topic", "t", "--path", str(tmp_path), "--master", "local[1]"], b"log4j")
    assert errors.endswith(b"heliograph-spark archive: interrupted by Ctrl-C\n")


def test_what_fails_while_a_job_cleans_up_after_ctrl_c_is_its_end_by_ctrl_c() -> None:
    def clean_up_after(end: type[BaseException]) -> None:
        try:
            raise end
        finally:
            raise JobError("Java has ended")

    with pytest.raises(JobError) as interrupted_job:
        clean_up_after(KeyboardInterrupt)
    assert _follows_ctrl_c(interrupted_job.value)
    with pytest.raises(JobError) as failed_job:
        clean_up_after(OSError)
    assert not _follows_ctrl_c(failed_job.value)


@pytest.mark.long
def test_ctrl_c_ends_a_job_with_a_result_and_the_next_run_goes_on(
    broker: BrokerProcess, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [b"0", b"1"])
    urls = ["--service-url", broker.service_url, "--admin-url", broker.http_url, "--master", "local[2]"]
    arguments = ["archive", "--topic", topic, "--path", str(tmp_path / "a"), *urls]
    interrupted([*arguments, "--follow", "--interval", "1h"], b"batch 0: 2 rows")
    again = run(*arguments)
    assert json.loads(again.stdout)["rows"] == 0, again.stderr
    assert "heliograph-spark archive: starting Spark\n" in again.stderr
    assert f"persistent://public/default/{topic}: nothing new\n" in again.stderr
    # In the middle of a question to Java, too.
    client.create_producer(f"{topic}-again").close()
    replayed = ["replay", "--topic", topic, "--path", str(tmp_path / "a"), "--to", f"{topic}-again", "--rate", "0.01"]
    interrupted([*replayed, *urls], b"sending 2 messages")
