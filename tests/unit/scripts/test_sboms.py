"""The bills of materials: what they say of wheels and images agrees with the locks and with what is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from images.sbom import hashes_of, image_bill, licences_of, normal, python_components, text_of
from scripts.lock_files import pins
from scripts.wheel_sboms import WHEELS, bill, hashes, main

ROOT = Path(__file__).resolve().parents[3]
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Depends: libgcc-s1,
 libcrypt1

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0

Package: tzdata
Status: install ok installed
Architecture: all
Version: 1:2025b-0
"""
DIGESTS = {"heliograph": "1" * 64, "some-library": "2" * 64}


def assert_is_valid(text: str) -> None:
    """Check a text with the schema of CycloneDX."""
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert wrong is None, repr(wrong)


def by_name(components: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named = {each["name"]: each for each in components}
    assert len(named) == len(components)
    return named


@pytest.mark.parametrize("name", WHEELS)
def test_the_bill_of_a_wheel_is_current_and_valid(name: str) -> None:
    text = (ROOT / WHEELS[name].path).read_text()
    assert text == text_of(bill(name))
    assert_is_valid(text)


@pytest.mark.parametrize("name", WHEELS)
def test_the_bill_of_a_wheel_has_versions_hashes_and_licences_of_its_locks(name: str) -> None:
    wheel = WHEELS[name]
    found = by_name(json.loads((ROOT / wheel.path).read_text())["components"])
    for lock in (wheel.required, *wheel.optional):
        text = (ROOT / "locks" / f"{lock}.lock").read_text()
        for pin, version in pins(text).items():
            if pin in found:
                assert found[pin]["version"] == version
                (files,) = found[pin]["externalReferences"]
                assert [each["content"] for each in files["hashes"]] == hashes(text)[pin] != []
    required = pins((ROOT / "locks" / f"{wheel.required}.lock").read_text())
    assert {name for name, each in found.items() if each["scope"] == "required"} == set(required)
    licensed = [each for each in found.values() if each.get("licenses")]
    assert len(licensed) >= len(found) * 0.7


def test_the_bill_of_the_wheel_has_all_that_it_needs_and_not_what_builds_it() -> None:
    found = by_name(bill("heliograph")["components"])
    needed: set[str] = set()
    _need(needed, "heliograph", {"client", "operator"})
    assert len(needed) > 40
    assert needed - set(found) == set()
    assert "hatchling" not in found


def _need(needed: set[str], name: str, extras: set[str]) -> None:
    """Add what a distribution of this environment needs, and what that needs."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in extras | {""}):
            other = normal(requirement.name)
            if other not in needed:
                needed.add(other)
                _need(needed, other, set(requirement.extras))


def test_a_bill_that_is_not_current_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for directory in ("locks", "api/heliograph_api", "pipeline"):
        (tmp_path / directory).mkdir(parents=True)
    for file in (*ROOT.glob("locks/*"), ROOT / "api/heliograph_api/__init__.py"):
        (tmp_path / file.relative_to(ROOT)).write_text(file.read_text())
    assert main([], tmp_path) == main(["--check"], tmp_path) == 0
    changed = tmp_path / WHEELS["heliograph"].path
    changed.write_text(changed.read_text().replace('"required"', '"optional"', 1))
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "locks/heliograph.cdx.json is not current: run scripts/generate-sboms\n"
    assert main(["--chek"], tmp_path) == 2


@pytest.mark.parametrize(
    ("expression", "name", "classifiers", "licences"),
    [
        ("MIT OR Apache-2.0", "MIT", ["License :: OSI Approved :: MIT License"], [{"expression": "MIT OR Apache-2.0"}]),
        (None, "BSD-3-Clause", ["License :: OSI Approved :: BSD License"], [{"license": {"name": "BSD-3-Clause"}}]),
        (None, "The text\nof a licence", ["License :: OSI Approved", "License :: X :: MIT License"], ["MIT License"]),
        (None, "x" * 101, ["Topic :: Text"], []),
        (None, None, [], []),
    ],
)
def test_a_licence_is_what_a_distribution_states(
    expression: str | None, name: str | None, classifiers: list[str], licences: list[Any]
) -> None:
    expected = [{"license": {"name": each}} if isinstance(each, str) else each for each in licences]
    assert licences_of(expression, name, classifiers) == expected


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files of an image: two distributions and the packages of Debian."""
    packages = tmp_path / "opt/heliograph/lib/python3.12/site-packages"
    for name, version, lines in (
        ("Some.Library", "1.0+local", "License: MIT\n"),
        ("heliograph", "0.1.0", "License-Expression: Apache-2.0\n"),
    ):
        directory = packages / f"{name}-{version}.dist-info"
        directory.mkdir(parents=True)
        (directory / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{lines}\n")
    for path, text in (
        ("etc/os-release", 'NAME="Debian"\nID=debian\nVERSION_ID="12"\n'),
        ("var/lib/dpkg/status", STATUS),
        ("usr/share/doc/libc6/copyright", "Files: *\nLicense: LGPL-2.1+\n text\n\nFiles: x\nLicense: BSD-3-clause\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def installed(image: Path) -> list[dict[str, Any]]:
    reports = image / "reports"
    reports.mkdir()
    for number, (name, digest) in enumerate(DIGESTS.items()):
        # As pip writes it, now and before version 23.
        archive = {"hashes": {"sha256": digest}} if number else {"hash": f"sha256={digest}"}
        each = {"metadata": {"name": name}, "download_info": {"url": "https://index/x", "archive_info": archive}}
        (reports / f"{number}.json").write_text(json.dumps({"install": [each]}))
    directories = image.glob("opt/heliograph/lib/python3*/site-packages")
    return list(python_components(directories, hashes_of(reports)))


def test_the_bill_of_an_image_has_its_distributions_and_packages(image: Path) -> None:
    found = image_bill("broker", installed(image), image)
    assert_is_valid(text_of(found))
    assert found["metadata"]["component"]["name"] == "heliograph-broker"
    assert found["metadata"]["component"]["version"] == "0.1.0"
    named = by_name(found["components"])
    assert set(named) >= {"libc6", "tzdata", "some-library", "heliograph", "debian", "python"}
    assert "gone" not in named
    library = named["some-library"]
    assert library["purl"] == "pkg:pypi/some-library@1.0%2Blocal"
    assert library["hashes"] == [{"alg": "SHA-256", "content": DIGESTS["some-library"]}]
    assert library["licenses"] == [{"license": {"name": "MIT"}}]
    assert named["libc6"]["licenses"] == [{"license": {"name": each}} for each in ("BSD-3-clause", "LGPL-2.1+")]
    assert named["tzdata"]["purl"] == "pkg:deb/debian/tzdata@1%3A2025b-0?arch=all&distro=debian-12"
    assert "index" not in text_of(found)


def test_the_same_contents_make_the_same_bill_and_others_another_one(image: Path) -> None:
    python = installed(image)
    first = image_bill("broker", python, image)
    assert text_of(image_bill("broker", python[::-1], image)) == text_of(first)
    python[0]["hashes"][0]["content"] = "3" * 64
    assert image_bill("broker", python, image)["serialNumber"] != first["serialNumber"]


def test_a_python_of_debian_is_named_once(image: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    status = image / "var/lib/dpkg/status"
    own = (
        f"Package: python{version}-minimal\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}.2-6\n"
    )
    status.write_text(f"{STATUS}\n{own}")
    named = by_name(image_bill("broker", installed(image), image)["components"])
    assert [each for each in named if each.startswith("python")] == [f"python{version}-minimal"]


def test_the_steps_of_an_images_build_need_nothing_but_python(image: Path, tmp_path: Path) -> None:
    installed(image)
    script = [sys.executable, "-I", str(ROOT / "images" / "sbom.py")]
    listed = subprocess.run(
        [*script, "distributions", str(image / "reports"), str(image / "opt/heliograph")],
        capture_output=True,
        check=True,
    )
    assert {each["name"] for each in json.loads(listed.stdout)} == {"some-library", "heliograph"}
    refused = subprocess.run([*script, "image"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("usage: sbom.py")


def stages() -> Iterator[tuple[str, str]]:
    """Yield name and text of each stage of the Dockerfile."""
    for text in re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]:
        match = re.match(r"\S+ AS (\S+)\n", text)
        assert match is not None
        yield match[1], text


def test_every_image_begins_with_a_base_of_one_digest_and_has_a_bill() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"^ARG BASE_IMAGE=(.*)$", text, re.MULTILINE)[0].count("@sha256:") == 1
    found = dict(stages())
    for target in ("broker", "client", "operator", "spark"):
        assert "\nUSER 10001:10001\n" in found[target]
        assert sum(f"sbom.py image {target} " in each for each in found.values()) == 1
    known = {"scratch", "${BASE_IMAGE}", *found}
    assert {each.split()[0] for each in found.values()} <= known
