"""scripts/lock: what is current, what is not, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import lock_files
from scripts.lock_files import LOCKS, environment, header, licences, main, problems, satisfied

ROOT = Path(__file__).resolve().parents[3]
PROJECT = """
[project]
dependencies = ["aiohttp>=3.11,<4"]
[project.optional-dependencies]
client = ["pulsar-client>=3.7,<4"]
operator = ["kopf>=1.45,<2"]
spark = ["Py.Spark>=4.2,<4.4"]
[dependency-groups]
audit = ["pip-audit>=2.10,<3"]
build = ["hatchling[x]>=1.28,<2"]
connect = ["grpcio>=1.76,<2"]
dev = ["pytest>=8"]
fuzz = ["atheris>=3,<4"]
native = ["cython>=3.1,<4"]
readers = ["duckdb>=1.4,<3"]
"""
PIPELINE = """
[project]
dependencies = ["py.arrow>=18"]
"""
PINNED = {
    "broker": ("aiohttp==3.11",),
    "client": ("aiohttp==3.11", "hatchling==1.30", "pulsar-client==3.7.0"),
    "operator": ("aiohttp==3.11", "kopf==1.45"),
    "dev": ("aiohttp==3.11", "hatchling==1.30", "kopf==1.45", "pulsar-client==3.7.0", "pytest==9.2.0"),
    "spark": (
        "aiohttp==3.12",
        "cython==3.3",
        "duckdb==2.0",
        "grpcio==1.85.1",
        "hatchling==1.30",
        "py-arrow==19.1",
        "py-spark==4.3.9",
        "pytest==8",
    ),
    "fuzz": (
        "aiohttp==3.11",
        "atheris==3.0.0",
        "cython==3.3",
        "hatchling==1.30",
        "kopf==1.45",
        "pulsar-client==3.7.0",
        "pytest==9.2.0",
    ),
    "source": ("py-arrow==19.1",),
    "build": ("hatchling==1.30",),
    "audit": ("pip-audit==2.10",),
}
#: What the wheels need by their locks; what builds them is not among it.
STATED = ("aiohttp==3.11", "kopf==1.45", "pulsar-client==3.7.0", "py-arrow==19.1")
REQUIRED = {
    "broker": ["aiohttp>=3.11,<4"],
    "client": ["aiohttp>=3.11,<4", "hatchling[x]>=1.28,<2", "pulsar-client>=3.7,<4"],
    "operator": ["aiohttp>=3.11,<4", "kopf>=1.45,<2"],
    "dev": ["aiohttp>=3.11,<4", "hatchling[x]>=1.28,<2", "kopf>=1.45,<2", "pulsar-client>=3.7,<4", "pytest>=8"],
    "spark": [
        "Py.Spark>=4.2,<4.4",
        "aiohttp>=3.11,<4",
        "cython>=3.1,<4",
        "duckdb>=1.4,<3",
        "grpcio>=1.76,<2",
        "hatchling[x]>=1.28,<2",
        "pytest>=8",
    ],
    "fuzz": [
        "aiohttp>=3.11,<4",
        "atheris>=3,<4",
        "cython>=3.1,<4",
        "hatchling[x]>=1.28,<2",
        "kopf>=1.45,<2",
        "pulsar-client>=3.7,<4",
        "pytest>=8",
    ],
    "source": ["py.arrow>=18"],
    "build": ["hatchling[x]>=1.28,<2"],
    "audit": ["pip-audit>=2.10,<3"],
}


def locked(pin: str) -> str:
    return f"{pin} \\\n    --hash=sha256:{'0' * 64}\n    # via heliograph\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose lock files are all current."""
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "pyproject.toml").write_text(PIPELINE)
    (tmp_path / "locks").mkdir()
    for name, pins in PINNED.items():
        (tmp_path / "locks" / f"{name}.lock").write_text(header(REQUIRED[name]) + "".join(map(locked, pins)))
    (tmp_path / "locks" / "licences.json").write_text(json.dumps({pin: [] for pin in STATED}))
    return tmp_path


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_lock_files_of_this_project_are_current() -> None:
    assert problems(ROOT) == []
    assert {path.stem for path in (ROOT / "locks").glob("*.lock")} == set(LOCKS)


def test_lock_files_with_a_pin_for_every_requirement_are_current(project: Path) -> None:
    assert problems(project) == []
    assert main(["--check"], project) == 0


def test_a_changed_requirement_makes_every_lock_stale_that_has_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(project / "pyproject.toml", "pytest>=8", "pytest>=9.1")
    stale = "pyproject.toml lists other requirements than it was made from"
    assert problems(project) == [
        f"locks/dev.lock: {stale}",
        f"locks/spark.lock: {stale}",
        "locks/spark.lock: no pin satisfies pytest>=9.1",
        f"locks/fuzz.lock: {stale}",
    ]
    assert main(["--check"], project) == 1
    output = capsys.readouterr().err
    assert "scripts/lock: locks/spark.lock: no pin satisfies pytest>=9.1\n" in output
    assert output.endswith("scripts/lock: run scripts/lock and commit what it writes\n")


