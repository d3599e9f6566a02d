"""An operator keeps its promises in random histories of people and troubles; see docs/simulation.md."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.run import quiet

from .history import generate
from .run import run

#: Always the same seeds, so that a failure is one of the change that is tested; scripts/simulate-operator runs others.
SEEDS = 30
_A_TEST = 5


@pytest.mark.parametrize("first", range(0, SEEDS, _A_TEST))
def test_every_promise_holds(first: int) -> None:
    with quiet():
        for seed in range(first, first + _A_TEST):
            violation = run(seed).violation
            assert violation is None, f"scripts/simulate-operator --seed {seed}: {violation}"


def test_another_process_replays_the_same_history() -> None:
    """Neither addresses nor the salt of hashes may decide what comes first."""
    program = (
        "from tests.simulation.run import quiet\n"
        "from tests.simulation.operator.run import run\n"
        "with quiet():\n    print(*(run(seed).digest for seed in (3, 7)))"
    )
    digests = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, check=True)
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(set(digests.pop().split())) == 2


def test_histories_contain_everything_that_can_happen() -> None:
    kinds = {operation.kind for seed in range(SEEDS) for operation in generate(seed)}
    assert kinds == {
        "create",
        "edit",
        "annotate",
        "delete",
        "recreate",
        "consent",
        "publish",
        "subscribe",
        "drift",
        "stop_operator",
        "kill_operator",
        "start_operator",
        "api_server_away",
        "broker_away",
        "broker_full",
        "watches_lose_news",
    }
    created = {
        operation.arguments[0] for seed in range(SEEDS) for operation in generate(seed) if operation.kind == "create"
    }
    assert created == {"BrokerCluster", "Tenant", "Namespace", "Topic", "Subscription"}
