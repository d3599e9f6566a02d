"""Partitioned topics and subscriptions by regular expression."""

from __future__ import annotations

import re
import urllib.error
from typing import Any

import pulsar
import pytest

from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    connect,
    create_partitions,
    payloads,
    receive_available,
    receive_many,
    receive_shares,
    rest,
    stats,
)
from tests.support.polling import eventually


def test_every_partition_gets_data(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 4)
    assert client.get_topic_partitions(topic) == [
        f"persistent://public/default/{topic}-partition-{i}" for i in range(4)
    ]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for i in range(40):
        producer.send(b"%d" % i)
    messages = receive_many(consumer, 40)
    assert sorted(payloads(messages)) == sorted(b"%d" % i for i in range(40))
    assert {m.message_id().partition() for m in messages} == {0, 1, 2, 3}
    counts = [stats(broker, f"{topic}-partition-{i}")["msgInCounter"] for i in range(4)]
    assert counts == [10, 10, 10, 10]


def test_key_decides_the_partition_and_order_holds_within_it(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    create_partitions(broker, topic, 3)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = {f"k{key}": [b"%d-%d" % (key, i) for i in range(5)] for key in range(12)}
    ids = [producer.send(p, partition_key=k) for i in range(5) for k, p in ((k, ps[i]) for k, ps in sent.items())]
    messages = receive_many(consumer, 60)
    for key, expected in sent.items():
        of_key = [m for m in messages if m.partition_key() == key]
        assert payloads(of_key) == expected
        assert len({m.message_id().partition() for m in of_key}) == 1
    identity = {(i.partition(), i.ledger_id(), i.entry_id()) for i in ids}
    assert {(i.partition(), i.ledger_id(), i.entry_id()) for i in (m.message_id() for m in messages)} == identity
    assert len(identity) == 60
    # A ledger belongs to one partition.
    assert len({i.ledger_id() for i in ids}) == len({i.partition() for i in ids})


def test_message_published_to_a_partition_by_name_lands_there(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    create_partitions(broker, topic, 2)
    whole = client.subscribe(topic, "whole")
    one = client.subscribe(f"{topic}-partition-1", "one")
    client.create_producer(f"{topic}-partition-1").send(b"here")
    assert one.receive(DEADLINE_MS).data() == b"here"
    message = whole.receive(DEADLINE_MS)
    assert message.data() == b"here"
    assert message.topic_name() == f"persistent://public/default/{topic}-partition-1"
    assert stats(broker, f"{topic}-partition-1")["msgInCounter"] == 1
    assert stats(broker, f"{topic}-partition-0")["msgInCounter"] == 0


def test_partition_beyond_the_last_is_refused(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 2)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"{topic}-partition-2")


def test_partitions_may_grow_and_clients_notice(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 1)
    consumer = client.subscribe(topic, "s")
    rest(broker, "POST", f"persistent/public/default/{topic}/partitions", 3)
    assert rest(broker, "GET", f"persistent/public/default/{topic}/partitions")["partitions"] == 3
    assert len(client.get_topic_partitions(topic)) == 3
    fresh = connect(broker.service_url)
    try:
        producer = fresh.create_producer(topic)
        late = fresh.subscribe(topic, "late")
        for i in range(9):
            producer.send(b"%d" % i)
        assert sorted(payloads(receive_many(late, 9))) == [b"%d" % i for i in range(9)]
    finally:
        fresh.close()
    # Messages on the first partition reach the consumer that knows of one partition only.
    receive_many(consumer, 3)


def test_partitions_never_shrink(broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 3)
    with pytest.raises(urllib.error.HTTPError) as refused:
        rest(broker, "POST", f"persistent/public/default/{topic}/partitions", 2)
    assert refused.value.code in (406, 409, 412, 422)
    refused.value.close()
    assert rest(broker, "GET", f"persistent/public/default/{topic}/partitions")["partitions"] == 3


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared], ids=lambda k: k.name)
def test_partitioned_topic_shared_by_consumers(
    client: pulsar.Client, broker: RunningBroker, topic: str, kind: pulsar.ConsumerType
) -> None:
    create_partitions(broker, topic, 2)
    consumers = [client.subscribe(topic, "s", consumer_type=kind, receiver_queue_size=10) for _ in range(2)]
    producer = client.create_producer(topic)
    for i in range(60):
        producer.send(b"%d" % i, partition_key=f"k{i % 20}")
    shares = receive_shares(60, *consumers)
    assert all(shares)
    assert sorted(p for share in shares for p in payloads(share)) == sorted(b"%d" % i for i in range(60))


