"""The command line of a superuser of a closed broker, who can ask what others may."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from .command_line import CommandLine
from .ran import Ran


class Administrator:
    """Runs commands with the token in a file, and fails for any other exit code than the one expected."""

    def __init__(
        self, http_url: str, token_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("HELIOGRAPH_CONFIG", str(token_file.with_name("config.yaml")))
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
