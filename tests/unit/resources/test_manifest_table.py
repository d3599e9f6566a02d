"""Every case of the table of manifests: what is accepted, and the exact words of what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse

from tests.support.manifest_table import Case, cases


@pytest.mark.parametrize("case", cases(), ids=str)
def test_manifest(case: Case) -> None:
    problems: list[str] = []
    try:
        parse(case.text, "m.yaml")
    except ManifestError as error:
        problems = error.problems
    assert len(problems) == len(case.errors), problems
    for problem, line in zip(problems, case.errors, strict=True):
        if line.endswith("…"):
            assert problem.startswith(line[:-1])
        else:
            assert problem == line


def test_the_table_is_a_table() -> None:
    table = cases()
    assert len({case.name for case in table}) == len(table)
    of_resources = [case for case in table if case.resource is not None]
    assert len(of_resources) >= 60
    kinds = Counter((case.resource or {})["kind"] for case in of_resources)
    assert min(kinds[kind] for kind in ("BrokerCluster", "Tenant", "Namespace", "Topic", "Subscription")) >= 5
