"""What must hold of the repository itself, whatever the broker does."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-client.lock", "requirements-dev.lock")
GUIDES = ("README.md", "CONTRIBUTING.md", "docs/quickstart.md", "images/README.md")
LONGEST_MODULE = 600


def pins(lock: str) -> dict[str, str]:
    """Package and version of every pin in a lock file."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


@pytest.mark.parametrize("lock", [*LOCKS, "requirements-spark.lock"])
def test_a_lock_names_no_host(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert re.findall(r"\w+://|--(?:extra-)?index-url|--find-links|--trusted-host", text) == []


@pytest.mark.parametrize("lock", [*LOCKS, "requirements-spark.lock"])
def test_every_pin_of_a_lock_has_a_hash(lock: str) -> None:
    requirements = re.split(r"^(?=[a-z0-9])", (ROOT / lock).read_text(), flags=re.MULTILINE)[1:]
    assert len(requirements) > 10
    assert [each.split()[0] for each in requirements if "--hash=sha256:" not in each] == []


def test_the_larger_locks_agree_with_the_smaller() -> None:
    runtime, client, dev = (pins(lock) for lock in LOCKS)
    assert runtime.items() <= client.items()
    assert client.items() <= dev.items()


def test_protobuf_is_never_older_than_the_generated_code() -> None:
    # The generated module refuses to be imported by an older runtime, so the range must not allow one.
    generated = (ROOT / "broker/heliograph_broker/protocol/wire_pb2.py").read_text()
    version = re.search(r"^# Protobuf Python Version: (\S+)$", generated, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = [each for each in project["dependencies"] if each.startswith("protobuf")]
    assert version is not None
    assert f">={version[1]}," in requirement


def test_no_module_is_longer_than_one_concept_needs() -> None:
    modules = [path for path in (ROOT / "broker").rglob("*.py") if not path.name.endswith("_pb2.py")]
    assert len(modules) > 50
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE} == {}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_scripts_a_guide_names_can_be_run(guide: str) -> None:
    named = set(re.findall(r"(?<![\w/])(?:\./)?((?:scripts|\.ci|benchmarks)/[a-z-]+)\b", (ROOT / guide).read_text()))
    assert named
    assert {script for script in named if not os.access(ROOT / script, os.X_OK)} == set()


def test_the_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "$ ./scripts/quickstart\n" in readme
    assert "$ ./scripts/test\n" in readme


@pytest.mark.parametrize(
    "guide", ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]
)
def test_a_guide_links_to_files_that_are_there(guide: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / guide).read_text())
    assert [link for link in links if not ((ROOT / guide).parent / link).exists()] == []