def test_a_pin_edited_by_hand_is_found_though_the_checksum_is_right(project: Path) -> None:
    replace(project / "locks" / "spark.lock", "py-spark==4.3.9", "py-spark==4.4.0")
    assert problems(project) == ["locks/spark.lock: no pin satisfies Py.Spark>=4.2,<4.4"]


def test_a_missing_lock_file_is_one_problem(project: Path) -> None:
    (project / "locks" / "spark.lock").unlink()
    assert problems(project) == ["locks/spark.lock: it is missing"]


def test_the_lock_of_another_project_follows_that_one(project: Path) -> None:
    replace(project / "pipeline" / "pyproject.toml", "py.arrow>=18", "py.arrow>=19")
    stale = "pipeline/pyproject.toml lists other requirements than it was made from"
    assert problems(project) == [f"locks/source.lock: {stale}"]


def test_the_larger_locks_pin_what_the_smaller_do(project: Path) -> None:
    replace(project / "locks" / "operator.lock", "kopf==1.45", "kopf==1.46")
    assert problems(project) == [
        "locks/licences.json has other distributions than the lock files: kopf==1.45, kopf==1.46",
        "locks/operator.lock and locks/dev.lock pin different versions of kopf",
    ]


def test_the_licences_are_those_of_the_pins_that_wheels_need(project: Path) -> None:
    (project / "locks" / "licences.json").unlink()
    differing = ", ".join(STATED)
    assert problems(project) == [f"locks/licences.json has other distributions than the lock files: {differing}"]
    metadata = {"name": "Py.Arrow", "version": "19.1", "license_expression": "Apache-2.0"}
    assert licences([{"install": [{"metadata": metadata}]}]) == {"py-arrow==19.1": [{"expression": "Apache-2.0"}]}


@pytest.mark.parametrize(
    "line",
    [
        "--index-url packages.example",
        "--extra-index-url x",
        "# https://packages.example/simple",
        "--find-links /wheels",
    ],
)
def test_a_lock_names_no_host(project: Path, line: str) -> None:
    path = project / "locks" / "spark.lock"
    path.write_text(path.read_text() + line + "\n")
    assert problems(project) == [f"locks/spark.lock: it names a host: {line}"]


def test_every_pin_has_a_hash(project: Path) -> None:
    path = project / "locks" / "spark.lock"
    path.write_text(path.read_text() + "six==1.17.0\n    # via aiohttp\n")
    assert problems(project) == ["locks/spark.lock: six==1.17.0 has no hash"]


def test_a_requirement_in_another_form_is_refused_with_the_valid_form(project: Path) -> None:
    replace(project / "pyproject.toml", "kopf>=1.45,<2", "kopf~=1.45")
    valid = "pyproject.toml requires 'kopf~=1.45'; valid: NAME>=VERSION or NAME>=VERSION,<VERSION"
    assert [each for each in problems(project) if "valid" in each] == [
        f"locks/operator.lock: {valid}",
        f"locks/dev.lock: {valid}",
        f"locks/fuzz.lock: {valid}",
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.9", False),
        ("2.10", True),
        ("2.10.0.post1", True),
        ("2.9.99", False),
        ("2.100", True),
        ("3.0", False),
        ("3", False),
        ("2.999.1", True),
    ],
)
def test_versions_are_compared_by_number(version: str, expected: bool) -> None:
    assert satisfied("lib>=2.10.0,<3", {"lib": version}) is expected


def test_a_prerelease_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'3\.0rc1' is not a released version"):
        satisfied("lib>=2", {"lib": "3.0rc1"})


def test_the_index_is_reached_as_pip_reaches_it() -> None:
    reached = environment({"PIP_INDEX_URL": "https://index.example", "PIP_CERT": "/ca.crt", "HOME": "/root"})
    assert reached["UV_DEFAULT_INDEX"] == "https://index.example"
    assert reached["SSL_CERT_FILE"] == "/ca.crt"
    assert environment({"PIP_CERT": "/ca.crt", "SSL_CERT_FILE": "/own.crt"})["SSL_CERT_FILE"] == "/own.crt"


def test_renewing_that_fails_says_what_failed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(root: Path, *, upgrade: bool) -> None:
        raise subprocess.CalledProcessError(2, [Path("/x/bin/uv"), "pip", "compile"])

    monkeypatch.setattr(lock_files, "renew", fail)
    assert main([], project) == 1
    assert capsys.readouterr().err == "scripts/lock: uv failed with exit code 2\n"


def test_the_command_explains_every_lock() -> None:
    done = subprocess.run([ROOT / "scripts" / "lock", "--help"], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in done.stdout for name in LOCKS)
    wrong = [sys.executable, str(ROOT / "scripts" / "lock"), "--check", "--upgrade"]
    assert subprocess.run(wrong, capture_output=True, check=False).returncode == 2
