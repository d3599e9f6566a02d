"""Writes what is in an image as a software bill of materials, in the JSON of CycloneDX 1.6.

Runs in the stages that build an image, with the base's own Python and nothing else. Its two steps may be in two stages:

    sbom.py distributions REPORTS PYTHON >FILE    the distributions of Python that an environment has
    sbom.py image NAME FILE                       these, and the packages of Debian that are here

``REPORTS`` is a directory of pip's reports (``--report``), which say what hash each distribution had that pip
installed. The same contents give the same bytes: there is no time in it, and nothing of the machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

SPEC: Final = "1.6"
_NAMESPACE: Final = uuid.UUID("6f0b7c52-6f0c-5d0a-9a53-1d8f4a3f7f2e")
#: A longer one is a text of a licence and not its name.
_LONGEST_LICENCE: Final = 100
_OWN: Final = "heliograph"

Component = dict[str, Any]


def document(kind: str, name: str, version: str, components: Iterable[Component]) -> dict[str, Any]:
    """Return the bill of materials of a thing of a CycloneDX ``kind``, with its components in order."""
    ordered = sorted(components, key=lambda each: (str(each.get("purl", "")), str(each["name"])))
    subject = {"type": kind, "bom-ref": f"{kind}:{name}", "name": name, "version": version}
    subject["licenses"] = [{"expression": "Apache-2.0"}]  # type: ignore[assignment]
    content = json.dumps([subject, ordered], sort_keys=True).encode()
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, hashlib.sha256(content).hexdigest())}",
        "version": 1,
        "metadata": {"component": subject},
        "components": ordered,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": sorted(each["bom-ref"] for each in ordered)},
            *({"ref": each["bom-ref"]} for each in ordered),
        ],
    }


def text_of(bill: dict[str, Any]) -> str:
    """Return a bill of materials as it is in files."""
    return json.dumps(bill, indent=1, ensure_ascii=False) + "\n"


def normal(name: str) -> str:
    """Return the name of a distribution as indexes and locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def python_component(name: str, version: str, licences: list[dict[str, Any]]) -> Component:
    """Return the component of a distribution of Python."""
    purl = f"pkg:pypi/{name}@{quote(version)}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**found, **({"licenses": licences} if licences else {})}


def licences_of(expression: str | None, name: str | None, classifiers: Iterable[str]) -> list[dict[str, Any]]:
    """Return the licences that a distribution states: an expression, or else a name, or else classifiers."""
    if expression:
        return [{"expression": expression}]
    lines = (name or "").strip().splitlines()
    if lines and len(lines) == 1 and len(lines[0]) <= _LONGEST_LICENCE:
        named = lines
    else:
        stated = (each.split(" :: ") for each in classifiers)
        named = sorted({each[-1] for each in stated if each[0] == "License" and each[1:] != ["OSI Approved"]})
    return [{"license": {"name": each}} for each in named]


def hashes_of(reports: Path) -> dict[str, str]:
    """Return the SHA-256 of each distribution that pip installed, by its name."""
    found = {}
    for report in sorted(reports.glob("*.json")):
        for each in json.loads(report.read_text("utf-8"))["install"]:
            archive = each["download_info"]["archive_info"]
            digest = archive.get("hashes", {}).get("sha256") or archive["hash"].removeprefix("sha256=")
            found[normal(each["metadata"]["name"])] = digest
    return found


def python_components(directories: Iterable[Path], hashes: Mapping[str, str]) -> Iterator[Component]:
    """Yield the distributions below directories of packages."""
    for each in distributions(path=[str(directory) for directory in directories]):
        yield _component_of(each, hashes)


def _component_of(distribution: Distribution, hashes: Mapping[str, str]) -> Component:
    metadata = distribution.metadata
    name = normal(metadata["Name"])
    classifiers = metadata.get_all("Classifier") or ()
    licences = licences_of(metadata["License-Expression"], metadata["License"], classifiers)
    component = python_component(name, distribution.version, licences)
    if name in hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": hashes[name]}]
    return component


def debian_components(root: Path) -> Iterator[Component]:
    """Yield the packages of Debian that are installed below a root directory, and the system itself."""
    release = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', (root / "etc/os-release").read_text("utf-8"), re.MULTILINE))
    system, version = release["ID"], release.get("VERSION_ID", "")
    yield {
        "type": "operating-system",
        "bom-ref": f"{system}:{version}",
        "name": system,
        "version": version,
    }
    for block in (root / "var/lib/dpkg/status").read_text("utf-8").split("\n\n"):
        package = dict(re.findall(r"^([A-Z][A-Za-z-]*): (.*)$", block, re.MULTILINE))
        if package.get("Status") != "install ok installed":
            continue
        name, number, machine = package["Package"], package["Version"], package["Architecture"]
        purl = f"pkg:deb/{system}/{quote(name)}@{quote(number)}?arch={machine}&distro={system}-{version}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": number, "purl": purl}
        licences = _debian_licences(root / "usr/share/doc" / name / "copyright")
        yield {**component, **({"licenses": licences} if licences else {})}


def _debian_licences(path: Path) -> list[dict[str, Any]]:
    """Return the names that a package's file of copyrights gives to licences, if machines can read it."""
    if not path.is_file():
        return []
    found = re.findall(r"^License: *(\S.*)$", path.read_text("utf-8", errors="replace"), re.MULTILINE)
    return [{"license": {"name": each}} for each in sorted({each.strip() for each in found})]


def interpreter(root: Path, components: Iterable[Component]) -> Iterator[Component]:
    """Yield the Python that runs this, unless a package of Debian brings it."""
    debian = {each["name"] for each in components if str(each.get("purl", "")).startswith("pkg:deb/")}
    if f"python{sys.version_info[0]}.{sys.version_info[1]}-minimal" not in debian:
        version = ".".join(map(str, sys.version_info[:3]))
        purl = f"pkg:generic/python@{version}"
        found = {"type": "application", "bom-ref": purl, "name": "python", "version": version, "purl": purl}
        yield {**found, "licenses": [{"expression": "PSF-2.0"}]}
        # It comes with a pip of its own.
        yield from python_components(root.glob(f"{sys.base_prefix[1:]}/lib/python3*/site-packages"), {})


def image_bill(name: str, python: list[Component], root: Path) -> dict[str, Any]:
    """Return the bill of materials of an image whose files are below a root directory."""
    debian = list(debian_components(root))
    (own,) = (each for each in python if each["name"] == _OWN)
    components = {each["bom-ref"]: each for each in (*interpreter(root, debian), *debian, *python)}
    return document("container", f"{_OWN}-{name}", own["version"], components.values())


def main(arguments: list[str]) -> int:
    """Run a step; the bill goes to standard output. Returns the exit code."""
    match arguments:
        case ["distributions", reports, environment]:
            directories = Path(environment).glob("lib/python3*/site-packages")
            components = list(python_components(directories, hashes_of(Path(reports))))
            print(json.dumps(components))
        case ["image", name, file]:
            python = json.loads(Path(file).read_text("utf-8"))
            sys.stdout.write(text_of(image_bill(name, python, Path("/"))))
        case _:
            print("usage: sbom.py distributions REPORTS ENVIRONMENT | sbom.py image NAME FILE", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
