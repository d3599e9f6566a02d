"""A ScheduledBackup keeps what it says in random histories of operators in trouble; see docs/simulation.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest
from heliograph_api.resources.backup_spec import ScheduledBackupSpec
from heliograph_operator.backup import schedule_reconciler
from heliograph_operator.backup.schedule_reconciler import ScheduleReconciler
from heliograph_operator.decide.backup_schedule import Plan, plan
from heliograph_operator.decide.backup_state import is_over

from .api_server import Object
from .scheduled_backups import generate, run
from .world import Operation

#: Always the same seeds.
SEEDS = 8
A_TEST = 4
#: Seeds in which a defect has to be found that is put back.
FOUND_IN = 6


@pytest.mark.parametrize("first", range(0, SEEDS, A_TEST))
def test_every_promise_of_a_schedule_holds(first: int) -> None:
    for seed in range(first, first + A_TEST):
        violation = run(seed)
        assert violation is None, f"seed {seed}: {violation}"


def test_histories_of_a_schedule_contain_every_trouble() -> None:
    troubles = {
        "freeze_operator",
        "cut_operator",
        "set_clock",
        "kill_operator",
        "stop_operator",
        "delete_backup",
        "edit",
    }
    assert troubles <= {each.kind for seed in range(SEEDS) for each in generate(seed)}


def _does_not_wait(spec: ScheduledBackupSpec, body: Object, backups: Sequence[Object], now: datetime) -> Plan:
    return plan(spec, body, [each for each in backups if is_over(each)], now)


def _keeps_one_less(spec: ScheduledBackupSpec, body: Object, backups: Sequence[Object], now: datetime) -> Plan:
    return plan(spec.model_copy(update={"keep": (spec.keep or 1) - 1}), body, backups, now)


def _keeps_the_oldest(spec: ScheduledBackupSpec, body: Object, backups: Sequence[Object], now: datetime) -> Plan:
    found = plan(spec, body, backups, now)
    good = sorted((each for each in backups if is_over(each)), key=lambda each: str(each["metadata"]["name"]))
    return dataclasses.replace(found, expired=tuple(good[-len(found.expired) :])) if found.expired else found


def _keeps_everything(spec: ScheduledBackupSpec, body: Object, backups: Sequence[Object], now: datetime) -> Plan:
    return plan(spec.model_copy(update={"keep": None}), body, backups, now)


PLANS: dict[str, tuple[Callable[..., Plan], str]] = {
    "two at a time": (_does_not_wait, "two at a time"),
    "one less": (_keeps_one_less, "too few are kept"),
    "the oldest": (_keeps_the_oldest, "the last one is deleted"),
    "everything": (_keeps_everything, "too many are kept"),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_breaks_a_promise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, kind = PLANS[name]
    monkeypatch.setattr(schedule_reconciler, "plan", broken)
    found = (run(seed) for seed in range(FOUND_IN))
    # Which of the promises a plan breaks first is a matter of the history.
    kinds = {each.kind for each in found if each is not None}
    assert kind in kinds


def test_a_schedule_that_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create_nothing(*_: Any) -> str:
        return "none"

    monkeypatch.setattr(ScheduleReconciler, "_create", create_nothing)
    violation = run(0, [Operation("wait", (), 60.0)])
    assert violation is not None
    assert violation.kind == "backups have ended"
