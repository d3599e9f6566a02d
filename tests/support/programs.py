"""Stand-ins for the programs that the project's commands run."""

from __future__ import annotations

from pathlib import Path


class Programs:
    """Programs in a directory that is to be the ``PATH``: shell scripts that record how they are called."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "calls"
        self._log.touch()

    def add(self, name: str, script: str = "exit 0") -> None:
        """Add a program, or replace it."""
        path = self._directory / name
        path.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\necho "{name} $*" >>{self._log}\n{script}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """Every call so far, as one line with its arguments."""
        return self._log.read_text().splitlines()
