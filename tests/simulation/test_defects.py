"""The simulation finds defects that are put back; docs/simulation.md says after how many seeds."""

from __future__ import annotations

import pytest

from .defects import DEFECTS, put_back
from .history import generate
from .model import Violation
from .run import LENGTH, quiet, run

#: The first seed from 0 on that finds it, to be counted again with ``scripts/simulate --defect`` when histories change.
FOUND = {
    "trim-point-alone": 12,
    "metadata-forgotten": 13,
    "long-keys": 2,
    "starts-without-metadata": 75,
    "receipt-before-sync": 0,
    "names-not-synced": 1,
    "tick-unguarded": 0,
    "letters-as-one": 6,
    "totals-first": 7,
    "expiry-stuck": 4,
    "closed-when-read": 3,
    "large-buffers": 5,
    "unread-answers": 14,
    "wall-clock": 2,
    "receive-time-clamped": 2,
    "replay-backwards": 16,
    "take-over": 14,
    "nothing-reclaimed": 18,
    "reads-at-once": 21,
    "missing-unnoticed": 21,
    "failed-read-is-loss": 10,
    "unread-messages": 3,
    "announced-frames": 2,
    "long-ack-sets": 73,
    "chunks-apart": 91,
    "reservation-forgotten": 13,
}


def _violation(name: str) -> Violation | None:
    return run(FOUND[name], generate(FOUND[name], LENGTH)).violation


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_is_found_by_its_seed_and_nothing_without_it(name: str) -> None:
    with quiet():
        with put_back(name):
            assert _violation(name) is not None
        without = _violation(name)
        assert without is None, f"scripts/simulate --seed {FOUND[name]}: {without}"


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_can_still_be_put_back(name: str) -> None:
    before = [getattr(one.owner, one.name) for one in DEFECTS[name].patches]
    with put_back(name):
        for one in DEFECTS[name].patches:
            assert getattr(one.owner, one.name) is one.broken
    assert [getattr(one.owner, one.name) for one in DEFECTS[name].patches] == before


def test_every_defect_has_a_seed_that_finds_it() -> None:
    assert FOUND.keys() == DEFECTS.keys()
