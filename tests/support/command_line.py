"""The command line in this process, through the entry point of the real command."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
import typer.main
from heliograph_broker.cli.main import main

from tests.support.ran import Ran

# The commands are the same each time, and to build all of them takes far longer than to run one.
_get_command = functools.cache(typer.main.get_command)


class CommandLine:
    """Runs ``heliograph`` with arguments, and an answer to what it may ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setattr(typer.main, "get_command", _get_command)

    def __call__(self, *arguments: str | Path, answer: str = "") -> Ran:
        self._monkeypatch.setattr("sys.argv", ["heliograph", *map(str, arguments)])
        self._monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        self._capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ran(code, *self._capsys.readouterr())
