"""Whole brokers under everything that may happen to them keep their promises; see docs/simulation.md."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason, Explanation
from heliograph_broker.messaging.topic.directory import AnySubscription

from . import idle_reasons
from .history import SWITCHES, damaged, generate, switches, varied
from .model import Violation
from .run import LENGTH, quiet, run, shrink
from .world import ACTIONS

#: Always the same seeds, so that a failure is one of the change that is tested. ``scripts/simulate`` runs others.
SEEDS = 120
_A_TEST = 10


@pytest.mark.parametrize("first", range(0, SEEDS, _A_TEST))
def test_every_promise_holds(first: int) -> None:
    with quiet():
        for seed in range(first, first + _A_TEST):
            violation = run(seed).violation
            assert violation is None, f"scripts/simulate --seed {seed}: {violation}"


def test_a_seed_replays_one_run_exactly() -> None:
    with quiet():
        for seed in (3, 7, 12):
            first, second = run(seed), run(seed)
            assert first.digest == second.digest
            assert first.digest != run(seed + 100).digest


def test_another_process_replays_the_same_run() -> None:
    """Neither addresses nor the salt of hashes may decide what comes first."""
    program = "from tests.simulation.run import quiet, run\nwith quiet():\n    print(run(2).digest)"
    digests = set()
    for salt in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
        digests.add(done.stdout.split()[-1])
    assert len(digests) == 1


def test_histories_meet_every_kind_of_trouble() -> None:
    kinds = {operation.kind for seed in range(SEEDS) for operation in generate(seed, LENGTH)}
    assert kinds == ACTIONS.keys()


def test_one_history_of_sixteen_meets_damage_and_the_others_none() -> None:
    harms = {"flip_bit", "lose_segment"}
    harmed = {seed for seed in range(SEEDS) if any(one.kind in harms for one in generate(seed, LENGTH))}
    may_be = {seed for seed in range(SEEDS) if damaged(seed)}
    assert len(may_be) == SEEDS // 16
    assert harmed <= may_be
    # Hardly any is drawn nothing of it.
    assert len(harmed) >= len(may_be) - 1


def test_one_history_of_four_turns_switches_each_at_times() -> None:
    turned = [switches(seed) for seed in range(SEEDS)]
    assert all(bool(varied(seed)) >= bool(each) for seed, each in enumerate(turned))
    for name in SWITCHES:
        assert SEEDS / 16 <= sum(name in each for each in turned) <= SEEDS * 3 / 16


def test_a_subscription_that_is_idle_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_reason(subscription: AnySubscription) -> Explanation:
        return Explanation(DeliveryReason.NONE, 0, "nothing keeps it")

    seed = next(seed for seed in range(SEEDS) if varied(seed))
    monkeypatch.setattr(idle_reasons, "explain_delivery", without_reason)
    with quiet():
        violation = run(seed).violation
    assert violation is not None
    assert violation.kind == "nothing is delivered for no reason"


def test_a_failing_history_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def clear(*_: object) -> None:
        raise Violation("a test", "clear is not allowed here")

    monkeypatch.setitem(ACTIONS, "clear", clear)
    seed = next(seed for seed in range(SEEDS) if any(one.kind == "clear" for one in generate(seed, LENGTH)))
    with quiet():
        operations = shrink(seed, run(seed).operations, "a test")
    assert [operation.kind for operation in operations] == ["clear"]
