"""If no level sets a retention, messages in no backlog stay as long as their ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_api.policies.policies import BacklogQuota, InactiveTopic, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError
from heliograph_broker.messaging.log.retention import kept_by_ledgers
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.policy_cases import (
    HOUR,
    MINUTE,
    SECOND,
    acknowledge_all,
    backlog,
    set_policies,
    stored,
)

NOTHING = Retention(0, 0)
LEDGER_AGE = 4 * HOUR


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 3}


def settle(core: Core) -> None:
    """Let a second pass, after which nothing that was due is left."""
    core.advance(SECOND)


def ledgers_of(topic: Topic) -> list[int]:
    return [ledger.entries for ledger in topic.log.ledgers]


def test_a_ledger_is_closed_240_minutes_after_it_was_begun(core: Core) -> None:
    topic = core.topic()
    core.publish_all(topic, "a")
    core.advance(LEDGER_AGE - 1)
    core.publish_all(topic, "b")
    core.advance(1)
    core.publish_all(topic, "c")
    ledgers = [topic.log.position(offset)[0] for offset in range(3)]
    assert ledgers[0] == ledgers[1] != ledgers[2]


def test_what_all_have_acknowledged_stays_while_its_ledger_is_open(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    acknowledge_all(core, subscription)
    core.advance(3 * HOUR)
    assert stored(core, topic) == ["a", "b"]
    assert subscription.acks.backlog_messages == 0


def test_seeking_back_after_acknowledging_finds_the_messages(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    acknowledge_all(core, subscription)
    settle(core)
    outcome: list[BrokerError | None] = []
    subscription.seek(0, None, outcome.append)
    core.commit()
    assert outcome == [None]
    assert backlog(core, subscription) == ["a", "b"]


def test_a_subscription_that_comes_after_the_messages_finds_them(core: Core) -> None:
    topic = core.topic()
    core.publish_all(topic, "a", "b")
    core.advance(HOUR)
    assert backlog(core, topic.create_subscription("late", "earliest")) == ["a", "b"]
    assert backlog(core, topic.create_subscription("new")) == []


def test_a_ledger_goes_once_it_is_closed_and_acknowledged_whole(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, *"abcdefg")
    assert ledgers_of(topic) == [3, 3, 1]
    subscription.acks.acknowledge_up_to(1, None)
    settle(core)
    assert stored(core, topic) == list("abcdefg")
    subscription.acks.acknowledge_up_to(4, None)
    settle(core)
    assert stored(core, topic) == list("defg")
    acknowledge_all(core, subscription)
    settle(core)
    assert stored(core, topic) == ["g"]
    assert ledgers_of(topic) == [1]


def test_the_slowest_subscription_keeps_a_ledger(core: Core) -> None:
    topic = core.topic()
    quick, slow = topic.create_subscription("quick"), topic.create_subscription("slow")
    core.publish_all(topic, *"abcd")
    acknowledge_all(core, quick)
    slow.acks.acknowledge_up_to(1, None)
    core.advance(2 * LEDGER_AGE)
    assert stored(core, topic) == list("abcd")
    topic.delete_subscription("slow")
    settle(core)
    assert stored(core, topic) == []


def test_a_full_ledger_goes_although_nothing_more_is_published(core: Core) -> None:
    topic = core.topic()
    core.publish_all(topic, *"abc")
    settle(core)
    assert stored(core, topic) == []


def test_a_ledger_is_closed_by_its_size(tmp_path: Path) -> None:
    core = Core(tmp_path / "d", ledger_max_bytes=1000)
    topic = core.topic()
    core.publish_all(topic, *"abcdef", size=300)
    assert ledgers_of(topic) == [4, 2]
    settle(core)
    assert stored(core, topic) == ["e", "f"]
    core.publish_all(topic, *"gh", size=300)
    assert ledgers_of(topic) == [4]
    # The ledger's bytes are known after a restart, too: a full one goes although nothing more is published.
    core.restart()
    settle(core)
    assert stored(core, core.topic()) == []
    core.close()


def test_a_ledger_is_kept_over_a_restart_until_the_next_one_begins(tmp_path: Path) -> None:
    core = Core(tmp_path / "d")
    core.publish_all(core.topic(), *"ab")
    core.restart()
    settle(core)
    topic = core.topic()
    assert stored(core, topic) == ["a", "b"]
    core.publish_all(topic, "c")
    settle(core)
    assert stored(core, topic) == ["c"]
    core.close()


def test_the_open_ledger_of_an_idle_topic_goes_at_its_age(core: Core) -> None:
    topic = core.topic()
    core.publish_all(topic, "a")
    core.advance(HOUR)
    core.publish_all(topic, "b")
    core.advance(LEDGER_AGE - HOUR - 1)
    assert stored(core, topic) == ["a", "b"]
    settle(core)
    assert stored(core, topic) == []
    core.publish_all(topic, "c")
    settle(core)
    assert stored(core, topic) == ["c"]
    assert topic.log.position(topic.log.end_offset - 1) == (topic.log.ledgers[-1].ledger_id, 0)


def test_an_old_ledger_goes_with_its_last_acknowledgment(core: Core) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    core.advance(2 * LEDGER_AGE)
    subscription.acks.acknowledge_up_to(0, None)
    settle(core)
    assert stored(core, topic) == ["a", "b"]
    acknowledge_all(core, subscription)
    settle(core)
    assert stored(core, topic) == []


def test_a_ledgers_age_goes_on_over_a_restart(core: Core) -> None:
    core.publish_all(core.topic(), "a")
    core.advance(LEDGER_AGE - MINUTE)
    core.restart()
    settle(core)
    assert stored(core, core.topic()) == ["a"]
    core.advance(MINUTE)
    assert stored(core, core.topic()) == []


@pytest.mark.parametrize("step_ms", [365 * 24 * HOUR, -HOUR], ids=["a year ahead", "an hour back"])
def test_setting_the_machines_clock_closes_no_ledger_and_keeps_none(core: Core, step_ms: int) -> None:
    topic = core.topic()
    core.publish_all(topic, "a")
    core.clock.step_wall_ms(step_ms)
    # Long enough for the broker to believe it.
    for _ in range(10):
        core.advance(MINUTE)
        assert stored(core, topic) == ["a"]
    core.clock.step_wall_ms(-step_ms)
    for _ in range(10):
        core.advance(MINUTE)
    core.advance(LEDGER_AGE - 20 * MINUTE - 1)
    assert stored(core, topic) == ["a"]
    settle(core)
    assert stored(core, topic) == []


@pytest.mark.parametrize("level", ["topic", "namespace", "broker", "limit of the tenant", "limit of the broker"])
def test_a_retention_of_nothing_is_exact_at_every_level(core: Core, level: str) -> None:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a", "b")
    subscription.acks.acknowledge_up_to(0, None)
    settle(core)
    assert stored(core, topic) == ["a", "b"]
    nothing = Policies(retention=NOTHING)
    if level == "topic":
        core.broker.policies.set_topic(TopicName.parse("t"), nothing)
    elif level == "namespace":
        set_policies(core, nothing)
    elif level == "broker":
        core.broker.policies.set_broker(nothing, Policies())
    elif level == "limit of the broker":
        core.broker.policies.set_broker(Policies(), nothing)
    else:
        tenant = core.broker.directory.tenants["public"]
        tenant.limits = nothing
        core.broker.tenants.update("public", tenant)
    settle(core)
    assert stored(core, topic) == ["b"]
    assert kept_by_ledgers(topic) == (0, 0)


def test_a_retention_that_is_taken_back_leaves_what_the_ledger_keeps(core: Core) -> None:
    set_policies(core, Policies(retention=Retention(-1, -1)))
    topic = core.topic()
    core.publish_all(topic, *"abcd")
    core.advance(2 * LEDGER_AGE)
    core.publish_all(topic, "e")
    set_policies(core, Policies())
    settle(core)
    assert stored(core, topic) == ["e"]


def test_a_limit_caps_what_ledgers_keep_and_lengthens_nothing(core: Core) -> None:
    core.broker.policies.set_broker(Policies(), Policies(retention=Retention(8 * HOUR, 600)))
    topic = core.topic()
    core.publish_all(topic, "a", "b", size=400)
    settle(core)
    assert stored(core, topic) == ["b"]
    core.broker.policies.set_broker(Policies(), Policies(retention=Retention(HOUR, -1)))
    core.publish_all(topic, "c")
    assert ledgers_of(topic) == [3]
    settle(core)
    # The ledger is full: it goes, though the limit would allow an hour.
    assert stored(core, topic) == []
    core.publish_all(topic, "d")
    core.advance(HOUR - 1)
    assert stored(core, topic) == ["d"]
    settle(core)
    assert stored(core, topic) == []


def test_what_is_kept_only_by_a_ledger_is_counted(core: Core) -> None:
    topic = core.topic()
    quick, slow = topic.create_subscription("quick"), topic.create_subscription("slow")
    core.publish_all(topic, "a", "b", size=100)
    acknowledge_all(core, quick)
    assert kept_by_ledgers(topic) == (0, 0)
    slow.acks.acknowledge_up_to(0, None)
    settle(core)
    assert kept_by_ledgers(topic) == (1, 100)
    acknowledge_all(core, slow)
    settle(core)
    assert kept_by_ledgers(topic) == (2, 200)
    assert (topic.statistics.stored_bytes, topic.statistics.backlog_size()) == (200, 0)
    set_policies(core, Policies(retention=Retention(HOUR, -1)))
    settle(core)
    assert stored(core, topic) == ["a", "b"]
    assert kept_by_ledgers(topic) == (0, 0)


def test_what_ledgers_keep_takes_no_place_in_a_quota(core: Core) -> None:
    set_policies(core, Policies(backlog_quota_size=BacklogQuota(250, "producer_exception")))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for text in "ab":
        client = Client()
        core.publish_all(core.producer(topic, client, text), text, size=200)
        assert client.errors == []
        acknowledge_all(core, subscription)
    assert stored(core, topic) == ["a", "b"]


def test_letters_nobody_subscribed_to_in_time_are_kept(core: Core) -> None:
    letters = core.topic("letters")
    core.broker.policies.set_topic(
        core.topic().name, Policies(message_ttl_ms=SECOND, dead_letter_topic=str(letters.name))
    )
    core.topic().create_subscription("s")
    core.publish_all(core.topic(), "a", "b")
    core.advance(HOUR)
    assert backlog(core, letters.create_subscription("late", "earliest")) == ["a", "b"]


def test_what_expired_can_be_read_as_long_as_its_ledger_stays(core: Core) -> None:
    set_policies(core, Policies(message_ttl_ms=MINUTE))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.publish_all(topic, "a")
    core.advance(HOUR)
    assert subscription.acks.backlog_messages == 0
    assert stored(core, topic) == ["a"]
    core.advance(3 * HOUR)
    assert stored(core, topic) == []


@pytest.mark.parametrize(
    "policies", [Policies(expires_ms=MINUTE), Policies(inactive_topic=InactiveTopic(MINUTE))], ids=["expires", "pulsar"]
)
def test_what_ledgers_keep_does_not_keep_an_unused_topic(core: Core, policies: Policies) -> None:
    set_policies(core, policies)
    topic = core.topic()
    producer = core.publish_all(topic, "a")
    topic.producer_registry.remove(producer)
    topic.used()
    core.advance(MINUTE - 1)
    assert str(topic.name) in core.broker.directory.topics
    core.advance(2 * SECOND)
    assert str(topic.name) not in core.broker.directory.topics
