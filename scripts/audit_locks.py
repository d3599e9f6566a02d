"""Asks about every pin of the locks: which are known to be vulnerable, and which were withdrawn from the index."""

from __future__ import annotations

import argparse
import json
import os
import ssl
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from scripts.lock_files import pins
from scripts.wheel_sboms import hashes

ROOT = Path(__file__).resolve().parents[1]
#: They have every pin of all lock files.
LOCKS = ("fuzz", "spark", "audit")
EXCEPTIONS = "locks/audit-exceptions.toml"
DATABASE = "https://api.osv.dev/v1/query"
#: Where packages come from, unless pip has another setting.
INDEX = "https://pypi.org/simple"
#: The form of an index's page of a project (PEP 691).
_PAGE = "application/vnd.pypi.simple.v1+json"
_ANSWER_WITHIN_S = 30.0
_LONGEST_REASON = 300
#: Exit code: somebody did not answer, and nothing is known to be wrong.
NOT_ASKED = 4
_FIELDS = {"id": str, "reason": str, "until": date}

DESCRIPTION = """\
Ask the database of OSV about every version that locks/ pins, and the package index which of them were
withdrawn (yanked). Known vulnerabilities in locks/audit-exceptions.toml are accepted until the day
that is given there."""
EPILOG = f"""\
Exit codes: 0 nothing is known; 1 something is, and is named; 2 wrong usage, or exceptions that cannot be
read; {NOT_ASKED} nothing is known, but the database or the index did not answer."""


class Accepted(NamedTuple):
    """A known vulnerability that is accepted until the end of a day, and why."""

    id: str
    reason: str
    until: date


class Found(NamedTuple):
    """A known vulnerability of one pin: its names, and the versions without it."""

    package: str
    version: str
    names: frozenset[str]
    fixed: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f", fixed in {', '.join(self.fixed)}" if self.fixed else ", not fixed yet"
        return f"{self.package} {self.version}: {', '.join(sorted(self.names))}{fixed}"


def exceptions(text: str) -> list[Accepted]:
    """Return the accepted vulnerabilities of a file. Raises :class:`ValueError` if it cannot be read."""
    listed = tomllib.loads(text).get("exception", [])
    for number, entry in enumerate(listed, 1):
        for field, kind in _FIELDS.items():
            if not isinstance(entry.get(field), kind) or not entry[field]:
                wanted = "a day such as 2030-01-31" if kind is date else "a text"
                raise ValueError(f"exception {number}: {field} is {entry.get(field)!r}; valid: {wanted}")
        if unknown := sorted(set(entry) - set(_FIELDS)):
            raise ValueError(f"exception {number}: unknown field {unknown[0]!r}; valid: {', '.join(_FIELDS)}")
    return [Accepted(**entry) for entry in listed]


def vulnerabilities(answer: Mapping[str, Any]) -> Iterator[Found]:
    """Yield what pip-audit has found."""
    for each in answer["dependencies"]:
        for known in each.get("vulns", ()):
            names = frozenset((known["id"], *known["aliases"]))
            yield Found(each["name"], each["version"], names, tuple(known["fix_versions"]))


def left_out(answer: Mapping[str, Any]) -> list[str]:
    """Return the pins that pip-audit could not ask about."""
    return [f"{each['name']}: {each['skip_reason']}" for each in answer["dependencies"] if "skip_reason" in each]


def judged(found: Sequence[Found], accepted: Sequence[Accepted], today: date) -> list[str]:
    """Return what is wrong: vulnerabilities that nobody accepts today, and exceptions that are not needed."""
    wrong = []
    for each in found:
        matching = [one for one in accepted if one.id in each.names]
        over = [f"its exception ended on {one.until}" for one in matching if one.until < today]
        if not matching or over:
            wrong.append("; ".join([str(each), *over]))
    known = {name for each in found for name in each.names}
    return wrong + [f"{EXCEPTIONS}: nothing has {one.id} any more" for one in accepted if one.id not in known]


