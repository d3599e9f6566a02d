"""The matrix of rights: which cells of two brokers differ, and when the table of reasons is found wrong."""

from __future__ import annotations

import json

import pytest

from tests.support.rights_matrix import differences
from tests.support.rights_matrix.__main__ import document
from tests.support.rights_matrix.differences import Cell, Cells
from tests.support.rights_matrix.routes import HAS, ROUTES, request_of

PULSAR = {
    "GET /a": {"200": "root boss", "401": "none foreign"},
    "GET /b": {"500": "root boss foreign", "401": "none"},
    "GET /there": {"404": "root boss foreign", "401": "none"},
    "GET /absent": {"absent": "root boss foreign", "401": "none"},
    "GET /absent/for/all": {"absent": "root boss foreign none"},
}
HERE = {
    "GET /a": {"204": "root boss", "401": "none", "403": "foreign"},
    "GET /b": {"200": "root", "401": "none", "403": "boss foreign"},
    "GET /there": {"200": "root boss foreign", "401": "none"},
    "GET /absent": {"200": "root", "403": "boss foreign none"},
    "GET /absent/for/all": {"200": "root boss foreign none"},
}
DIFFERING = [
    Cell("GET /a", "foreign", "401", "403"),
    Cell("GET /b", "boss", "may", "403"),
    Cell("GET /b", "foreign", "may", "403"),
]


def test_cells_differ_in_what_is_allowed_and_not_in_other_answers() -> None:
    assert differences.absent_rows(PULSAR) == {"GET /absent", "GET /absent/for/all"}
    assert differences.differing(PULSAR, HERE) == DIFFERING
    assert len(list(differences.cells(PULSAR, HERE))) == 12


def test_a_kind_of_client_that_pulsar_was_not_asked_as_is_noticed() -> None:
    with pytest.raises(AssertionError, match="record Pulsar's answers again"):
        differences.differing(PULSAR, HERE | {"GET /a": {"200": "root boss none foreign newcomer"}})


def test_a_reason_has_the_cells_of_its_answers_its_clients_and_its_rows() -> None:
    exact = Cells(("may", "403"), "boss foreign", ("GET /b",))
    assert [exact.have(cell) for cell in DIFFERING] == [False, True, True]
    assert [Cells(("401", "403"), "*", ("*",)).have(cell) for cell in DIFFERING] == [True, False, False]
    assert not Cells(("may", "403"), "boss", ("GET /a",)).have(DIFFERING[1])
    assert not Cells(("may", "403"), "producer", ("*",)).have(DIFFERING[1])


def test_what_a_reason_names_and_what_does_not_differ_so_is_found() -> None:
    assert Cells(("may", "403"), "boss foreign", ("GET /b",)).missing(DIFFERING) == []
    assert Cells(("may", "403"), "boss writer", ("GET /b", "GET /c")).missing(DIFFERING) == ["GET /c", "writer"]
    assert Cells(("401", "may"), "*", ("*",)).missing(DIFFERING) == ["*", "*"]
    assert Cells(("may", "403"), "foreign", ("GET /a",)).missing(DIFFERING) == ["GET /a", "foreign"]


def test_answers_are_written_with_a_row_on_each_line() -> None:
    answers = {"texts": {"GET none": {"reason": "„why“"}}, "routes": PULSAR}
    text = document(answers)
    assert json.loads(text) == answers
    assert '\n  "GET /a": {"200": "root boss", "401": "none foreign"},\n' in text
    assert "„why“" in text


def test_every_route_is_asked_with_names_and_with_a_body_where_one_is_needed() -> None:
    requests = {f"{route.method} {route.path}": request_of(route) for route in ROUTES}
    assert [path for path, _ in requests.values() if "{" in path] == []
    topic = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
    assert requests[f"POST {topic}/maxProducers"] == ("/admin/v2/persistent/shop/payments/orders/maxProducers", "100")
    assert requests[f"GET {topic}/maxProducers"][1] is None
    assert "root" in HAS
