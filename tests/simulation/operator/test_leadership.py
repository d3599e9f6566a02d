"""Only one of two operators changes things, at whatever step the leader stalls or is cut off."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.kube.lease import LeaseLeadership

from tests.simulation.run import quiet

from .history import generate
from .run import run
from .world import LEADER, Operation

#: Always the same seeds; scripts/simulate-operator runs others.
SEEDS = 20
A_TEST = 5
ORDERS = "persistent://shop/pay/orders"


def _does(kind: str, *arguments: Any, pause_s: float = 0.0) -> Operation:
    return Operation(kind, arguments, pause_s)


def _new(kind: str, resource: str, pause_s: float = 1.0, **spec: Any) -> Operation:
    return _does("create", kind, resource, spec, {}, pause_s=pause_s)


TOPIC = {"name": "orders", "namespaceRef": {"name": "pay"}}
FAMILY = [
    _new("Tenant", "shop"),
    _new("Namespace", "pay", name="pay", tenantRef={"name": "shop"}),
    _new("Topic", "orders", 20.0, **TOPIC, deletionPolicy="DeleteIfEmpty", messageTTL="7d"),
]
#: What the leader is in the middle of when it loses its leadership.
BEGUN = {
    "a deletion": [_does("delete", "Topic", "orders")],
    "a change": [_does("edit", "Topic", "orders", {"messageTTL": "1m"})],
    "a deletion of all": [
        _does("delete", "Topic", "orders"),
        _does("delete", "Namespace", "pay"),
        _does("delete", "Tenant", "shop"),
    ],
}
#: What people do with the operator that took over.
MEANWHILE = [
    _new("Tenant", "shop"),
    _new("Namespace", "pay", name="pay", tenantRef={"name": "shop"}),
    _new("Topic", "orders", 15.0, **TOPIC, messageTTL="1h"),
    _does("publish", ORDERS, 1000),
    _does("edit", "Topic", "orders", {"messageTTL": "2h"}, pause_s=30.0),
]


#: Times (s) from the beginning of that until the leader stalls; requests take up to 0.6 s.
STEPS_S = [0.03 * step for step in range(24)]


@pytest.mark.parametrize("begun", BEGUN)
@pytest.mark.parametrize("trouble", ["freeze_operator", "cut_operator"])
def test_an_operator_that_lost_its_lease_changes_nothing(begun: str, trouble: str) -> None:
    with quiet():
        for seed, after_s in enumerate(STEPS_S):
            stall = [_does("wait", pause_s=after_s), _does(trouble, LEADER, 60.0, pause_s=25.0)]
            violation = run(seed, [*FAMILY, *BEGUN[begun], *stall, *MEANWHILE], operators=2).violation
            assert violation is None, f"{after_s} s: {violation}"


@pytest.mark.parametrize("first", range(0, SEEDS, A_TEST))
def test_every_promise_holds_with_two_operators(first: int) -> None:
    with quiet():
        for seed in range(first, first + A_TEST):
            violation = run(seed, operators=2).violation
            assert violation is None, f"scripts/simulate-operator --operators 2 --seed {seed}: {violation}"


def test_histories_of_two_operators_contain_every_way_to_lose_a_lease() -> None:
    troubles = {"freeze_operator", "cut_operator", "set_clock", "kill_operator", "stop_operator"}
    assert troubles <= {each.kind for seed in range(SEEDS) for each in generate(seed, operators=2)}


def test_two_leaders_are_found_when_a_leader_does_not_ask_before_its_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseLeadership, "deposed", lambda self: False)
    with quiet():
        stall = [_does("wait", pause_s=0.1), _does("freeze_operator", LEADER, 60.0, pause_s=25.0)]
        found = [run(seed, [*FAMILY, *BEGUN["a change"], *stall, *MEANWHILE], operators=2) for seed in range(8)]
    assert "two leaders" in {each.violation.kind for each in found if each.violation is not None}
