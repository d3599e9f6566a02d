"""Helm on this chart: what it renders, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).parents[3]
CHART = PROJECT / "charts" / "heliograph"
KUBERNETES = "1.34.4"
#: Directories of helm: nothing of a person's own is read or changed.
_HOMES = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")

Manifest = dict[str, Any]


def find_helm() -> str | None:
    """The helm that was built with the tests' cluster, else the machine's."""
    built = sorted(PROJECT.glob(".cache/kubernetes-*/helm"))
    return str(built[-1]) if built else shutil.which("helm")


class Helm:
    """Runs helm in a home of its own."""

    def __init__(self, program: str, home: Path) -> None:
        self._program = program
        self._environment = {**os.environ, **{name: str(home) for name in _HOMES}}
        self._home = home

    def run(self, *arguments: str, values: Manifest | None = None) -> subprocess.CompletedProcess[str]:
        """Run ``helm ARGUMENTS``; ``values`` go into a file for it."""
        command = [self._program, *arguments]
        if values is not None:
            file = self._home / "values.json"
            file.write_text(json.dumps(values), encoding="utf-8")
            command += ["--values", str(file)]
        return subprocess.run(command, capture_output=True, text=True, env=self._environment, timeout=120, check=False)

    def template(self, *arguments: str, **values: Any) -> list[Manifest]:
        """Return the chart rendered with these values."""
        done = self.run(
            "template",
            "main",
            str(CHART),
            "--namespace=here",
            f"--kube-version={KUBERNETES}",
            *arguments,
            values=values,
        )
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    def refusal(self, **values: Any) -> str:
        """Why values are refused."""
        done = self.run("template", "main", str(CHART), f"--kube-version={KUBERNETES}", values=values)
        assert done.returncode != 0, "these values are accepted"
        return done.stderr


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm, or the test is skipped and says so."""
    program = find_helm()
    if program is None:
        pytest.skip("no helm: neither built by `scripts/cluster build` nor installed")
    return Helm(program, tmp_path_factory.mktemp("helm"))