@pytest.fixture
def quick_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pattern consumers look for topics every second.

    ``subscribe`` takes the period as an argument but does not hand it to the client's configuration (60 s), so
    it is set where the configuration is made.
    """
    original = pulsar._pulsar.ConsumerConfiguration

    def configuration() -> Any:
        made = original()
        made.pattern_auto_discovery_period(1)
        return made

    monkeypatch.setattr(pulsar._pulsar, "ConsumerConfiguration", configuration)


@pytest.mark.usefixtures("quick_discovery")
def test_regex_subscription_sees_present_and_later_topics(client: pulsar.Client, topic: str) -> None:
    for suffix in ("one", "two"):
        client.create_producer(f"{topic}-{suffix}")
    client.create_producer(f"other-{topic}")
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{topic}-.*"), "s", pattern_auto_discovery_period=1
    )
    for suffix in ("one", "two"):
        client.create_producer(f"{topic}-{suffix}").send(suffix.encode())
    client.create_producer(f"other-{topic}").send(b"not for us")
    assert sorted(payloads(receive_many(consumer, 2))) == [b"one", b"two"]

    # A topic found later is read from its earliest message on, so nothing between its creation and its discovery
    # is lost once the subscription exists; publishing goes on until the discovery.
    late = client.create_producer(f"{topic}-late")

    def late_message() -> pulsar.Message | None:
        late.send(b"late")
        return next(iter(receive_available(consumer, quiet_ms=100)), None)

    message = eventually(late_message, what="a message of the topic that came later")
    assert message is not None
    assert message.topic_name() == f"persistent://public/default/{topic}-late"


def test_regex_subscription_follows_partitioned_topics(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    create_partitions(broker, f"{topic}-p", 2)
    client.create_producer(f"{topic}-plain")
    consumer = client.subscribe(re.compile(f"public/default/{topic}-.*"), "s")
    partitioned = client.create_producer(f"{topic}-p")
    for i in range(4):
        partitioned.send(b"p%d" % i)
    client.create_producer(f"{topic}-plain").send(b"plain")
    assert sorted(payloads(receive_many(consumer, 5))) == [b"p0", b"p1", b"p2", b"p3", b"plain"]


@pytest.mark.usefixtures("quick_discovery")
def test_regex_subscription_forgets_a_deleted_topic(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    for suffix in ("stays", "goes"):
        client.create_producer(f"{topic}-{suffix}").close()
    consumer = client.subscribe(
        re.compile(f"persistent://public/default/{topic}-.*"), "s", pattern_auto_discovery_period=1
    )
    rest(broker, "DELETE", f"persistent/public/default/{topic}-goes?force=true")
    client.create_producer(f"{topic}-stays").send(b"still read")
    assert consumer.receive(DEADLINE_MS).data() == b"still read"


def test_regex_modes(client: pulsar.Client, topic: str) -> None:
    names = {f"persistent://public/default/{topic}-a", f"non-persistent://public/default/{topic}-b"}
    producers = [client.create_producer(name) for name in sorted(names)]
    seen = {}
    for mode, count in (
        (pulsar.RegexSubscriptionMode.PersistentOnly, 1),
        (pulsar.RegexSubscriptionMode.NonPersistentOnly, 1),
        (pulsar.RegexSubscriptionMode.AllTopics, 2),
    ):
        consumer = client.subscribe(
            re.compile(f"public/default/{topic}-.*"), f"s-{mode.name}", regex_subscription_mode=mode
        )
        for producer in producers:
            producer.send(b"x")
        (messages,) = receive_shares(count, consumer)
        seen[mode.name] = {message.topic_name() for message in messages}
        consumer.close()
    assert seen == {
        "PersistentOnly": {f"persistent://public/default/{topic}-a"},
        "NonPersistentOnly": {f"non-persistent://public/default/{topic}-b"},
        "AllTopics": names,
    }
