"""The bills of materials in the wheels (PEP 770): what each needs, as the locks that its tests ran with have it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from images.sbom import Component, document, python_component, text_of
from scripts.lock_files import STATED, TOOLS, pins

ROOT = Path(__file__).resolve().parents[1]
#: Where an index keeps the files of a distribution; the hashes are those of its files.
_FILES = "https://pypi.org/simple/{}/"


class Wheel(NamedTuple):
    """A distribution of the project: where its bill of materials is, and the locks of what it needs."""

    path: str
    required: str
    optional: tuple[str, ...] = ()


WHEELS = {
    "heliograph": Wheel("locks/heliograph.cdx.json", "broker", ("client", "operator")),
    "heliograph-spark": Wheel("pipeline/heliograph-spark.cdx.json", "source"),
}


def hashes(text: str) -> dict[str, list[str]]:
    """Return the hashes of each pin of a lock file, by its name."""
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {block.partition("==")[0]: sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", block)) for block in blocks}


def bill(name: str, root: Path = ROOT) -> dict[str, Any]:
    """Return the bill of materials of a wheel from the files below a directory."""
    wheel = WHEELS[name]
    module = (root / "api/heliograph_api/__init__.py").read_text("utf-8")
    match = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    assert match is not None, "api/heliograph_api/__init__.py has no __version__"
    components = {each["name"]: each for lock in wheel.optional for each in _components(root, lock, "optional")}
    components |= {each["name"]: each for each in _components(root, wheel.required, "required")}
    return document("library", name, match[1], components.values())


def _components(root: Path, lock: str, scope: str) -> Iterator[Component]:
    text = (root / "locks" / f"{lock}.lock").read_text("utf-8")
    stated = json.loads((root / "locks" / STATED).read_text("utf-8"))
    found, tools = hashes(text), pins((root / "locks" / f"{TOOLS}.lock").read_text("utf-8"))
    for name, version in pins(text).items():
        # The tools that build the wheels are in the lock of the client, and not in the wheel.
        if tools.get(name) == version:
            continue
        component = python_component(name, version, stated[f"{name}=={version}"])
        digests = [{"alg": "SHA-256", "content": each} for each in found[name]]
        files = {"type": "distribution", "url": _FILES.format(name), "hashes": digests}
        yield component | {"scope": scope, "externalReferences": [files]}


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write the bills, or with ``--check`` compare them with the files. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: scripts/generate-sboms [--check]", file=sys.stderr)
        return 2
    code = 0
    for name, wheel in WHEELS.items():
        path, text = root / wheel.path, text_of(bill(name, root))
        if not arguments:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            print(f"{wheel.path} is not current: run scripts/generate-sboms", file=sys.stderr)
            code = 1
    return code
