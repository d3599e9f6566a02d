"""Pulsar's own pulsar-admin (Java), as released: many commands in one JVM, or one in a process of its own.

And its admin library, of a newer release, by a small program.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
from pathlib import Path

from tests.support import java_tools
from tests.support.asked_process import AskedProcess
from tests.support.ran import Ran

_RUNNER = java_tools.SOURCES / "admin-tool" / "AdminCommands.java"
_VERBS = java_tools.SOURCES / "admin-tool" / "AdminVerbs.java"
_LIBRARY_CALLS = java_tools.SOURCES / "admin-library" / "AdminLibrary.java"
_MAIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"
_CLASSES = f"{java_tools.FETCHED}/admin-tool/*"
_JAVA = (*java_tools.QUICK, _CLASSES)
#: A command takes some hundredths of a second, the first one three seconds; a machine busy with other tests gets more.
_COMMAND_WITHIN_S = 180.0
#: The logging library's output, once in every JVM.
_NO_LOGGING = "SLF4J(W): "


def missing() -> str | None:
    """Return what keeps pulsar-admin from running here, None if nothing does."""
    return java_tools.missing("admin")


class PulsarAdmin(AskedProcess):
    """Runs commands against one broker; ends its JVM as a context manager."""

    def __init__(self, directory: Path, http_url: str, service_url: str, *properties: str) -> None:
        """``properties`` are options of its JVM, as a person sets them by ``PULSAR_EXTRA_OPTS``."""
        self._conf = java_tools.write_client_conf(directory, http_url, service_url)
        command = [java_tools.QUICK[0], *properties, *java_tools.QUICK[1:], _CLASSES, str(_RUNNER), str(self._conf)]
        super().__init__(command, directory / "jvm.log", _COMMAND_WITHIN_S)

    def run(self, command: str) -> Ran:
        """Run a command line as a person would type it after ``pulsar-admin``."""
        words = shlex.split(command)
        code, out, err = self.ask(" ".join(base64.b64encode(word.encode()).decode() for word in words)).split()
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


def trusting(authority: Path, directory: Path) -> tuple[str, ...]:
    """Write a certificate authority into a directory as a JVM reads it; return the properties of one that trusts it."""
    store, password = directory / "trusted.p12", "changeit"
    subprocess.run(
        [
            *("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", str(authority)),
            *("-keystore", str(store), "-storetype", "PKCS12", "-storepass", password),
        ],
        capture_output=True,
        check=True,
        timeout=_COMMAND_WITHIN_S,
    )
    return f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={password}"


def verbs_of_the_tool() -> set[str]:
    """Return every verb that the tool has, as ``group verb``."""
    done = subprocess.run(
        [*_JAVA, str(_VERBS)], capture_output=True, text=True, timeout=2 * _COMMAND_WITHIN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def library_calls(http_url: str, topic: str) -> dict[str, str]:
    """Make every call of AdminLibrary.java; return what each came to, by its name.

    ``topic`` is ``tenant/namespace/name`` of one with messages.
    """
    done = subprocess.run(
        [*java_tools.QUICK, f"{java_tools.FETCHED}/admin-library/*", str(_LIBRARY_CALLS), http_url, topic],
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
