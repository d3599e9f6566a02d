"""Reads the blocks of shell commands in a guide and runs them as written."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.cluster import PROJECT

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(guide: str, heading: str) -> str:
    """The ``sh`` blocks under a heading (its text without the marks), up to the next heading."""
    text = (PROJECT / guide).read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{guide} has no heading {heading!r}"
    shown = "".join(_BLOCK.findall(found[1]))
    assert shown, f"{guide} shows no commands under {heading!r}"
    return shown


def commands(guide: str, heading: str) -> list[str]:
    r"""The commands of such a script where each is a line, or goes on behind a ``\\``."""
    lines = script(guide, heading).replace("\\\n", " ").splitlines()
    shown = [line.partition("   #")[0].strip() for line in lines]
    return [command for command in shown if command]


class Shell:
    """A person's shell in the project's directory, with a kubectl configuration of its own."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_bytes(Path(environment["KUBECONFIG"]).read_bytes())
        self.environment = dict(environment) | {"KUBECONFIG": str(kubeconfig)}

    def run(self, command: str, *, timeout_s: float = 360.0) -> str:
        """Return the output of a command. Raises :class:`AssertionError` with what it complains of if it fails."""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout
