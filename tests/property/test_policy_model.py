"""Policies and histories at random: the real core and a brute-force oracle agree after every step.

Each history is made from one number, so a failure names the number and prints the history, cut down to the steps
that matter, as Python that :func:`test_histories_that_once_failed` can take over.
``HELIOGRAPH_MODEL_SEED`` begins elsewhere, ``HELIOGRAPH_MODEL_HISTORIES`` runs another number of histories.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from heliograph_broker.messaging.policies import entry_expiry, expiry

from tests.support.policy_driver import Failed, PolicyDriver
from tests.support.policy_history import HistoryMaker, Step, shrink, step
from tests.support.policy_modelled_broker import HistoryResult

_is_expired = entry_expiry.is_expired

HISTORIES = int(os.environ.get("HELIOGRAPH_MODEL_HISTORIES", "3000"))
FIRST_SEED = int(os.environ.get("HELIOGRAPH_MODEL_SEED", "1"))
PARTS = 8

#: A store in memory where there is such a place: the model is about policies, and a sync costs most of the time.
_MEMORY = Path("/dev/shm")
_BASE = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None


def run(steps: list[Step]) -> HistoryResult:
    with tempfile.TemporaryDirectory(dir=_BASE) as directory:
        return PolicyDriver(Path(directory) / "data").run(steps)


def failure(steps: list[Step]) -> Failed | None:
    try:
        run(steps)
    except Failed as failed:
        return failed
    return None


def explain(seed: int, steps: list[Step]) -> str:
    """Cut a failing history down and write it for people."""
    short = shrink(steps, lambda shorter: failure(shorter) is not None)
    failed = failure(short)
    lines = "\n".join(f"    {one}" for one in short)
    return f"seed {seed}, {len(steps)} steps, {len(short)} of them matter: {failed}\n{lines}"


def test_enough_histories_are_run() -> None:
    assert HISTORIES >= 2000 or "HELIOGRAPH_MODEL_HISTORIES" in os.environ


@pytest.mark.parametrize("part", range(PARTS))
def test_the_core_and_the_oracle_agree_after_every_step(part: int) -> None:
    total = HistoryResult()
    histories = 0
    for seed in range(FIRST_SEED + part, FIRST_SEED + HISTORIES, PARTS):
        steps = HistoryMaker(seed).make()
        try:
            total.add(run(steps))
        except Failed as failed:
            raise AssertionError(explain(seed, steps)) from failed
        histories += 1
    print(f"{histories} histories from seed {FIRST_SEED + part} on: {total}")
    assert histories == len(range(part, HISTORIES, PARTS))


_FOUND = {
    "messages passed over as expired that live longer after all, Exclusive": [
        step("create", topic="t", name="a", at="earliest"),
        step("policy", level="topic:t", name="message_ttl_ms", value=1000),
        step("publish", topic="t", sizes=(40, 40, 40, 40, 40)),
        step("blink", ms=1300),
        step("connect", topic="t", subscription=0, kind="Exclusive", permits=50),
        step("policy", level="topic:t", name="message_ttl_ms", value=10_000),
        step("wait", ms=1000),
    ],
    "messages passed over as expired that live longer after all, Failover": [
        step("create", topic="t", name="a", at="earliest"),
        step("policy", level="topic:t", name="message_ttl_ms", value=1000),
        step("publish", topic="t", sizes=(40, 40, 40, 40, 40)),
        step("connect", topic="t", subscription=0, kind="Failover", permits=0),
        step("blink", ms=1300),
        step("connect", topic="t", subscription=0, kind="Failover", permits=50),
        step("flow", topic="t", subscription=0, consumer=0, permits=50),
        step("policy", level="topic:t", name="message_ttl_ms", value=10_000),
        step("wait", ms=1000),
    ],
    "a TTL of 0 published in the millisecond of a run": [
        step("create", topic="t", name="a", at="earliest"),
        step("publish", topic="t", sizes=(300, 300), ttls=("4000",)),
        step("wait", ms=6000),
        step("publish", topic="t", sizes=(0,), ttls=("0",)),
        step("wait", ms=1000),
    ],
    "a TTL of 0 that comes while messages are in flight": [
        step("create", topic="t", name="a", at="earliest"),
        step("connect", topic="t", subscription=0, kind="Shared", permits=50),
        step("publish", topic="t", sizes=(10,), key="z"),
        step("policy", level="broker", name="message_ttl_ms", value=0),
        step("wait", ms=3000),
        step("disconnect", topic="t", subscription=0, consumer=0),
        step("wait", ms=1000),
    ],
    "a delayed message with a TTL of 0 that was given back": [
        step("create", topic="t", name="a", at="earliest"),
        step("connect", topic="t", subscription=0, kind="Shared", permits=5),
        step("policy", level="broker limits", name="message_ttl_ms", value=0),
        step("publish", topic="t", sizes=(10, 10), key="z", ttls=("9223372036854775807",), delay=1000),
        step("wait", ms=1300),
        step("disconnect", topic="t", subscription=0, consumer=0),
        step("wait", ms=1000),
    ],
    "a longer TTL after delayed messages were passed over": [
        step("policy", level="topic:t", name="message_ttl_ms", value=2000),
        step("create", topic="t", name="b", at="latest"),
        step("publish", topic="t", sizes=(10,), delay=1500),
        step("wait", ms=2000),
        step("policy", level="topic:t", name="message_ttl_ms", value=10000),
        step("policy", level="namespace:live", name="delayed_delivery", value=False),
        step("wait", ms=1000),
    ],
    "a TTL removed before the expiry was recorded": [
        step("create", topic="t", name="a", at="earliest"),
        step("policy", level="namespace:live", name="message_ttl_ms", value=0),
        step("publish", topic="t", sizes=(120, 0)),
        step("connect", topic="t", subscription=0, kind="Key_Shared", permits=1),
        step("policy", level="namespace:live", name="message_ttl_ms", value=None),
        step("wait", ms=1000),
    ],
    "delays switched off while messages wait": [
        step("create", topic="t", name="a", at="earliest"),
        step("connect", topic="t", subscription=0, kind="Key_Shared", permits=5),
        step("publish", topic="t", sizes=(300, 120), ttls=("30000",), delay=20000),
        step("policy", level="broker", name="delayed_delivery", value=False),
        step("wait", ms=1000),
    ],
    "permits for the rest of a batch": [
        step("policy", level="broker", name="ttl_in_batches", value=True),
        step("create", topic="t", name="a", at="earliest"),
        step("publish", topic="t", sizes=(120,), batch=2, ttls=("1000", "2000")),
        step("blink", ms=999),
        step("blink", ms=300),
        step("publish", topic="t", sizes=(10,)),
        step("connect", topic="t", subscription=0, kind="Exclusive", permits=2),
    ],
    "eviction beside letters on their way": [
        step("policy", level="namespace:live", name="dead_letter_topic", value="d"),
        step("create", topic="t", name="a", at="earliest"),
        step("policy", level="broker", name="message_ttl_ms", value=2000),
        step("publish", topic="t", sizes=(0, 10, 0, 300, 300)),
        step("policy", level="namespace:live", name="backlog_quota_size", value=(150, "consumer_backlog_eviction")),
        step("wait", ms=6000),
    ],
    "both quotas at once": [
        step("policy", level="topic:t", name="backlog_quota_age", value=(900, "consumer_backlog_eviction")),
        step("policy", level="topic:t", name="backlog_quota_size", value=(400, "consumer_backlog_eviction")),
        step("create", topic="t", name="b", at="earliest"),
        step("publish", topic="t", sizes=(40, 300, 40, 300, 300), key="y"),
        step("wait", ms=3000),
        step("publish", topic="t", sizes=(40, 300, 10, 10, 120), key="x"),
        step("wait", ms=1000),
    ],
    "messages of a batch that were hidden, and a TTL of 0": [
        step("create", topic="t", name="b", at="latest"),
        step("policy", level="namespace:live", name="ttl_in_batches", value=True),
        step("publish", topic="t", sizes=(10, 300, 0), batch=2, key="x", ttls=("300", "4000", "1000")),
        step("connect", topic="t", subscription=0, kind="Shared", permits=3),
        step("publish", topic="t", sizes=(300,), batch=5, ttls=("300", "1500", "0")),
        step("flow", topic="t", subscription=0, consumer=2, permits=50),
        step("wait", ms=3000),
    ],
}


@pytest.mark.parametrize("history", _FOUND.values(), ids=_FOUND.keys())
def test_histories_that_once_failed(history: list[Step]) -> None:
    run([step("policy", level="broker", name="retention", value=(0, 0)), *history])
    run(history)


def test_a_wrong_broker_is_found_and_its_history_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    # One millisecond too long: nothing but the exact due time shows it.
    monkeypatch.setattr(expiry, "is_expired", lambda topic, entry, now, ttl: _is_expired(topic, entry, now - 1, ttl))
    for seed in range(1, 300):
        steps = HistoryMaker(seed).make()
        if failure(steps) is not None:
            output = explain(seed, steps)
            assert output.startswith(f"seed {seed}, {len(steps)} steps, ")
            assert len(output.splitlines()) < 12
            return
    raise AssertionError("300 histories show no difference")
