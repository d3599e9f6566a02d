"""Every case of ``manifest_table.yaml``: what is accepted, and the exact words of what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from heliograph_broker.resources.documents import read_yaml, write_yaml
from heliograph_broker.resources.manifests import ManifestError, parse

_KINDS = {"topic": "Topic", "namespace": "Namespace", "tenant": "Tenant", "cluster": "BrokerCluster"}
_REFERENCES = {"topic": {"namespaceRef": {"name": "payments"}}, "namespace": {"tenantRef": {"name": "shop"}}}

_Case = dict[str, Any]


def _table() -> list[_Case]:
    text = Path(__file__).with_name("manifest_table.yaml").read_text(encoding="utf-8")
    return cast("list[_Case]", read_yaml(text)[0])


def _manifest(case: _Case) -> tuple[str, str]:
    """Return the file of a case, and what its error lines begin with where the table leaves it out."""
    if "text" in case:
        return case["text"], ""
    shape = next(key for key in _KINDS if key in case)
    resource = {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": _KINDS[shape],
        "metadata": {"name": "orders"},
        "spec": {**_REFERENCES.get(shape, {}), **case[shape]},
    }
    return write_yaml([resource]), f"m.yaml: document 1 ({_KINDS[shape]} orders): "


@pytest.mark.parametrize("case", _table(), ids=lambda case: case["case"])
def test_manifest(case: _Case) -> None:
    text, prefix = _manifest(case)
    problems: list[str] = []
    try:
        parse(text, "m.yaml")
    except ManifestError as error:
        problems = error.problems
    expected = [prefix + line for line in case["errors"]]
    assert len(problems) == len(expected), problems
    for problem, line in zip(problems, expected, strict=True):
        if line.endswith("…"):
            assert problem.startswith(line[:-1])
        else:
            assert problem == line


def test_the_table_is_a_table() -> None:
    cases = _table()
    assert len({case["case"] for case in cases}) == len(cases) >= 60
