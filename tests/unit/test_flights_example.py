"""The flights job: what it takes from the data set, and that a wrong number does not go unnoticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.flights import run
from examples.flights.checks import check_all
from examples.flights.dataset import Totals, expected_totals, read_flights
from examples.flights.workers import Consumed, Published

UNITED, DELTA = "UA", "DL"


def test_the_data_set_is_the_one_that_the_guide_names() -> None:
    totals = expected_totals()
    assert totals.messages == 336_776
    assert totals.distance == 350_217_607
    assert len(totals.carriers) == 16
    assert totals.carriers[UNITED] == 58_665


def test_a_flight_becomes_key_event_time_and_value() -> None:
    first = next(read_flights(1))
    assert first.carrier == UNITED
    # 5:17 on New Year's Day in New York: two minutes after the schedule.
    assert first.departure_ms == 1_357_035_420_000
    value = json.loads(first.value)
    assert (value["flight"], value["origin"], value["distance"], value["dep_delay"]) == (1545, "EWR", 1400, 2)


def test_a_cancelled_flight_has_its_scheduled_departure_and_no_made_up_values() -> None:
    cancelled = next(flight for flight in read_flights() if json.loads(flight.value)["dep_time"] is None)
    assert json.loads(cancelled.value)["dep_delay"] is None
    assert cancelled.departure_ms % 60_000 == 0


def test_the_limit_holds_on_both_sides() -> None:
    assert sum(1 for _ in read_flights(7)) == expected_totals(7).messages == 7


def totals(**carriers: int) -> Totals:
    made = Totals()
    for carrier, flights in carriers.items():
        for _ in range(flights):
            made.add(carrier, 100)
    return made


def right_run() -> tuple[Published, list[Consumed], dict[str, Any]]:
    """Return a run of five flights in which everything is right."""
    consumed = [
        Consumed("ops", "ops-1", totals(UA=2), None),
        Consumed("ops", "ops-2", totals(UA=1, DL=2), None),
        Consumed("by-carrier", "by-carrier-1", totals(UA=3), None),
        Consumed("by-carrier", "by-carrier-2", totals(DL=2), None),
    ]
    backlog = {"ops": 0, "by-carrier": 0, "audit": 5}
    stats = {
        "msgInCounter": 5,
        "partitions": {"a": {}, "b": {}},
        "subscriptions": {name: {"msgBacklog": left, "backlogSize": left * 9} for name, left in backlog.items()},
    }
    return Published(5, None), consumed, stats


def test_a_right_run_passes() -> None:
    checks = check_all(totals(UA=3, DL=2), *right_run(), partitions=2)
    assert checks.failures == []
    assert checks.count > 15


def one_lost(published: Published, consumed: list[Consumed], stats: dict[str, Any]) -> Published:
    consumed[1] = consumed[1]._replace(totals=totals(UA=1, DL=1))
    return published


def one_key_at_two_consumers(published: Published, consumed: list[Consumed], stats: dict[str, Any]) -> Published:
    consumed[2:] = [
        consumed[2]._replace(totals=totals(UA=2)),
        consumed[3]._replace(totals=totals(UA=1, DL=2)),
    ]
    return published


def backlog_off_by_one(published: Published, consumed: list[Consumed], stats: dict[str, Any]) -> Published:
    stats["subscriptions"]["audit"]["msgBacklog"] = 4
    return published


def no_receipt(published: Published, consumed: list[Consumed], stats: dict[str, Any]) -> Published:
    return Published(4, "Timeout")


@pytest.mark.parametrize(
    ("spoil", "failure"),
    [
        (one_lost, "ops: flights of DL: expected 2, got 1"),
        (one_key_at_two_consumers, "by-carrier: consumers that saw UA: expected 1, got 2"),
        (backlog_off_by_one, "broker: backlog of audit: expected 5, got 4"),
        (no_receipt, "receipts of the publisher: expected 5, got 4"),
        (no_receipt, "errors of the publisher: expected None, got Timeout"),
    ],
)
def test_a_wrong_figure_is_named_with_what_was_expected(
    spoil: Callable[[Published, list[Consumed], dict[str, Any]], Published], failure: str
) -> None:
    published, consumed, stats = right_run()
    published = spoil(published, consumed, stats)
    checks = check_all(totals(UA=3, DL=2), published, consumed, stats, partitions=2)
    assert failure in checks.failures


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run.main(["--data-dir", str(tmp_path / "file" / "data")]) == 1
    log = tmp_path / "file" / "data.log"
    assert capsys.readouterr().err.startswith(f"quickstart: the broker's log {log} cannot be written: ")
