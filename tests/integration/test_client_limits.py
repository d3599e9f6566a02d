"""The errors of clients, the wire and HTTP when a policy refuses them; and that the rates hold in real time."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import DEADLINE_MS, RunningBroker, fresh_name, ignore_receipt, receive_many, rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import WireClient, WireError

SHARED = pulsar.ConsumerType.Shared


class Namespace:
    """A namespace of one test's own."""

    def __init__(self, broker: RunningBroker) -> None:
        self._broker = broker
        self.name = f"public/{fresh_name('ns')}"
        rest(broker, "PUT", f"namespaces/{self.name}", {})

    def set(self, policy: str, value: Any) -> None:
        rest(self._broker, "POST", f"namespaces/{self.name}/{policy}", value)

    def topic(self, local: str = "t", *, create: bool = True) -> str:
        if create:
            rest(self._broker, "PUT", f"persistent/{self.name}/{local}")
        return f"persistent://{self.name}/{local}"

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Call the admin API on the namespace's topics and return the status and reason of its refusal."""
        with pytest.raises(urllib.error.HTTPError) as raised:
            rest(self._broker, method, f"persistent/{self.name}/{path}", body)
        return raised.value.code, raised.value.read().decode()


@pytest.fixture
def namespace(broker: RunningBroker) -> Namespace:
    return Namespace(broker)


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


def test_one_producer_too_many_is_busy_and_may_come_when_one_has_left(
    client: pulsar.Client, namespace: Namespace, wired: WireClient
) -> None:
    topic = namespace.topic()
    namespace.set("maxProducersPerTopic", 1)
    first = client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    with pytest.raises(WireError, match="reached max producers limit") as raised:
        wired.producer(topic)
    assert raised.value.code == wire.ProducerBusy
    first.close()
    client.create_producer(topic).send(b"x")


def test_one_consumer_too_many_is_busy(client: pulsar.Client, namespace: Namespace, wired: WireClient) -> None:
    topic = namespace.topic()
    namespace.set("maxConsumersPerTopic", 2)
    namespace.set("maxConsumersPerSubscription", 1)
    client.subscribe(topic, "one", consumer_type=SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "one", consumer_type=SHARED)
    with pytest.raises(WireError, match="Subscription reached max consumers limit") as raised:
        wired.subscribe(topic, "one", subType=wire.CommandSubscribe.Shared)
    assert raised.value.code == wire.ConsumerBusy
    client.subscribe(topic, "two", consumer_type=SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.create_reader(topic, pulsar.MessageId.earliest)
    with pytest.raises(WireError, match="Topic reached max consumers limit"):
        wired.subscribe(topic, "three")


def test_one_subscription_too_many_is_not_allowed_by_clients_or_http(
    client: pulsar.Client, namespace: Namespace
) -> None:
    topic = namespace.topic()
    namespace.set("maxSubscriptionsPerTopic", 1)
    client.subscribe(topic, "one").close()
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "two")
    with pytest.raises(pulsar.NotAllowedError):
        client.create_reader(topic, pulsar.MessageId.earliest)
    status, reason = namespace.refused("PUT", "t/subscription/two")
    assert status == 409
    assert f"Exceed the maximum number of subscriptions of the topic: {topic}" in reason
    client.subscribe(topic, "one")


def test_one_topic_too_many_is_not_allowed_by_clients_or_http(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set("maxTopicsPerNamespace", 2)
    namespace.topic()
    client.create_producer(namespace.topic("auto", create=False))
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(namespace.topic("third", create=False))
    for path, body, expected in (("third", None, 409), ("third/partitions", 2, 412)):
        status, reason = namespace.refused("PUT", path, body)
        assert (status, "Exceed maximum number of topics in namespace." in reason) == (expected, True)


def test_a_client_can_be_kept_from_making_topics_and_subscriptions(
    client: pulsar.Client, namespace: Namespace, wired: WireClient
) -> None:
    topic = namespace.topic()
    namespace.set("autoTopicCreation", {"allowAutoTopicCreation": False})
    namespace.set("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    with pytest.raises(pulsar.TopicNotFound):
        client.create_producer(namespace.topic("unknown", create=False))
    with pytest.raises(WireError, match="Subscription does not exist") as raised:
        wired.subscribe(topic, "unknown")
    assert raised.value.code == wire.SubscriptionNotFound
    with pytest.raises(WireError, match="Could not create the initial subscription") as raised:
        wired.producer(topic, initial_subscription_name="unknown")
    assert raised.value.code == wire.NotAllowedError
    client.create_reader(topic, pulsar.MessageId.earliest)
    client.create_producer(topic).send(b"x")


def test_a_namespace_may_have_its_automatic_topics_partitioned(client: pulsar.Client, namespace: Namespace) -> None:
    namespace.set(
        "autoTopicCreation",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    )
    topic = namespace.topic("auto", create=False)
    client.create_producer(topic)
    assert len(client.get_topic_partitions(topic)) == 3


def test_a_subscription_type_that_is_not_enabled_is_refused(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    namespace.set("subscriptionTypesEnabled", ["Shared"])
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Exclusive)
    client.subscribe(topic, "s", consumer_type=SHARED)


def test_what_is_not_encrypted_is_refused_where_encryption_is_required(namespace: Namespace, wired: WireClient) -> None:
    topic = namespace.topic()
    namespace.set("encryptionRequired", True)
    with pytest.raises(WireError, match=f"Encryption is required in {topic}") as raised:
        wired.producer(topic)
    assert raised.value.code == wire.MetadataError
    producer = wired.producer(topic, encrypted=True)
    with pytest.raises(WireError, match="Messages must be encrypted") as raised:
        wired.publish(producer, make_entry(b"plain"))
    assert raised.value.code == wire.MetadataError
    wired.publish(producer, make_entry(b"secret", encryption_keys=[wire.EncryptionKeys(key="k", value=b"v")]))


def test_entries_too_large_or_delayed_too_long_are_refused_and_the_producer_goes_on(
    namespace: Namespace, wired: WireClient
) -> None:
    topic = namespace.topic()
    namespace.set("maxMessageSize", 100)
    namespace.set("delayedDelivery", {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000})
    producer = wired.producer(topic)
    with pytest.raises(WireError, match="Exceed maximum message size: 101 bytes, 100 are allowed") as raised:
        wired.publish(producer, make_entry(b"x" * 101))
    assert raised.value.code == wire.NotAllowedError
    now = int(time.time() * 1000)
    with pytest.raises(WireError, match="Exceeds max allowed delivery delay of 5000 milliseconds") as raised:
        wired.publish(producer, make_entry(b"x", publish_time=now, deliver_at_time=now + 5001))
    assert raised.value.code == wire.NotAllowedError
    wired.publish(producer, make_entry(b"x" * 100, publish_time=now, deliver_at_time=now + 5000))


def test_one_consumer_that_subscribes_too_often_is_refused(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    namespace.set("subscribeRate", {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 60})
    for _ in range(2):
        client.subscribe(topic, "s", consumer_type=SHARED, consumer_name="me").close()
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "s", consumer_type=SHARED, consumer_name="me")
    client.subscribe(topic, "s", consumer_type=SHARED, consumer_name="another")


class _Old(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer(required=True)


class _New(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer(required=True)
    text = pulsar.schema.String(required=True)


def test_schemas_change_as_far_as_the_namespace_allows(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    old, new = pulsar.schema.AvroSchema(_Old), pulsar.schema.AvroSchema(_New)
    client.create_producer(topic, schema=old)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=new)
    rest(namespace._broker, "PUT", f"namespaces/{namespace.name}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE")
    namespace.set("isAllowAutoUpdateSchema", False)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=new)
    namespace.set("isAllowAutoUpdateSchema", True)
    client.create_producer(topic, schema=new)
    client.create_producer(topic)
    namespace.set("schemaValidationEnforced", True)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic)


def test_a_client_that_publishes_too_fast_is_slowed_down_and_loses_nothing(
    client: pulsar.Client, namespace: Namespace
) -> None:
    topic = namespace.topic()
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": -1})
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    began = time.monotonic()
    for at in range(300):
        producer.send_async(b"%d" % at, ignore_receipt)
    producer.flush()
    took = time.monotonic() - began
    # 100 at once, and 100 more after each second.
    assert took >= 1.95
    assert [bytes(message.data()) for message in receive_many(consumer, 300)] == [b"%d" % at for at in range(300)]


def test_a_lifted_publish_rate_lets_who_waits_go_on_at_once(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1})
    producer = client.create_producer(topic, batching_enabled=False)
    sent: list[Any] = []
    for _ in range(20):
        producer.send_async(b"x", lambda result, message_id: sent.append(result))
    eventually(lambda: sent, what="the first receipt")
    assert len(sent) < 20
    namespace.set("publishRate", {"publishThrottlingRateInMsg": 0, "publishThrottlingRateInByte": 0})
    eventually(lambda: len(sent) == 20, what="all receipts")


def test_a_dispatch_rate_holds_in_real_time(client: pulsar.Client, namespace: Namespace) -> None:
    topic = namespace.topic()
    namespace.set(
        "subscriptionDispatchRate",
        {"dispatchThrottlingRateInMsg": 50, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1},
    )
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic, batching_enabled=False)
    began = time.monotonic()
    for at in range(200):
        producer.send_async(b"%d" % at, ignore_receipt)
    producer.flush()
    times = []
    for _ in range(200):
        consumer.acknowledge(consumer.receive(DEADLINE_MS))
        times.append(time.monotonic() - began)
    assert times[-1] >= 2.7
    # Not before its second: the client's own clock sees what the broker sent a moment later.
    assert times[149] >= 1.7
