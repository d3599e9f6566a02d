"""Rules of the repository itself, whatever the broker does."""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ("README.md", "CONTRIBUTING.md", "docs/quickstart.md", "images/README.md")
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "examples/*.md", "images/*.md", "tests/e2e/*.md")
    for path in ROOT.glob(pattern)
)
LONGEST_SHELL_SCRIPT = 60


def test_protobuf_is_never_older_than_the_generated_code() -> None:
    # The generated module refuses to be imported by an older runtime, so the range must not allow one.
    generated = (ROOT / "api/heliograph_api/protocol/wire_pb2.py").read_text()
    version = re.search(r"^# Protobuf Python Version: (\S+)$", generated, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = [each for each in project["dependencies"] if each.startswith("protobuf")]
    assert version is not None
    assert f">={version[1]}," in requirement


def test_every_published_package_says_that_it_is_typed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [package for package in packages if not (ROOT / package / "py.typed").exists()] == []
    assert "Typing :: Typed" in settings["project"]["classifiers"]


def test_what_is_longer_than_a_few_steps_is_not_written_in_shell() -> None:
    files = [path for part in ("scripts", "images", ".ci") for path in (ROOT / part).rglob("*") if path.is_file()]
    shell = [path for path in files if re.match(rb"#!.*\b(?:ba)?sh\n", path.read_bytes())]
    assert len(shell) > 5
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in shell}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_SHELL_SCRIPT} == {}


@pytest.mark.parametrize("guide", GUIDES)
def test_the_scripts_a_guide_names_can_be_run(guide: str) -> None:
    named = set(re.findall(r"(?<![\w/])(?:\./)?((?:scripts|\.ci|benchmarks)/[a-z-]+)\b", (ROOT / guide).read_text()))
    assert named
    assert {script for script in named if not os.access(ROOT / script, os.X_OK)} == set()


def test_the_readme_is_short_and_says_how_to_run_before_how_to_test() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    steps = ["$ ./scripts/quickstart\n", "$ heliograph standalone\n", "helm install heliograph", "$ ./scripts/test\n"]
    places = [readme.index(step) for step in steps]
    assert places == sorted(places)


def test_the_index_of_the_documentation_lists_every_page_once() -> None:
    docs = ROOT / "docs"
    listed = re.findall(r"^\| \[[^]]+\]\(([^)]+\.md)\) \| .+ \|$", (docs / "README.md").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"README.md"}
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("guide", DOCUMENTS)
def test_a_guide_links_to_files_and_headings_that_are_there(guide: str) -> None:
    links = re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", (ROOT / guide).read_text())
    targets = [((ROOT / guide).parent / file if file else ROOT / guide, heading) for file, heading in links]
    assert [str(file) for file, _ in targets if not file.exists()] == []
    assert [f"{file.name}{heading}" for file, heading in targets if heading and heading not in headings(file)] == []


@pytest.mark.parametrize("guide", DOCUMENTS)
def test_a_guide_says_each_thing_once(guide: str) -> None:
    # A merge of two branches that changed a page leaves passages twice, under the same headings.
    text = re.sub(r"^```.*?^```$", "", (ROOT / guide).read_text(), flags=re.MULTILINE | re.DOTALL)
    under = re.compile(
        r"^#{1,2} .+$" if "verification/" in guide else r"^#+ .+$|^[^|#-].{80,}$|^- .{80,}$", re.MULTILINE
    )
    # Each kind's section of this page, which is generated, has the rules that several kinds share.
    if guide == "docs/resources.md":
        under = re.compile(r"^#+ .+$", re.MULTILINE)
    assert [line for line, times in Counter(under.findall(text)).items() if times > 1] == []


def headings(document: Path) -> set[str]:
    """Return the headings of a document as links name them: ``#a-heading``."""
    found = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
