"""scripts/pulsar-standalone: its settings, its token, and its life beside a stand-in for Java."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.pulsar_standalone import configuration, main, signed_token
from tests.support.ports import free_ports
from tests.support.programs import Programs

ROOT = Path(__file__).resolve().parents[3]
#: Answers as Pulsar does when it is ready, to whom the token says who it is.
SERVES = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'["public/default"]' if self.headers.get("Authorization", "").startswith("Bearer e") else b"[]"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
open(sys.argv[1] + "/java.pid", "w").write(str(os.getpid()))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose Java has been fetched."""
    (tmp_path / "scripts").mkdir()
    tools = tmp_path / "scripts" / "java-tools"
    tools.write_text("#!/bin/sh\nexit 0\n")
    tools.chmod(0o755)
    return tmp_path


def test_later_settings_win() -> None:
    text = configuration(6650, 8080, Path("/d"), tokens=False, settings=["bindAddress=0.0.0.0", "a=b"])
    assert text.startswith("clusterName=standalone\nbrokerServicePort=6650\nwebServicePort=8080\n")
    assert text.endswith("\nbindAddress=0.0.0.0\na=b\n")
    assert "authenticationEnabled" not in text


def test_with_tokens_only_who_has_one_gets_in() -> None:
    text = configuration(6650, 8080, Path("/d"), tokens=True, settings=[])
    assert "\nauthenticationEnabled=true\n" in text
    assert "\ntokenSecretKey=file:///d/secret\n" in text
    assert "\nbrokerClientAuthenticationParameters=file:///d/token\n" in text


def test_a_token_is_signed_with_the_secret() -> None:
    head, payload, signature = signed_token(b"s" * 32, "admin").split(".")

    def decoded(part: str) -> bytes:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

    assert json.loads(decoded(head)) == {"alg": "HS256"}
    assert json.loads(decoded(payload)) == {"sub": "admin"}
    assert decoded(signature) == hmac.new(b"s" * 32, f"{head}.{payload}".encode(), hashlib.sha256).digest()


@pytest.mark.parametrize("wrong", [[], ["6650", "8080"], ["--token", "1", "2", "/d"], ["x", "8080", "/d"]])
def test_a_wrong_command_line_ends_with_2(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2


def test_java_that_cannot_be_fetched_ends_it_with_the_same_code(project: Path) -> None:
    (project / "scripts" / "java-tools").write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        main(["6650", "8080", str(project / "d")], project)
    assert failed.value.returncode == 3


def test_a_pulsar_that_ends_before_it_answers_did_not_start(
    project: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.add("java", "/bin/echo no memory; exit 1")
    port, http = free_ports(2)
    assert main([str(port), str(http), str(project / "d")], project) == 1
    output = capsys.readouterr()
    assert output.err == f"scripts/pulsar-standalone: it did not start, see {project}/d/log\n"
    assert output.out == ""
    assert (project / "d" / "log").read_text() == "no memory\n"


@contextmanager
def running(project: Path, programs: Programs) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command once it is ready, and the id of its Java process."""
    port, http = free_ports(2)
    directory = project / "d"
    (project / "serves.py").write_text(SERVES)
    programs.add("java", f"exec {sys.executable} {project}/serves.py {directory} {http}")
    program = (
        "import pathlib, sys; from scripts.processes import run; from scripts.pulsar_standalone import main;"
        "run(lambda arguments: main(arguments[1:], pathlib.Path(arguments[0])))"
    )
    command = [sys.executable, "-c", program, str(project), "--tokens", str(port), str(http), str(directory), "a=b"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process, int((directory / "java.pid").read_text())
        finally:
            process.kill()


def test_it_ends_with_its_java_process(project: Path, programs: Programs) -> None:
    with running(project, programs) as (process, java):
        assert oct((project / "d" / "token").stat().st_mode)[-3:] == "600"
        os.kill(java, signal.SIGKILL)
        assert process.wait() == 128 + signal.SIGKILL


def test_a_signal_ends_its_java_process_first(project: Path, programs: Programs) -> None:
    with running(project, programs) as (process, java):
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(java, 0)
