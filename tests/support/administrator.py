"""The command line of a superuser of a closed broker, who can ask what others may."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from .broker_process import BrokerProcess
from .command_line import CommandLine
from .ran import Ran
from .tokens import Signer

ADMIN: Final = "admin"


@contextmanager
def administered(directory: Path, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that is closed to everybody but the superuser and those to whom this one grants something."""
    with BrokerProcess(directory / "data", environment=signer.settings(superusers=ADMIN)) as running:
        yield running


class Administrator:
    """Runs commands with a token from a file, and fails for any other exit code than the one expected."""

    def __init__(
        self,
        http_url: str,
        signer: Signer,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        token_file = directory / "admin.token"
        token_file.write_text(signer.token(ADMIN))
        monkeypatch.setenv("HELIOGRAPH_CONFIG", str(directory / "config.yaml"))
        monkeypatch.setenv("HELIOGRAPH_HTTP_URL", http_url)
        monkeypatch.setenv("HELIOGRAPH_TOKEN_FILE", str(token_file))
        self._command_line = CommandLine(monkeypatch, capsys)

    def __call__(self, command: str, *, code: int = 0) -> Ran:
        ran = self._command_line(*shlex.split(command))
        assert ran.code == code, f"{command}\n{ran.out}\n{ran.err}"
        return ran

    def may(self, action: str, topic: str, role: str, *options: str) -> bool:
        """Return whether a role may do something, by what the broker says about it."""
        return self._command_line("auth", "can-i", action, topic, "--role", role, *options).code == 0
