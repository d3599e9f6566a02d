"""Without a retention, clients find messages that were published, or acknowledged, before they came."""

from __future__ import annotations

import json

import pulsar
import pytest

from tests.integration.policies import PolicyNamespace
from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    numbers,
    payloads,
    publish,
    read_all,
    receive_many,
    receive_or_none,
    rest,
)
from tests.support.polling import eventually


@pytest.fixture
def namespace(broker: RunningBroker) -> PolicyNamespace:
    """A namespace of which no level sets a retention."""
    return PolicyNamespace(broker)


def wait_until_trimmed(broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace) -> None:
    """Wait until a topic that keeps nothing has deleted what came after everything else, and once more after that.

    A topic is looked at again only after some time: by then every other was, and what was due of it has gone.
    """
    canary = f"persistent/{namespace.name}/canary"
    rest(broker, "PUT", canary)
    rest(broker, "POST", f"{canary}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    for _ in range(2):
        publish(client, namespace.topic("canary"), numbers(0, 0))
        eventually(lambda: rest(broker, "GET", f"{canary}/stats")["storageSize"] == 0, what="the last message deleted")


def test_a_reader_opened_after_publishing_finds_everything(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    publish(client, namespace.topic(), numbers(0, 9), keys=3)
    wait_until_trimmed(broker, client, namespace)
    assert read_all(client.create_reader(namespace.topic(), pulsar.MessageId.earliest)) == numbers(0, 9)
    assert read_all(client.create_reader(namespace.topic(), pulsar.MessageId.earliest)) == numbers(0, 9)


def test_a_table_view_opened_after_publishing_has_every_key(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    publish(client, namespace.topic(), numbers(0, 29), keys=3)
    wait_until_trimmed(broker, client, namespace)
    view = client.create_table_view(namespace.topic())
    assert {key: view.get(key) for key in ("k0", "k1", "k2")} == {"k0": b"27", "k1": b"28", "k2": b"29"}
    view.close()


def test_a_reader_finds_what_every_subscription_has_acknowledged(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    consumer = client.subscribe(namespace.topic(), "s")
    publish(client, namespace.topic(), numbers(0, 9), keys=3)
    receive_many(consumer, 10)
    path = f"persistent/{namespace.name}/t"

    def acknowledged() -> bool:
        return int(rest(broker, "GET", f"{path}/stats")["keptByLedgerMessages"]) == 10

    eventually(acknowledged, what="everything acknowledged")
    wait_until_trimmed(broker, client, namespace)
    assert read_all(client.create_reader(namespace.topic(), pulsar.MessageId.earliest)) == numbers(0, 9)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared], ids=lambda k: k.name)
def test_seeking_back_after_acknowledging_finds_the_messages(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(namespace.topic(), "s", consumer_type=kind)
    publish(client, namespace.topic(), numbers(0, 9), keys=3)
    receive_many(consumer, 10)
    stats = f"persistent/{namespace.name}/t/stats"
    eventually(
        lambda: rest(broker, "GET", stats)["subscriptions"]["s"]["msgBacklog"] == 0, what="everything acknowledged"
    )
    wait_until_trimmed(broker, client, namespace)
    consumer.seek(pulsar.MessageId.earliest)
    assert payloads(receive_many(consumer, 10)) == numbers(0, 9)


def test_a_subscription_from_the_earliest_message_on_may_come_late(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    rest(broker, "PUT", f"persistent/{namespace.name}/t/partitions", 2)
    publish(client, namespace.topic(), numbers(0, 9), keys=3)
    wait_until_trimmed(broker, client, namespace)
    consumer = client.subscribe(namespace.topic(), "late", initial_position=pulsar.InitialPosition.Earliest)
    assert sorted(payloads(receive_many(consumer, 10))) == numbers(0, 9)


def test_a_dead_letter_nobody_subscribed_to_in_time_is_found(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    topic, dead = namespace.topic(), namespace.topic("dead")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=1, dead_letter_topic=dead),
    )
    client.create_producer(topic).send(b"poison")
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(DEADLINE_MS))

    def dead_and_gone() -> bool:
        # The client publishes to the dead letter topic when the message comes once more.
        assert receive_or_none(consumer, 100) is None
        stats = rest(broker, "GET", f"persistent/{namespace.name}/t/stats")
        return int(stats["subscriptions"]["s"]["msgBacklog"]) == 0

    eventually(dead_and_gone, what="the poison message to leave its subscription")
    wait_until_trimmed(broker, client, namespace)
    late = client.subscribe(dead, "late", initial_position=pulsar.InitialPosition.Earliest)
    assert late.receive(DEADLINE_MS).data() == b"poison"


def test_an_expired_message_of_a_topic_with_a_dead_letter_topic_is_found_there_late(
    client: pulsar.Client, broker: RunningBroker, namespace: PolicyNamespace
) -> None:
    dead = namespace.topic("dead")
    namespace.set(deadLetterTopic=dead)
    client.subscribe(namespace.topic(), "s").close()
    client.create_producer(namespace.topic()).send(b"late", properties={"x-message-ttl": "100"})

    def letters() -> int:
        if dead not in rest(broker, "GET", f"persistent/{namespace.name}"):
            return 0
        return int(rest(broker, "GET", f"persistent/{namespace.name}/dead/stats")["msgInCounter"])

    eventually(lambda: letters() == 1, what="the letter")
    wait_until_trimmed(broker, client, namespace)
    reader = client.create_reader(dead, pulsar.MessageId.earliest)
    assert json.loads(reader.read_next(DEADLINE_MS).properties()["x-death-topics"]) == [namespace.topic()]


def test_a_retention_of_nothing_leaves_nothing_to_come_late_for(
    broker: RunningBroker, client: pulsar.Client, namespace: PolicyNamespace
) -> None:
    namespace.set(retention={"time": "0", "size": "0"})
    publish(client, namespace.topic(), numbers(0, 9), keys=3)
    stats = f"persistent/{namespace.name}/t/stats"
    eventually(lambda: rest(broker, "GET", stats)["storageSize"] == 0, what="everything deleted")
    assert read_all(client.create_reader(namespace.topic(), pulsar.MessageId.earliest)) == []
