"""Each kind of client may do here what it may do with Apache Pulsar 4.2.4, except where a difference has a reason.

Pulsar's answers to the whole matrix are committed, and so are the differences; CONTRIBUTING.md says how to record them
again.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.rights_matrix import differences
from tests.support.rights_matrix.answers import (
    PROXIES,
    SUPERUSERS,
    Keys,
    Matrix,
    command_answers,
    http_answers,
    kinds_of,
    texts,
)
from tests.support.rights_matrix.differences import Cell, Difference
from tests.support.tokens import Signer

PULSAR: Final = differences.recorded()
TABLE: Final = differences.table()
_GUIDE: Final = Path(__file__).parents[2] / "docs" / "differences.md"
#: Kinds of clients over HTTP that have not shown who they are.
_UNKNOWN: Final = ("none", "malformed", "expired", "forged")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> dict[str, Any]:
    """The broker's answers, in the form of Pulsar's."""
    directory = tmp_path_factory.mktemp("rights")
    keys = Keys(signer, directory)
    settings = signer.settings(superusers=",".join(SUPERUSERS), proxies=",".join(PROXIES))
    with BrokerProcess(directory / "data", environment=settings) as running:
        return {
            "texts": texts(running.service_url, running.http_url, keys),
            "commands": command_answers(running.service_url, running.http_url, keys),
            "routes": http_answers(running.http_url, keys),
        }


@pytest.fixture(scope="module")
def differing(here: dict[str, Any]) -> list[Cell]:
    """The cells of both halves that differ."""
    return [cell for half in ("commands", "routes") for cell in differences.differing(PULSAR[half], here[half])]


@pytest.mark.parametrize("half", ["commands", "routes"])
def test_everything_was_asked_of_pulsar(here: dict[str, Matrix], half: str) -> None:
    assert here[half].keys() == PULSAR[half].keys(), "scripts/rights-of-pulsar asks it again"
    compared = Counter(cell.row for cell in differences.cells(PULSAR[half], here[half]))
    assert sum(compared.values()) >= {"commands": 600, "routes": 6000}[half]


def test_a_superuser_may_do_everything_on_either_side(here: dict[str, Matrix]) -> None:
    for half, role in (("commands", "superuser"), ("routes", "root")):
        for matrix in (here[half], PULSAR[half]):
            refused = [row for row in matrix if kinds_of(matrix, row)[role] in differences.REFUSALS]
            assert refused == [], half


def test_a_cell_that_differs_from_pulsars_has_one_reason(differing: list[Cell]) -> None:
    groups = [cells for difference in TABLE for cells in difference.cells]
    counted = {cell: sum(cells.have(cell) for cells in groups) for cell in differing}
    unexplained = [cell for cell, reasons in counted.items() if reasons != 1]
    assert unexplained == [], f"cells without exactly one reason in {differences.TABLE.name}"


@pytest.mark.parametrize("difference", TABLE, ids=lambda difference: difference.pulsar)
def test_a_difference_with_a_reason_is_one(differing: list[Cell], difference: Difference) -> None:
    assert [cells.missing(differing) for cells in difference.cells] == [[] for _ in difference.cells]


@pytest.mark.parametrize("difference", TABLE, ids=lambda difference: difference.pulsar)
def test_the_guide_has_each_difference(difference: Difference) -> None:
    row = f"| {difference.pulsar} | {difference.here} | {difference.reason} |"
    assert row in _GUIDE.read_text(encoding="utf-8").partition("\n## Rights\n")[2].partition("\n## ")[0]


def test_connect_is_refused_with_pulsars_error_and_a_reason(here: dict[str, Any]) -> None:
    kinds = [name for name in PULSAR["texts"] if name.startswith("CONNECT ")]
    assert len(kinds) == 6
    for kind in kinds:
        theirs, ours = PULSAR["texts"][kind], here["texts"][kind]
        assert ours["error"] == theirs["error"], kind
        # Pulsar tells nobody why.
        assert theirs["message"] in ("Failed to authenticate", "Invalid roles."), kind
    assert here["texts"]["CONNECT no credentials"]["message"].startswith("authentication is required")
    assert here["texts"]["CONNECT expired"]["message"].startswith("the token expired at ")
    foreign = here["texts"]["CONNECT foreign"]["message"]
    assert foreign == "the token is not signed by a key that this broker trusts"


def test_http_is_refused_with_a_challenge_and_a_reason_in_json(here: dict[str, Any]) -> None:
    kinds = [name for name in PULSAR["texts"] if name.startswith("GET ")]
    assert {f"GET {kind}" for kind in _UNKNOWN} < set(kinds)
    for kind in kinds:
        theirs, ours = PULSAR["texts"][kind], here["texts"][kind]
        unknown = kind.removeprefix("GET ") in _UNKNOWN
        assert ours["type"] == "application/json", kind
        assert ours["reason"], kind
        assert (ours["status"], ours["WWW-Authenticate"]) == ((401, "Bearer") if unknown else (403, None)), kind
        # A page of its server for those that it does not know; no challenge in either case.
        assert theirs["type"] == ("text/html" if unknown else "application/json"), kind
        assert (theirs["status"], theirs["WWW-Authenticate"]) == (401, None), kind
