"""A dead letter that is refused stays behind alone: others go on, it is tried again, and everybody can see why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.messages.key_partition import java_string_hash
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.commit.group import EntrySink
from heliograph_broker.storage.commit.group_commit import GroupCommit

from tests.support.core import Client, Core
from tests.support.entries import open_entry
from tests.support.subscription_types import EXCLUSIVE, SHARED

DEAD = TopicName.parse("persistent://public/default/dead")
LETTERS = "store letters"
DYING = Policies(message_ttl_ms=1000, dead_letter_topic=str(DEAD))
LARGE = b"L" * 5000


def _stored(core: Core, topic: Topic) -> list[bytes]:
    return [_payload(entry) for entry in core.read_all(topic)]


def _payload(entry: Entry) -> bytes:
    [(_, payload)] = open_entry(entry.frame)
    return payload


def _dying(core: Core, name: str = "t") -> tuple[Topic, Subscription]:
    topic = core.topic(name)
    core.broker.policies.set_topic(topic.name, DYING)
    return topic, topic.create_subscription("s")


def _small_quota(core: Core) -> Topic:
    """The dead-letter topic, with a backlog and a quota that a large letter exceeds by itself."""
    dead = core.topic(str(DEAD))
    core.broker.policies.set_topic(dead.name, Policies(backlog_quota_size=BacklogQuota(4000, "producer_exception")))
    dead.create_subscription("audit")
    return dead


@pytest.mark.parametrize("at_once", [True, False])
def test_a_letter_that_never_fits_holds_up_no_other(core: Core, at_once: bool) -> None:
    dead = _small_quota(core)
    topic, subscription = _dying(core)
    if at_once:
        core.publish_all(topic, b"a", LARGE, b"b", b"c", key="k")
    else:
        core.publish_all(topic, LARGE, key="k")
        core.advance(3000)
        core.publish_all(topic, b"a", key="k")
        core.advance(1500)
        core.publish_all(topic, b"b", b"c", key="k")
    core.advance(1500)
    assert _stored(core, dead) == [b"a", b"b", b"c"]
    assert (subscription.acks.backlog_messages, subscription.expiry.dead_lettered) == (1, 3)


def test_of_a_batch_only_the_message_that_never_fits_stays(core: Core) -> None:
    dead = _small_quota(core)
    topic, subscription = _dying(core)
    core.broker.policies.set_topic(topic.name, Policies())
    core.publish_batch(topic, b"a", LARGE, b"b")
    core.broker.policies.set_topic(topic.name, DYING)
    core.advance(2000)
    assert _stored(core, dead) == [b"a", b"b"]
    assert subscription.acks.backlog_messages == 1


def test_delivery_of_what_has_not_expired_goes_on(core: Core) -> None:
    _small_quota(core)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, key="k")
    core.advance(3000)
    client = Client()
    core.consumer(subscription, EXCLUSIVE, client, permits=100)
    core.publish_all(topic, b"alive", key="k")
    assert [_payload(entry) for _, entry, _, _ in client.take()] == [b"alive"]


def test_it_is_tried_again_after_growing_pauses_and_the_reason_is_shown(core: Core) -> None:
    dead = _small_quota(core)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, key="k")
    core.advance(1000)
    containment = core.broker.containment
    pauses: list[int] = []
    failures: list[int] = []
    for _ in range(2000):
        core.advance(100)
        found = [each for each in containment.of(subscription) if each.task == LETTERS]
        assert len(found) == 1
        assert "does not fit the backlog quota of 4000 bytes" in found[0].reason
        assert str(dead.name) in found[0].reason
        if not pauses or pauses[-1] != found[0].pause_ms:
            pauses.append(found[0].pause_ms)
        failures.append(subscription.expiry.dead_letter_failures)
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]
    # Once for each pause, whatever else happens on the topic.
    assert failures[-1] <= 9
    # There is room: it goes with the next try, and nothing is suspended any more.
    core.broker.policies.set_topic(dead.name, Policies())
    core.advance(61_000)
    assert _stored(core, dead) == [LARGE]
    assert subscription.acks.backlog_messages == 0
    assert containment.of(subscription) == []


def test_others_that_expire_meanwhile_do_not_hurry_it(core: Core) -> None:
    dead = _small_quota(core)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, key="k")
    core.advance(1000)
    for _ in range(60):
        core.publish_all(topic, b"", key="k")
        core.advance(1000)
        dead.subscription("audit").acks.clear_backlog(lambda error: None)
    assert subscription.expiry.dead_letter_failures <= 8
    assert subscription.acks.backlog_messages <= 2


def test_a_new_policy_of_its_topic_lets_it_be_tried_at_once(core: Core) -> None:
    _small_quota(core)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, key="k")
    core.advance(100_000)
    core.broker.policies.set_topic(topic.name, Policies(message_ttl_ms=1000))
    for _ in range(4):
        core.advance(100)
    assert subscription.acks.backlog_messages == 0
    assert core.broker.containment.of(subscription) == []


@pytest.mark.parametrize("met", ["before", "after"])
def test_one_that_lives_longer_after_all_is_delivered_once(core: Core, met: str) -> None:
    """Its TTL goes while its letter is refused, whether a consumer came before or after the refusal."""
    _small_quota(core)
    topic, subscription = _dying(core)
    client = Client()
    consumer = core.consumer(subscription, SHARED, client)
    core.publish_all(topic, LARGE, b"a", key="k")
    core.clock.advance_ms(1000)
    if met == "before":
        subscription.flow(consumer, 100)
        core.advance(100)
    else:
        core.advance(100)
        subscription.flow(consumer, 100)
    core.advance(1000)
    assert client.take() == []
    core.broker.policies.set_topic(topic.name, Policies())
    core.advance(2000)
    assert [_payload(entry) for _, entry, _, _ in client.take()] == [LARGE]


def test_what_is_cleared_or_sought_over_is_no_longer_tried(core: Core) -> None:
    _small_quota(core)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, key="k")
    core.advance(2000)
    subscription.acks.clear_backlog(lambda error: None)
    core.commit()
    core.advance(120_000)
    assert core.broker.containment.of(subscription) == []
    before = subscription.expiry.dead_letter_failures
    core.advance(120_000)
    assert subscription.expiry.dead_letter_failures == before
    assert core.broker.containment.idle


def test_expiry_by_hand_takes_the_others_and_says_what_stays(core: Core) -> None:
    dead = _small_quota(core)
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.broker.policies.set_topic(topic.name, Policies(dead_letter_topic=str(DEAD)))
    core.publish_all(topic, b"a", LARGE, b"b", key="k")
    core.advance(5000)
    output: list[str | None] = []
    subscription.expiry.expire_older_than(1000, lambda error: output.append(None if error is None else str(error)))
    core.commit()
    assert _stored(core, dead) == [b"a", b"b"]
    assert len(output) == 1
    assert output[0] is not None
    assert "does not fit the backlog quota" in output[0]
    core.advance(5000)
    # It has no TTL: by itself it does not expire.
    assert core.broker.containment.idle
    client = Client()
    core.consumer(subscription, SHARED, client, permits=10)
    assert [_payload(entry) for _, entry, _, _ in client.take()] == [LARGE]


def test_after_a_restart_it_is_tried_again(core: Core) -> None:
    _small_quota(core)
    topic, _ = _dying(core)
    core.publish_all(topic, LARGE, b"a", key="k")
    core.advance(2000)
    core.restart()
    subscription = core.topic().subscription("s")
    assert subscription.acks.backlog_messages == 1
    core.advance(100)
    assert [each.task for each in core.broker.containment.of(subscription)] == [LETTERS]
    core.broker.policies.set_topic(DEAD, Policies(retention=Retention(-1, -1)))
    core.advance(2000)
    assert subscription.acks.backlog_messages == 0


def _terminate(core: Core, dead: Topic) -> None:
    dead.terminate(lambda error: None)


def _fill(core: Core, dead: Topic) -> None:
    core.broker.policies.set_topic(dead.name, Policies(backlog_quota_size=BacklogQuota(4000, "producer_request_hold")))
    core.publish_all(dead, b"x" * 3800, key="k")


def _age(core: Core, dead: Topic) -> None:
    core.publish_all(dead, b"old", key="k")
    core.broker.policies.set_topic(dead.name, Policies(backlog_quota_age=BacklogQuota(1, "producer_exception")))
    core.advance(100)


@pytest.mark.parametrize("refuses", [_terminate, _fill, _age])
def test_a_topic_that_takes_nothing_keeps_the_letters_and_is_asked_rarely(
    core: Core, refuses: Callable[[Core, Topic], None]
) -> None:
    dead = core.topic(str(DEAD))
    dead.create_subscription("audit")
    refuses(core, dead)
    stored = len(_stored(core, dead))
    topic, subscription = _dying(core)
    core.publish_all(topic, *[b"%03d" % number for number in range(300)], key="k")
    for _ in range(60):
        core.advance(1000)
    assert len(_stored(core, dead)) == stored
    assert subscription.acks.backlog_messages == 300
    # The first one's refusal is enough: the topic refuses all of them.
    assert subscription.expiry.dead_letter_failures <= 8
    (suspension,) = core.broker.containment.of(subscription)
    assert suspension.task == LETTERS
    assert str(DEAD) in suspension.reason
    # Nobody gets them meanwhile, and what is new is delivered.
    client = Client()
    core.consumer(subscription, SHARED, client, permits=1000)
    core.publish_all(topic, b"alive", key="k")
    assert [_payload(entry) for _, entry, _, _ in client.take()] == [b"alive"]


@pytest.mark.parametrize(
    "policies",
    [
        Policies(max_message_size=10),
        Policies(max_producers=1),
        Policies(schema_validation_enforced=True),
        Policies(encryption_required=True),
        Policies(deduplication=True),
        Policies(max_delivery_delay_ms=1),
        Policies(backlog_quota_size=BacklogQuota(4000, "consumer_backlog_eviction")),
        Policies(auto_update_schema=False),
    ],
    ids=lambda policies: next(name for name in policies.__struct_fields__ if getattr(policies, name) is not None),
)
def test_what_a_topic_asks_of_its_clients_does_not_refuse_letters(core: Core, policies: Policies) -> None:
    dead = core.topic(str(DEAD))
    dead.create_subscription("audit")
    core.producer(dead, name="other")
    core.broker.policies.set_topic(dead.name, policies)
    topic, subscription = _dying(core)
    core.publish_all(topic, LARGE, b"a", key="k")
    core.advance(1500)
    assert (subscription.acks.backlog_messages, subscription.expiry.dead_lettered) == (0, 2)
    assert core.broker.containment.idle


def _partitions(core: Core, count: int, *, terminated: int) -> list[Topic]:
    """Create the dead-letter topic with partitions, of which one takes nothing."""
    core.broker.partitioned.create(DEAD, count)
    parts = [core.topic(str(DEAD.with_partition(index))) for index in range(count)]
    for part in parts:
        part.create_subscription("audit")
    _terminate(core, parts[terminated])
    return parts


def test_a_partition_that_takes_nothing_holds_up_no_other_partition(core: Core) -> None:
    parts = _partitions(core, 2, terminated=0)
    topic, subscription = _dying(core)
    keys = [str(number) for number in range(40)]
    taken = [key.encode() for key in keys if java_string_hash(key) % 2]
    assert 10 < len(taken) < 30
    for key in keys:
        core.publish_all(topic, key, key=key)
    core.advance(1500)
    assert _stored(core, parts[1]) == taken
    assert _stored(core, parts[0]) == []
    assert subscription.acks.backlog_messages == 40 - len(taken)
    core.advance(5000)
    assert _stored(core, parts[1]) == taken


def test_letters_without_a_key_go_to_the_partitions_that_take_them(core: Core) -> None:
    parts = _partitions(core, 3, terminated=1)
    topic, subscription = _dying(core)
    core.publish_all(topic, *(str(number) for number in range(20)))
    core.advance(1500)
    # The one that found the partition closed waits for the next attempt.
    assert subscription.acks.backlog_messages == 1
    core.advance(20_000)
    assert subscription.acks.backlog_messages == 0
    assert sorted(int(payload) for part in parts for payload in _stored(core, part)) == list(range(20))


def test_a_letter_that_cannot_be_published_at_all_holds_up_no_other(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = core.topic(str(DEAD))
    dead.create_subscription("audit")
    topic, subscription = _dying(core)
    core.publish_all(topic, b"a", LARGE, b"b", key="k")
    append = GroupCommit.append

    def refuse(writer: GroupCommit, sink: EntrySink, entry: Entry) -> None:
        if len(entry.frame) > 4000 and sink is dead:
            raise ValueError("a field out of its stored range")
        append(writer, sink, entry)

    monkeypatch.setattr(GroupCommit, "append", refuse)
    core.advance(1500)
    assert _stored(core, dead) == [b"a", b"b"]
    assert subscription.acks.backlog_messages == 1
    (suspension,) = core.broker.containment.of(subscription)
    assert (suspension.task, "out of its stored range" in suspension.reason) == (LETTERS, True)
    monkeypatch.undo()
    core.advance(5000)
    assert _stored(core, dead) == [b"a", b"b", LARGE]
    assert core.broker.containment.idle


def test_two_subscriptions_and_two_topics_do_not_hold_up_each_other(core: Core) -> None:
    dead = _small_quota(core)
    first, one = _dying(core, "first")
    other = first.create_subscription("other")
    second, two = _dying(core, "second")
    core.publish_all(first, LARGE, key="k")
    core.advance(2000)
    core.publish_all(second, b"second", key="k")
    core.publish_all(first, b"first", key="k")
    core.advance(1500)
    assert sorted(_stored(core, dead)) == [b"first", b"first", b"second"]
    assert [each.acks.backlog_messages for each in (one, other, two)] == [1, 1, 0]


def test_letters_go_on_at_once_when_a_full_topic_has_room_again(core: Core) -> None:
    dead = core.topic(str(DEAD))
    audit = dead.create_subscription("audit")
    _fill(core, dead)
    first, one = _dying(core, "first")
    second, two = _dying(core, "second")
    for topic in (first, second):
        core.publish_all(topic, *[b"%03d" % number for number in range(8)], key="k")
    core.advance(100_000)
    assert (one.expiry.dead_lettered, two.expiry.dead_lettered) == (0, 0)
    for _ in range(12):
        audit.acks.clear_backlog(lambda error: None)
        core.commit()
        for _ in range(5):
            core.advance(100)
    assert (one.expiry.dead_lettered, two.expiry.dead_lettered) == (8, 8)
    assert core.broker.containment.idle
