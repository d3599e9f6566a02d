"""The lock files in ``locks/``: what each is made from, how all are renewed, and what must hold of them."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from images.sbom import licences_of, normal

ROOT = Path(__file__).resolve().parents[1]
#: The resolver, installed for one run into an environment of its own.
UV = "uv==0.13.9"
#: The oldest Python that must be able to install what is locked.
PYTHON = "3.11"

DESCRIPTION = """\
Renew, or with --check verify, the lock files in locks/. Each pins every package of one environment
by version and hash:

  broker    the broker and its command line               (image broker)
  client    broker, and Pulsar's Python client            (image client, scripts/setup)
  operator  broker, and the Kubernetes operator           (image operator)
  dev       client, operator, and the development tools   (scripts/setup dev)
  spark     broker, Spark's data source, and these tools  (image spark, scripts/setup spark)
  fuzz      dev, and the fuzzer                           (scripts/setup fuzz)
  source    the distribution heliograph-spark, without Spark
  build     what builds the distributions                 (all images)
  audit     what asks for known vulnerabilities           (scripts/audit)

Those of scripts/setup have the contents of build, too.

Run it after a change of the requirements in pyproject.toml, or for `source` in
pipeline/pyproject.toml, and commit the result. A pin that still
satisfies them stays as it is; --upgrade takes the newest versions that satisfy them instead."""
EPILOG = """\
Renewing needs a package index, which is reached as pip reaches it (PIP_INDEX_URL, PIP_CERT). Checking
needs no network. Exit codes: 0 done or current; 1 not current, with the reasons; 2 wrong usage."""


class Lock(NamedTuple):
    """The sources of a lock file: a project's dependencies, or none, and these extras and dependency groups."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    project: str = "pyproject.toml"
    #: Whether the project's own dependencies are among them.
    own: bool = True

    def requirements(self, root: Path) -> list[str]:
        """Return the requirements that its ``pyproject.toml`` below a directory lists, in order."""
        project: dict[str, Any] = tomllib.loads((root / self.project).read_text("utf-8"))
        lists = [project["project"]["dependencies"]] if self.own else []
        lists += [project["project"]["optional-dependencies"][extra] for extra in self.extras]
        lists += [project["dependency-groups"][group] for group in self.groups]
        return sorted({requirement for each in lists for requirement in each})

    def options(self) -> list[str]:
        """Return the options and arguments that make uv resolve them."""
        extras = [word for extra in self.extras for word in ("--extra", extra)]
        groups = [word for group in self.groups for word in ("--group", f"{self.project}:{group}")]
        return [*extras, *groups, *([self.project] if self.own else [])]


LOCKS = {
    "broker": Lock(),
    "client": Lock(extras=("client",), groups=("build",)),
    "operator": Lock(extras=("operator",)),
    "dev": Lock(extras=("client", "operator"), groups=("build", "dev")),
    "spark": Lock(extras=("spark",), groups=("build", "connect", "dev", "native", "readers")),
    "fuzz": Lock(extras=("client", "operator"), groups=("build", "dev", "fuzz", "native")),
    "source": Lock(project="pipeline/pyproject.toml"),
    "build": Lock(groups=("build",), own=False),
    "audit": Lock(groups=("audit",), own=False),
}
#: Pairs whose first has no pin that the second does not have: one environment serves both.
CONTAINED = (
    *(("broker", "client"), ("broker", "operator"), ("client", "dev"), ("operator", "dev")),
    *(("build", "client"), ("build", "dev"), ("build", "spark"), ("dev", "fuzz")),
    ("source", "spark"),
)
#: The licences that distributions state, for the wheels' bills of materials.
STATED = "licences.json"
#: The lock files whose distributions they name, but for those of :data:`TOOLS`.
_NAMED_BY_WHEELS = ("broker", "client", "operator", "source")
#: The lock file of what builds the wheels, and is in none.
TOOLS = "build"
_NAMES_A_HOST = re.compile(r"\w+://|--(?:extra-)?index-url|--find-links|--trusted-host")


def checksum(requirements: Sequence[str]) -> str:
    """Return the checksum of a lock file's sources, for its header."""
    return hashlib.sha256(json.dumps([PYTHON, *requirements]).encode()).hexdigest()


def header(requirements: Sequence[str]) -> str:
    """Return the first lines of a lock file that was made from these requirements."""
    return f"# Written by scripts/lock from pyproject.toml; do not edit.\n# Inputs: sha256:{checksum(requirements)}\n"