def withdrawn(page: Mapping[str, Any], digests: Sequence[str]) -> str | None:
    """Return why files of these digests were withdrawn, by an index's page of their project; ``None`` if none was."""
    for each in page["files"]:
        if each.get("yanked") and each["hashes"].get("sha256") in digests:
            return each["yanked"] if isinstance(each["yanked"], str) else "no reason is given"
    return None


def _ask_database(root: Path, python: Path, url: str) -> list[dict[str, Any]] | None:
    """Return pip-audit's answers, or ``None`` with the reason on standard error."""
    command = [str(python), "-m", "pip_audit", "--disable-pip", "--require-hashes", "-s", "osv", "--osv-url", url]
    command += ["-f", "json", "--progress-spinner", "off", "-r"]
    answers = []
    # One by one: it takes no two versions of a package, which environments of their own may have.
    for name in LOCKS:
        lock = str(root / "locks" / f"{name}.lock")
        done = subprocess.run([*command, lock], capture_output=True, text=True, check=False)
        try:
            answers.append(json.loads(done.stdout))
        except ValueError:
            last = done.stderr.strip().splitlines()[-1:] or [f"pip-audit ended with {done.returncode}"]
            reason = last[0][:_LONGEST_REASON]
            print(f"scripts/audit: vulnerabilities: no answer of {url}: {reason}", file=sys.stderr)
            return None
    return answers


def _ask_index(root: Path, index: str) -> list[str] | None:
    """Return the pins that were withdrawn, or ``None`` with the reason on standard error."""
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    found = []
    for name, version, digests in sorted(_pins(root)):
        request = urllib.request.Request(f"{index.rstrip('/')}/{name}/", headers={"Accept": _PAGE})
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S, context=context) as answer:
                reason = withdrawn(json.load(answer), digests)
        except (OSError, ValueError, KeyError) as error:
            print(f"scripts/audit: withdrawn versions: {name}: the index did not answer: {error}", file=sys.stderr)
            return None
        if reason is not None:
            found.append(f"{name} {version}: was withdrawn from the index: {reason}")
    return found


def _pins(root: Path) -> set[tuple[str, str, tuple[str, ...]]]:
    texts = [(root / "locks" / f"{name}.lock").read_text("utf-8") for name in LOCKS]
    return {(name, pins(text)[name], tuple(digests)) for text in texts for name, digests in hashes(text).items()}


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/audit",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--database", metavar="URL", default=DATABASE, help="who is asked as OSV (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        accepted = exceptions((root / EXCEPTIONS).read_text("utf-8"))
    except ValueError as error:
        print(f"scripts/audit: {EXCEPTIONS}: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        python = Path(name, "bin", "python")
        install = ("-m", "pip", "install", "-q", "--require-hashes", "-r", root / "locks" / "audit.lock")
        if subprocess.run([python, *install], check=False).returncode != 0:
            print("scripts/audit: nothing was asked: pip-audit cannot be installed", file=sys.stderr)
            return NOT_ASKED
        answers = _ask_database(root, python, options.database)
    yanked = _ask_index(root, os.environ.get("PIP_INDEX_URL", INDEX))
    known = dict.fromkeys(found for answer in answers or () for found in vulnerabilities(answer))
    wrong = [] if answers is None else judged(list(known), accepted, datetime.now(UTC).date())
    wrong += yanked or []
    for line in wrong:
        print(f"scripts/audit: {line}", file=sys.stderr)
    missing = {line for answer in answers or () for line in left_out(answer)}
    for line in sorted(missing):
        print(f"scripts/audit: not asked: {line}", file=sys.stderr)
    if wrong:
        return 1
    if answers is None or yanked is None or missing:
        return NOT_ASKED
    print(f"nothing is known against {len(_pins(root))} pins; accepted: {len(accepted)}")
    return 0
