"""Pulsar's own pulsar-admin (Java), as released: many commands in one JVM, or one in a process of its own.

And its admin library, of a newer release, by a small program.
"""

from __future__ import annotations

import base64
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

from tests.support.ran import Ran

_ROOT = Path(__file__).resolve().parents[2]
_FETCHED = _ROOT / ".cache" / "java-tools"
_SOURCES = _ROOT / "tests" / "integration" / "java"
_RUNNER = _SOURCES / "admin-tool" / "AdminCommands.java"
_LIBRARY_CALLS = _SOURCES / "admin-library" / "AdminLibrary.java"
_MAIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"
#: Commands are short: compiling them well would take longer than running them.
_QUICK = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp")
_JAVA = (*_QUICK, f"{_FETCHED}/admin-tool/*")
#: A command takes some hundredths of a second, the first one three seconds; a machine busy with other tests gets more.
_COMMAND_WITHIN_S = 180.0
#: The logging library's output, once in every JVM.
_NO_LOGGING = "SLF4J(W): "


def missing() -> str | None:
    """Return what keeps pulsar-admin from running here, None if nothing does."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "no Java compiler on this machine"
    if not (_FETCHED / ".installed-admin").exists():
        return "not fetched: run scripts/java-tools"
    return None


class PulsarAdmin:
    """Runs commands against one broker; ends its JVM as a context manager."""

    def __init__(self, directory: Path, http_url: str, service_url: str) -> None:
        self._conf = directory / "client.conf"
        self._conf.write_text(f"webServiceUrl={http_url}\nbrokerServiceUrl={service_url}\n")
        self._log = (directory / "jvm.log").open("w+")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> PulsarAdmin:
        self._process = subprocess.Popen(
            [*_JAVA, str(_RUNNER), str(self._conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._running()
        if process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
        try:
            process.wait(_COMMAND_WITHIN_S)
        finally:
            process.kill()
            process.wait()
            self._log.close()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    def run(self, command: str) -> Ran:
        """Run a command line as a person would type it after ``pulsar-admin``."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(" ".join(base64.b64encode(word.encode()).decode() for word in shlex.split(command)) + "\n")
        process.stdin.flush()
        watchdog = threading.Timer(_COMMAND_WITHIN_S, process.kill)
        watchdog.start()
        answer = process.stdout.readline()
        watchdog.cancel()
        if not answer:
            self._log.seek(0)
            raise AssertionError(f"pulsar-admin {command} did not end; the JVM said: {self._log.read()}")
        code, out, err = answer.split()
        return Ran(int(code), _text(out), _without_logging(_text(err)))

    def run_alone(self, command: str, answer: str = "") -> Ran:
        """Run a command in a JVM of its own, ``answer`` being typed in."""
        done = subprocess.run(
            [*_JAVA, _MAIN, str(self._conf), *shlex.split(command)],
            input=answer,
            capture_output=True,
            text=True,
            timeout=_COMMAND_WITHIN_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, _without_logging(done.stderr))

    def __call__(self, command: str) -> Ran:
        """Run a command that must succeed."""
        ran = self.run(command)
        assert ran.code == 0, f"pulsar-admin {command}: {ran}"
        assert ran.err == "", f"pulsar-admin {command}: {ran}"
        return ran

    def refused(self, command: str) -> str:
        """Run a command that must fail; return why it says it did."""
        ran = self.run(command)
        assert ran.code == 1, f"pulsar-admin {command}: {ran}"
        return ran.err


def library_calls(http_url: str, topic: str) -> dict[str, str]:
    """Make every call of AdminLibrary.java; return what each came to, by its name.

    ``topic`` is ``tenant/namespace/name`` of one with messages.
    """
    done = subprocess.run(
        [*_QUICK, f"{_FETCHED}/admin-library/*", str(_LIBRARY_CALLS), http_url, topic],
        capture_output=True,
        text=True,
        timeout=2 * _COMMAND_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


def _text(encoded: str) -> str:
    return base64.b64decode(encoded.removeprefix("=")).decode()


def _without_logging(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_NO_LOGGING))