def pins(text: str) -> dict[str, str]:
    """Return package and version of every pin in a lock file."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", text, re.MULTILINE))


def _release(version: str) -> tuple[int, ...]:
    match = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.post\d+)?", version)
    if match is None:
        raise ValueError(f"{version!r} is not a released version: valid: numbers with dots between them")
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def satisfied(requirement: str, pinned: Mapping[str, str]) -> bool:
    """Whether a pin satisfies a requirement such as ``aiohttp>=3.11,<4``.

    Raises:
        ValueError: The requirement is not a name with a lower bound and at most an upper one.
    """
    match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[a-z,-]+\])?>=([^,<]+)(?:,<([^,<]+))?", requirement)
    if match is None:
        raise ValueError(f"pyproject.toml requires {requirement!r}; valid: NAME>=VERSION or NAME>=VERSION,<VERSION")
    name, lowest, limit = match.groups()
    version = pinned.get(re.sub(r"[._-]+", "-", name).lower())
    if version is None:
        return False
    return _release(lowest) <= _release(version) and (limit is None or _release(version) < _release(limit))


def faults(text: str) -> list[str]:
    """Return the faults that no lock file may have: hosts of an index, and pins without a hash."""
    found = [f"it names a host: {line}" for line in text.splitlines() if _NAMES_A_HOST.search(line)]
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return found + [f"{block.split()[0]} has no hash" for block in blocks if "--hash=sha256:" not in block]


def licences(reports: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the licences of the distributions in pip's reports, by name and version."""
    stated = {}
    for each in (found["metadata"] for report in reports for found in report["install"]):
        found = licences_of(each.get("license_expression"), each.get("license"), each.get("classifier", ()))
        stated[f"{normal(each['name'])}=={each['version']}"] = found
    return dict(sorted(stated.items()))


def problems(root: Path) -> list[str]:
    """Return the reasons why the lock files below a directory are not current; nothing if they are."""
    found: list[str] = []
    pinned: dict[str, dict[str, str]] = {}
    for name, lock in LOCKS.items():
        path = root / "locks" / f"{name}.lock"
        text = path.read_text("utf-8") if path.exists() else ""
        pinned[name] = pins(text)
        requirements = lock.requirements(root)
        reasons = faults(text)
        if not text:
            reasons = ["it is missing"]
        elif not text.startswith(header(requirements)):
            reasons.append(f"{lock.project} lists other requirements than it was made from")
        for requirement in requirements if text else ():
            try:
                if not satisfied(requirement, pinned[name]):
                    reasons.append(f"no pin satisfies {requirement}")
            except ValueError as error:
                reasons.append(str(error))
        found += [f"locks/{name}.lock: {reason}" for reason in reasons]
    path = root / "locks" / STATED
    stated = json.loads(path.read_text("utf-8")) if path.exists() else {}
    named = {pin for name in _NAMED_BY_WHEELS for pin in pinned[name].items()} - set(pinned[TOOLS].items())
    expected = {f"{pin}=={version}" for pin, version in named}
    if expected != set(stated):
        differing = ", ".join(sorted(expected ^ set(stated)))
        found.append(f"locks/{STATED} has other distributions than the lock files: {differing}")
    for small, large in CONTAINED:
        other = sorted(dict(pinned[small].items() - pinned[large].items()))
        if other and pinned[large]:
            found.append(f"locks/{small}.lock and locks/{large}.lock pin different versions of {', '.join(other)}")
    return found


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for uv, so that it reaches the index that pip would reach."""
    given = dict(variables)
    for pip, uv in (("PIP_CERT", "SSL_CERT_FILE"), ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")):
        if pip in given:
            given.setdefault(uv, given[pip])
    return given


def renew(root: Path, *, upgrade: bool) -> None:
    """Write all lock files below a directory. Raises :class:`subprocess.CalledProcessError` if uv cannot."""
    (root / "locks").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        venv.create(directory / "uv", with_pip=True)
        bin_ = directory / "uv" / "bin"
        subprocess.run([bin_ / "python", "-m", "pip", "install", "-q", UV], check=True)
        for kind, lock in LOCKS.items():
            path, made = root / "locks" / f"{kind}.lock", directory / f"{kind}.lock"
            if path.exists() and not upgrade:
                # uv keeps the pins of a file that it overwrites.
                shutil.copy(path, made)
            command = ["pip", "compile", "-q", "--no-header", "--generate-hashes", "--no-emit-index-url"]
            command += ["--python-version", PYTHON, *lock.options(), "-o", str(made)]
            subprocess.run([bin_ / "uv", *command], cwd=root, env=environment(os.environ), check=True)
            path.write_text(header(lock.requirements(root)) + made.read_text("utf-8"), "utf-8")
        reports = [_report(root / "locks" / f"{kind}.lock", bin_ / "python") for kind in _NAMED_BY_WHEELS]
        tools = {f"{pin}=={version}" for pin, version in pins((root / "locks" / f"{TOOLS}.lock").read_text()).items()}
        stated = {pin: found for pin, found in licences(reports).items() if pin not in tools}
        (root / "locks" / STATED).write_text(json.dumps(stated, indent=1) + "\n", "utf-8")


def _report(lock: Path, python: Path) -> dict[str, Any]:
    """Return what pip says of the distributions in a lock file, of which it fetches no more than that."""
    command = ["-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [python, *command, "--only-binary", ":all:", "-r", lock, "--report", "-"], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/lock",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a lock file is not current")
    how.add_argument("--upgrade", action="store_true", help="take the newest versions that satisfy the requirements")
    options = parser.parse_args(arguments)
    if not options.check:
        try:
            renew(root, upgrade=options.upgrade)
        except subprocess.CalledProcessError as error:
            print(f"scripts/lock: {Path(error.cmd[0]).name} failed with exit code {error.returncode}", file=sys.stderr)
            return 1
    found = problems(root)
    for problem in found:
        print(f"scripts/lock: {problem}", file=sys.stderr)
    if found and options.check:
        print("scripts/lock: run scripts/lock and commit what it writes", file=sys.stderr)
    return 1 if found else 0
