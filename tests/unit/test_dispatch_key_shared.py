"""Key_Shared dispatch on the real core: keys and messages without one, newcomers, and what was read from the store."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import mmh3
import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError, ConsumerBusy
from heliograph_broker.messaging.clients.consumer import Consumer, KeyRange, KeySharedPolicy
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Client, Core
from tests.support.subscription_types import KEY_SHARED

KEYS = [f"key-{number}" for number in range(40)]
SPREAD = {"subscription_key_shared_spread_keyless": True}
RANGES = {"subscription_key_shared_use_consistent_hashing": False}
READ_POSITION = {"subscription_key_shared_join_at_read_position": True}
EACH_WAY = pytest.mark.parametrize("core_settings", [{}, RANGES, READ_POSITION], ids=["ring", "ranges", "position"])
OUT_OF_ORDER = KeySharedPolicy(allow_out_of_order=True)


class Group:
    """A Key_Shared subscription and its consumers by name."""

    def __init__(self, core: Core, topic: Topic) -> None:
        self.core = core
        self.topic = topic
        self.subscription: Subscription = topic.subscriptions.get("s") or topic.create_subscription("s")
        self.clients: dict[str, Client] = {}
        self.consumers: dict[str, Consumer] = {}

    def join(self, name: str, policy: KeySharedPolicy = KeySharedPolicy(), *, permits: int = 1000) -> None:  # noqa: B008
        consumer = Consumer(self.subscription, Client(), len(self.clients) + 1, name, key_shared=policy)
        self.subscription.add_consumer(consumer, KEY_SHARED)
        self.clients[name] = consumer.sink  # type: ignore[assignment]
        self.consumers[name] = consumer
        self.subscription.flow(consumer, permits)

    def leave(self, name: str) -> None:
        self.subscription.remove_consumer(self.consumers.pop(name))
        del self.clients[name]

    def take(self) -> dict[str, list[int]]:
        """Return the offsets that each got since the last call."""
        return {name: client.take_offsets() for name, client in self.clients.items()}

    def acknowledge(self, name: str, offsets: list[int]) -> None:
        ids = [AckId(*self.topic.log.position(offset)) for offset in offsets]
        self.subscription.acks.acknowledge(self.consumers[name], ids, None)

    def publish_keys(self) -> None:
        for key in KEYS:
            self.core.publish_all(self.topic, key=key)


@pytest.fixture
def group(core: Core) -> Group:
    return Group(core, core.topic())


@EACH_WAY
def test_messages_without_a_key_go_to_one_consumer_in_order_over_a_join(group: Group) -> None:
    for name in ("a", "b", "c"):
        group.join(name)
    group.core.publish_all(group.topic, count=50)
    first = group.take()
    (owner,) = (name for name, offsets in first.items() if offsets)
    assert first[owner] == list(range(50))
    for name in ("d", "e", "f", "g"):
        group.join(name)
    group.core.publish_all(group.topic, count=50)
    group.acknowledge(owner, first[owner])
    then = group.take()
    (next_owner,) = (name for name, offsets in then.items() if offsets)
    assert then[next_owner] == list(range(50, 100))


def test_messages_without_a_key_are_dispatched_as_the_key_non_key(group: Group) -> None:
    for name in "abcdefgh":
        group.join(name)
    group.core.publish_all(group.topic)
    group.core.publish_all(group.topic, key="NON_KEY")
    group.core.publish_all(group.topic, messages=3)
    assert [0, 1, 2] in group.take().values()


@pytest.mark.parametrize("core_settings", [SPREAD])
def test_messages_without_a_key_can_be_spread(group: Group) -> None:
    for name in ("a", "b", "c"):
        group.join(name)
    producer = group.core.producer(group.topic)
    for number in range(60):
        group.core.publish_all(producer, sequence_id=number)
    shares = group.take()
    assert all(shares.values())
    assert sorted(offset for share in shares.values() for offset in share) == list(range(60))


def test_chunks_without_a_key_stay_in_line_with_other_messages_without_one(group: Group) -> None:
    for name in ("a", "b", "c"):
        group.join(name)
    producer = group.core.producer(group.topic)
    group.core.publish_all(producer)
    for chunk in range(3):
        group.core.publish_all(producer, sequence_id=1, chunk=(chunk, 3))
    group.core.publish_all(producer)
    assert [0, 1, 2, 3, 4] in group.take().values()


@EACH_WAY
@pytest.mark.parametrize(
    "fields",
    [
        {"key": b64encode(b"same").decode(), "partition_key_b64_encoded": True},
        {"key": "other", "ordering_key": b"same"},
        {"ordering_key": b"same", "messages": 3},
    ],
    ids=["base64", "ordering key before key", "batch"],
)
def test_a_key_is_the_same_however_it_is_given(group: Group, fields: dict[str, Any]) -> None:
    for name in "abcdefgh":
        group.join(name)
    group.core.publish_all(group.topic, key="same")
    group.core.publish_all(group.topic, **fields)
    assert [0, 1] in group.take().values()


def test_a_key_that_only_claims_to_be_base64_is_a_key(group: Group) -> None:
    group.join("a")
    group.core.publish_all(group.topic, key="a", partition_key_b64_encoded=True)
    assert group.take() == {"a": [0]}


@pytest.mark.parametrize("core_settings", [{}, RANGES, SPREAD], ids=["ring", "ranges", "spread"])
def test_what_is_read_from_the_store_has_the_consumer_of_its_key(core: Core, group: Group) -> None:
    zero = next(key for key in map(str, range(1_000_000)) if mmh3.hash(key, 0, False) % 65536 == 0)

    def publish(number: int) -> None:
        for key in (*KEYS, zero, None):
            core.publish_all(group.topic, key=key, sequence_id=number)

    publish(1)
    core.restart()
    group = Group(core, core.topic())
    publish(1)
    for name in ("a", "b", "c"):
        group.join(name, permits=0)
    for consumer in group.consumers.values():
        group.subscription.flow(consumer, 1000)
    shares = group.take()
    each = len(KEYS) + 2
    owner = {offset: name for name, offsets in shares.items() for offset in offsets}
    assert [owner[offset] for offset in range(each)] == [owner[offset] for offset in range(each, 2 * each)]
    assert all(shares.values())


@EACH_WAY
def test_index_0_goes_to_the_declared_range_that_has_it(group: Group) -> None:
    zero = next(key for key in map(str, range(1_000_000)) if mmh3.hash(key, 0, False) % 65536 == 0)
    group.join("zero", KeySharedPolicy(sticky=True, ranges=(KeyRange(0, 0),)))
    group.join("rest", KeySharedPolicy(sticky=True, ranges=(KeyRange(1, 65535),)))
    group.core.publish_all(group.topic, key=zero)
    group.publish_keys()
    assert group.take() == {"zero": [0], "rest": list(range(1, len(KEYS) + 1))}


# -- newcomers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("core_settings", [{}, RANGES], ids=["ring", "ranges"])
def test_a_newcomer_that_allows_it_gets_its_keys_at_once(group: Group) -> None:
    group.join("first")
    group.publish_keys()
    held = group.take()["first"]
    group.join("second", OUT_OF_ORDER)
    group.publish_keys()
    shares = group.take()
    assert shares["second"], "it waits for keys that the other one holds"
    assert sorted(shares["first"] + shares["second"]) == list(range(len(KEYS), 2 * len(KEYS)))
    assert shares["first"] == sorted(shares["first"])
    # The keys of one that allows it do not come to one that does not before they are free.
    group.join("third")
    group.publish_keys()
    later = group.take()
    assert later["third"] == []
    group.acknowledge("first", held + shares["first"] + later["first"])
    third = group.take()["third"]
    held_by_second = {offset % len(KEYS) for offset in shares["second"] + later["second"]}
    assert not held_by_second & {offset % len(KEYS) for offset in third}
    group.acknowledge("second", shares["second"] + later["second"])
    third += group.take()["third"]
    assert third
    assert sorted(later["first"] + later["second"] + third) == list(range(2 * len(KEYS), 3 * len(KEYS)))


def test_who_does_not_allow_it_waits_for_those_that_do(group: Group) -> None:
    group.join("first", OUT_OF_ORDER)
    group.publish_keys()
    held = group.take()["first"]
    group.join("second")
    group.publish_keys()
    assert group.take()["second"] == []
    group.acknowledge("first", held)
    assert group.take()["second"]


def test_a_topic_with_chunks_keeps_the_order_for_everybody(group: Group) -> None:
    group.join("first")
    producer = group.core.producer(group.topic)
    for number, key in enumerate(KEYS):
        group.core.publish_all(producer, key=key, chunk=(0, 2), sequence_id=number)
    held = group.take()["first"]
    group.join("second", OUT_OF_ORDER)
    for number, key in enumerate(KEYS):
        group.core.publish_all(producer, key=key, chunk=(1, 2), sequence_id=number)
    rest = group.take()
    assert rest == {"first": list(range(len(KEYS), 2 * len(KEYS))), "second": []}
    group.publish_keys()
    group.take()
    group.acknowledge("first", held + rest["first"])
    assert group.take()["second"]


@pytest.mark.parametrize("core_settings", [READ_POSITION])
def test_a_newcomer_can_wait_for_everything_before_its_read_position(group: Group) -> None:
    group.join("first")
    group.publish_keys()
    held = group.take()["first"]
    group.join("second")
    assert group.subscription.dispatcher is not None
    group.publish_keys()
    group.acknowledge("first", held[1:])
    assert group.take()["second"] == [], "one message before its read position is not acknowledged"
    group.acknowledge("first", held[:1])
    group.acknowledge("first", list(range(len(KEYS), 2 * len(KEYS))))
    group.take()
    group.publish_keys()
    assert group.take()["second"]


@pytest.mark.parametrize("core_settings", [READ_POSITION])
def test_newcomers_that_may_begin_together_have_waiting_keys_assigned_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.join("first", permits=len(KEYS))
    group.publish_keys()
    held = group.take()["first"]
    names = [f"newcomer-{number}" for number in range(20)]
    for name in names:
        group.join(name)
    group.publish_keys()
    assigned: list[int] = []
    assign = KeySharedDispatcher._assign

    def counting(dispatcher: KeySharedDispatcher, key_hash: int) -> None:
        assigned.append(key_hash)
        assign(dispatcher, key_hash)

    monkeypatch.setattr(KeySharedDispatcher, "_assign", counting)
    group.acknowledge("first", held)
    group.subscription.notify()
    assert sum(len(offsets) for offsets in group.take().values()) > 0
    # Once as the acknowledgments release each key, once for all newcomers.
    assert len(assigned) == 2 * len(KEYS)


@pytest.mark.parametrize("core_settings", [READ_POSITION])
def test_a_newcomer_takes_over_what_others_give_back_when_they_leave(group: Group) -> None:
    group.join("first")
    group.publish_keys()
    group.take()
    group.join("second")
    group.leave("first")
    assert group.take() == {"second": list(range(len(KEYS)))}


@pytest.mark.parametrize("core_settings", [READ_POSITION])
def test_a_newcomer_that_leaves_again_changes_nothing(group: Group) -> None:
    group.join("first")
    group.publish_keys()
    group.take()
    group.join("second")
    group.leave("second")
    group.publish_keys()
    assert group.take() == {"first": list(range(len(KEYS), 2 * len(KEYS)))}


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_the_modes_cannot_be_mixed(core: Core, domain: str) -> None:
    topic = core.broker.topics.get_or_create(TopicName.parse(f"{domain}://public/default/t"))
    subscription = topic.create_subscription("s")
    sticky = KeySharedPolicy(sticky=True, ranges=(KeyRange(0, 9),))
    subscription.add_consumer(Consumer(subscription, Client(), 1, "a"), KEY_SHARED)
    with pytest.raises(ConsumerBusy, match="of the mode AUTO_SPLIT; one of the mode STICKY cannot join them"):
        subscription.add_consumer(Consumer(subscription, Client(), 2, "b", key_shared=sticky), KEY_SHARED)
    assert len(subscription.consumers) == 1


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("ranges", [(), ((5, 4),), ((0, 65536),)])
def test_a_refused_consumer_leaves_the_subscription_as_it_was(
    core: Core, domain: str, ranges: tuple[tuple[int, int], ...]
) -> None:
    topic = core.broker.topics.get_or_create(TopicName.parse(f"{domain}://public/default/t"))
    subscription = topic.create_subscription("s")
    policy = KeySharedPolicy(sticky=True, ranges=tuple(KeyRange(*part) for part in ranges))
    with pytest.raises(BrokerError, match=r"must not be empty|is not within"):
        subscription.add_consumer(Consumer(subscription, Client(), 1, "a", key_shared=policy), KEY_SHARED)
    assert (subscription.consumers, subscription.sub_type) == ([], None)
    subscription.add_consumer(Consumer(subscription, Client(), 2, "b"), KEY_SHARED)
