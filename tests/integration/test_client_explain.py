"""The reason why nothing is delivered, with the official client in each situation that it can bring about."""

from __future__ import annotations

import json
import urllib.error
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    BATCH_WAITS_MS,
    fresh_name,
    ignore_receipt,
    numbers,
    publish,
    receive_many,
    rest,
    stats,
)
from tests.support.polling import eventually
from tests.support.rest import call

from .test_cli import heliograph

SHARED = pulsar.ConsumerType.Shared
KEY_SHARED = pulsar.ConsumerType.KeyShared


def heliograph_path(broker: BrokerProcess, path: str) -> Any:
    """Return the answer of a path below /heliograph/v1."""
    return call(f"{broker.http_url}/heliograph/v1/{path}")


class Explained:
    """A topic with a subscription, ``s``, and the reasons that the broker gives for them."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        rest(broker, "PUT", f"persistent/public/default/{topic}")
        rest(broker, "PUT", f"persistent/public/default/{topic}/subscription/s")

    def ask(self, **query: str) -> dict[str, Any]:
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        (answer,) = heliograph_path(self.broker, f"persistent/public/default/{self.topic}/explain?{parameters}")
        return answer  # type: ignore[no-any-return]

    def subscription(self) -> dict[str, Any]:
        return self.ask()["subscriptions"]["s"]  # type: ignore[no-any-return]

    def becomes(self, reason: str) -> dict[str, Any]:
        """Wait until the subscription has this reason, and return it."""
        eventually(lambda: self.subscription()["reason"] == reason, what=f"{reason}, not {self.subscription()}")
        found = self.subscription()
        in_stats = stats(self.broker, self.topic)["subscriptions"]["s"]
        assert in_stats["idleReason"] == found["reason"]
        assert in_stats["idleSinceTimestamp"] > 0
        return found

    def set(self, policy: str, value: object) -> None:
        rest(self.broker, "POST", f"persistent/public/default/{self.topic}/{policy}", value)


@pytest.fixture
def explained(broker: BrokerProcess, topic: str) -> Explained:
    return Explained(broker, topic)


def test_no_consumer_then_a_full_receiver_queue_then_all_delivered_and_acknowledged(
    client: pulsar.Client, explained: Explained
) -> None:
    explained.becomes("allAcknowledged")
    publish(client, explained.topic, numbers(1, 10))
    assert explained.becomes("noConsumer")["msgBacklog"] == 10
    consumer = client.subscribe(explained.topic, "s", consumer_type=SHARED, receiver_queue_size=4, consumer_name="slow")
    found = explained.becomes("noPermits")
    assert found["consumer"] == "slow"
    assert found["ends"].startswith("the application receives the messages")
    (of_consumer,) = found["consumers"]
    assert (of_consumer["name"], of_consumer["reason"], of_consumer["availablePermits"]) == ("slow", "noPermits", 0)
    received = receive_many(consumer, 10, acknowledge=False)
    first = received[0].message_id()
    assert explained.becomes("allDelivered")["messageId"] == f"{first.ledger_id()}:{first.entry_id()}"
    for message in received:
        consumer.acknowledge(message)
    explained.becomes("allAcknowledged")


def test_the_limits_of_unacknowledged_messages(client: pulsar.Client, explained: Explained) -> None:
    explained.set("maxUnackedMessagesOnConsumer", 3)
    consumer = client.subscribe(explained.topic, "s", consumer_type=SHARED, consumer_name="c")
    publish(client, explained.topic, numbers(1, 10))
    assert explained.becomes("unackedLimitOfConsumer")["consumer"] == "c"
    rest(explained.broker, "DELETE", f"persistent/public/default/{explained.topic}/maxUnackedMessagesOnConsumer")
    explained.becomes("allDelivered")
    explained.set("maxUnackedMessagesOnSubscription", 3)
    publish(client, explained.topic, numbers(11, 12))
    explained.becomes("unackedLimitOfSubscription")
    for message in receive_many(consumer, 10):
        consumer.acknowledge(message)
    assert len(receive_many(consumer, 2)) == 2


def test_a_key_that_another_consumer_holds(client: pulsar.Client, explained: Explained) -> None:
    holder = client.subscribe(explained.topic, "s", consumer_type=KEY_SHARED, consumer_name="first")
    publish(client, explained.topic, numbers(1, 50), keys=50)
    first = receive_many(holder, 50, acknowledge=False)
    client.subscribe(explained.topic, "s", consumer_type=KEY_SHARED, consumer_name="second")
    publish(client, explained.topic, numbers(51, 100), keys=50)
    found = explained.becomes("keyHeld")
    assert found["consumer"] == "first"
    held = {f"{each.message_id().ledger_id()}:{each.message_id().entry_id()}" for each in first}
    assert found["messageId"] in held
    for message in first:
        holder.acknowledge(message)
    explained.becomes("allDelivered")


def test_a_dispatch_rate_and_a_delay(client: pulsar.Client, explained: Explained) -> None:
    explained.set("dispatchRate", {"dispatchThrottlingRateInMsg": 2, "ratePeriodInSecond": 600})
    consumer = client.subscribe(explained.topic, "s", consumer_type=SHARED)
    publish(client, explained.topic, numbers(1, 5))
    found = explained.becomes("dispatchRate")
    assert found["untilTimestamp"] > found["sinceTimestamp"]
    rest(explained.broker, "DELETE", f"persistent/public/default/{explained.topic}/dispatchRate")
    for message in receive_many(consumer, 5):
        consumer.acknowledge(message)
    explained.becomes("allAcknowledged")
    client.create_producer(explained.topic).send(b"later", deliver_after=timedelta(hours=1))
    found = explained.becomes("delayed")
    assert found["untilTimestamp"] > found["sinceTimestamp"]
    assert found["text"] == "everything that is left is delayed, entries: 1"


def test_a_quota_that_holds_producers(client: pulsar.Client, explained: Explained) -> None:
    assert explained.ask()["publishing"]["reason"] == "none"
    explained.set("backlogQuota", {"limitSize": 200, "policy": "producer_request_hold"})
    producer = client.create_producer(explained.topic)
    for _ in range(5):
        producer.send_async(b"x" * 100, ignore_receipt)
    eventually(lambda: explained.ask()["publishing"]["reason"] == "backlogQuota")
    assert "the slowest subscription acknowledges" in explained.ask()["publishing"]["ends"]


def test_a_standby_consumer_and_names_that_are_not_there(client: pulsar.Client, explained: Explained) -> None:
    failover = pulsar.ConsumerType.Failover
    client.subscribe(explained.topic, "s", consumer_type=failover, consumer_name="a", receiver_queue_size=1)
    client.subscribe(explained.topic, "s", consumer_type=failover, consumer_name="b")
    publish(client, explained.topic, numbers(1, 10))
    explained.becomes("noPermits")
    (found,) = explained.ask(consumer="b")["subscriptions"]["s"]["consumers"]
    assert (found["reason"], found["consumer"]) == ("standby", "a")
    for query, there in (({"subscription": "none"}, "the topic has: s"), ({"consumer": "c"}, "connected are: a, b")):
        with pytest.raises(urllib.error.HTTPError) as raised:
            explained.ask(**query)
        assert raised.value.code == 404
        assert there in raised.value.read().decode()


def test_a_non_persistent_topic_drops_what_finds_no_permit(broker: BrokerProcess, client: pulsar.Client) -> None:
    name = fresh_name()
    topic = f"non-persistent://public/default/{name}"
    client.subscribe(topic, "s", consumer_type=SHARED, consumer_name="c", receiver_queue_size=1)
    producer = client.create_producer(topic)

    def dropped() -> bool:
        producer.send(b"x")
        (answer,) = heliograph_path(broker, f"non-persistent/public/default/{name}/explain")
        found = answer["subscriptions"]["s"]
        return found["reason"] == "noPermits" and "dropped" in found["text"]

    eventually(dropped)


def test_the_command_explains_every_partition_and_names_what_would_be_right(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    rest(broker, "PUT", f"persistent/public/default/{topic}/partitions", 2)
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, consumer_name="c")
    shown = heliograph(broker, "explain", topic, "-s", "s").stdout
    assert f"{topic}-partition-0" in shown
    assert f"{topic}-partition-1" in shown
    assert "subscription s, Shared (0 in the backlog, 0 of these at consumers): allAcknowledged" in shown
    assert "it ends when a producer publishes a message" in shown
    assert "producers: none" in shown
    answer = json.loads(heliograph(broker, "explain", topic, "-o", "json").stdout)
    assert {each["subscriptions"]["s"]["reason"] for each in answer} == {"allAcknowledged"}
    refused = heliograph(broker, "explain", topic, "-s", "other", code=1).stderr
    assert "Subscription other not found; the topic has: s" in refused
    consumer.close()


def test_unacknowledged_messages_are_found_by_key_property_age_and_id(
    client: pulsar.Client, explained: Explained
) -> None:
    path = f"persistent/public/default/{explained.topic}/subscription/s/messages"
    producer = client.create_producer(
        explained.topic,
        compression_type=pulsar.CompressionType.LZ4,
        batching_enabled=True,
        batching_max_publish_delay_ms=BATCH_WAITS_MS,
    )
    for number in range(6):
        properties = {"n": str(number), "odd": "[yes]" if number % 2 else "no"}
        producer.send_async(b"x" * 100, ignore_receipt, properties=properties, partition_key=f"k{number % 3}")
    producer.flush()
    producer.send(b"later", deliver_after=timedelta(hours=1))
    options = {"consumer_type": SHARED, "consumer_name": "c", "batch_index_ack_enabled": True}
    consumer = client.subscribe(explained.topic, "s", **options)
    received = receive_many(consumer, 6, acknowledge=False)
    consumer.acknowledge(received[4])
    consumer.close()
    receive_many(client.subscribe(explained.topic, "s", **options), 5, acknowledge=False)
    by_key = heliograph_path(explained.broker, f"{path}?key=k1")
    ledger, entry = received[1].message_id().ledger_id(), received[1].message_id().entry_id()
    (found,) = by_key["messages"]
    assert (found["id"], found["state"], found["consumer"], found["key"]) == (f"{ledger}:{entry}:1", "sent", "c", "k1")
    assert found["properties"] == {"n": "1", "odd": "[yes]"}
    assert found["sentTimestamp"] >= found["receiveTimestamp"]
    assert (by_key["stopped"], by_key["next"]) == (None, None)
    both = heliograph_path(explained.broker, f"{path}?property=odd=no&property=n=2")
    assert [each["key"] for each in both["messages"]] == ["k2"]
    page = heliograph_path(explained.broker, f"{path}?limit=4")
    assert (page["stopped"], page["next"]) == ("limit", f"{ledger}:{entry}:4")
    rest_of_it = heliograph_path(explained.broker, f"{path}?limit=4&after={page['next']}")
    assert [each["state"] for each in rest_of_it["messages"]] == ["sent", "delayed"]
    assert rest_of_it["next"] is None
    assert heliograph_path(explained.broker, f"{path}?olderThan=1h")["messages"] == []
    assert len(heliograph_path(explained.broker, f"{path}?newerThan=1h&id={ledger}:{entry}")["messages"]) == 5

    shown = heliograph(
        explained.broker, "topics", "find-messages", explained.topic, "-s", "s", "--property", "odd=[yes]", "-n", "2"
    ).stdout
    assert "odd=[yes]" in shown
    assert f"{ledger}:{entry}:3" in shown
    arguments = ("topics", "find-messages", explained.topic, "-s", "s")
    (answer,) = json.loads(heliograph(explained.broker, *arguments, "--key", "k2", "-o", "json").stdout)
    assert [each["properties"]["n"] for each in answer["messages"]] == ["2", "5"]
    assert "no such message" in heliograph(explained.broker, *arguments, "--key", "none").stdout
    for query, right in (
        ("id=x", "id should be ledger:entry"),
        ("olderThan=soon", "olderThan"),
        ("limit=0", "limit should be a number from 1 to 1000"),
        ("property=x", "property should be name=value"),
    ):
        with pytest.raises(urllib.error.HTTPError) as raised:
            heliograph_path(explained.broker, f"{path}?{query}")
        assert raised.value.code == 400
        assert right in raised.value.read().decode()


def test_every_partition_is_searched_until_enough_is_found(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    rest(broker, "PUT", f"persistent/public/default/{topic}/partitions", 2)
    client.subscribe(topic, "s").close()
    for partition in range(2):
        publish(client, f"{topic}-partition-{partition}", numbers(1, 3))
    arguments = ("topics", "find-messages", topic, "-s", "s", "-o", "json")
    answers = json.loads(heliograph(broker, *arguments).stdout)
    assert [len(each["messages"]) for each in answers] == [3, 3]
    answers = json.loads(heliograph(broker, *arguments, "-n", "3").stdout)
    assert [(len(each["messages"]), each["next"]) for each in answers] == [(3, None), (0, "0:0")]
    refused = heliograph(broker, *arguments, "--after", "1:1", code=2).stderr
    assert f"{topic}-partition-0" in refused
