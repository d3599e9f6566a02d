"""Maxima, switches and what entries must be like, on the real core: who is refused, how, and who is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.policies.policies import AutoTopicCreation, Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import (
    BrokerError,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidRequestMetadata,
    NotAllowed,
    PreconditionFailed,
    ProducerBusy,
    TopicNotFound,
)
from heliograph_broker.messaging.base.records import SchemaRecord, TenantRecord
from heliograph_broker.messaging.broker import admission
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.schemas.schema_registry import SchemaRegistry
from heliograph_broker.usecases.apply import apply_resources

from tests.support.core import Client, Core
from tests.support.entries import make_frame
from tests.support.subscription_types import EXCLUSIVE, KEY_SHARED, SHARED

NAME = TopicName.parse("t")


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"max_unacked_per_consumer": 100, "max_unacked_per_subscription": 1000}


def policy(core: Core, **policies: object) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(**policies))  # type: ignore[arg-type]


# -- maxima --------------------------------------------------------------------------------------------------


def test_one_producer_too_many_is_refused_and_one_that_returns_is_not(core: Core) -> None:
    policy(core, max_producers=2)
    topic = core.topic()
    core.producer(topic, name="a")
    admission.check_producer(topic, "b", encrypted=False)
    core.producer(topic, name="b")
    with pytest.raises(ProducerBusy, match=r"^Topic 'persistent://public/default/t' reached max producers limit"):
        admission.check_producer(topic, "c", encrypted=False)
    with pytest.raises(ProducerBusy):
        admission.check_producer(topic, "", encrypted=False)
    admission.check_producer(topic, "a", encrypted=False)


def test_lowering_a_maximum_sends_nobody_away(core: Core) -> None:
    topic, client = core.topic(), Client()
    producers = [core.producer(topic, client, name) for name in "abc"]
    subscription = topic.create_subscription("s")
    for at in range(3):
        core.consumer(subscription, SHARED, client, consumer_id=at, permits=10)
    policy(core, max_producers=1, max_consumers=1, max_consumers_per_subscription=1, max_subscriptions=1)
    core.publish(producers[2])
    core.commit()
    assert not client.closed_producers
    assert not client.closed_consumers
    assert len(client.receipts) == len(client.take()) == 1
    with pytest.raises(ProducerBusy, match="3 are connected, 1 allowed"):
        admission.check_producer(topic, "d", encrypted=False)
    with pytest.raises(ConsumerBusy, match="3 are connected, 1 allowed"):
        admission.check_consumer(topic, "s", SHARED)


def test_consumers_are_counted_by_topic_and_by_subscription(core: Core) -> None:
    policy(core, max_consumers=3, max_consumers_per_subscription=2)
    topic = core.topic()
    one, other = topic.create_subscription("one"), topic.create_subscription("other")
    for _ in range(2):
        admission.check_consumer(topic, "one", SHARED)
        core.consumer(one, SHARED, Client())
    with pytest.raises(ConsumerBusy, match=r"^Subscription reached max consumers limit"):
        admission.check_consumer(topic, "one", SHARED)
    admission.check_consumer(topic, "other", SHARED)
    core.consumer(other, SHARED, Client())
    with pytest.raises(ConsumerBusy, match=r"^Topic reached max consumers limit"):
        admission.check_consumer(topic, "third", SHARED)


def test_subscriptions_are_counted_durable_or_not(core: Core) -> None:
    policy(core, max_subscriptions=2)
    topic = core.topic()
    topic.create_subscription("one")
    topic.create_subscription("reader", durable=False)
    with pytest.raises(
        NotAllowed, match=r"^Exceed the maximum number of subscriptions of the topic: persistent://public/default/t"
    ):
        admission.check_new_subscription(topic)


def test_a_topics_partitions_count_for_its_namespace(core: Core) -> None:
    policy(core, max_topics=4)
    core.broker.partitioned.create(NAME, 3)
    core.broker.topics.create(TopicName.parse("u"))
    reason = r"^Exceed maximum number of topics in namespace\. It has 4 of 4"
    with pytest.raises(NotAllowed, match=reason):
        core.broker.topics.create(TopicName.parse("v"))
    with pytest.raises(NotAllowed, match=reason):
        core.broker.topics.get_or_create(TopicName.parse("v"))
    with pytest.raises(PreconditionFailed, match=reason):
        core.broker.partitioned.create(TopicName.parse("v"), 1)
    with pytest.raises(PreconditionFailed, match=reason):
        core.broker.partitioned.extend(NAME, 4)
    assert core.broker.directory.partitions_of(NAME) == 3
    core.broker.topics.create(TopicName.parse("non-persistent://public/default/v"))
    core.broker.topics.get_or_create(TopicName.parse("u"))


def test_a_tenants_limit_caps_a_maximum(core: Core) -> None:
    policy(core, max_producers=10)
    core.broker.tenants.update("public", TenantRecord(limits=Policies(max_producers=1)))
    topic = core.topic()
    core.producer(topic, name="a")
    with pytest.raises(ProducerBusy):
        admission.check_producer(topic, "b", encrypted=False)


def manifest(spec: str, *topics: str) -> str:
    head = "apiVersion: heliograph.dev/v1alpha1\nkind: "
    parts = [
        f"{head}Tenant\nmetadata: {{name: public}}",
        f"{head}Namespace\nmetadata: {{name: default}}\nspec: {{tenantRef: {{name: public}}, {spec}}}",
        *(
            f"{head}Topic\nmetadata: {{name: {name}}}\nspec: {{namespaceRef: {{name: default}}{rest}}}"
            for name, _, rest in (topic.partition(" ") for topic in topics)
        ),
    ]
    return "\n---\n".join(parts)


def apply(core: Core, text: str) -> None:
    apply_resources(core.broker, parse(text))
    core.commit()


def test_manifests_over_a_maximum_are_refused_with_nothing_changed(core: Core) -> None:
    with pytest.raises(PreconditionFailed, match=r"c: Exceed maximum number of topics in namespace\. .* 4 of 3"):
        apply(core, manifest("maxTopics: 3", "a", "b", "c , partitions: 2"))
    assert not core.broker.directory.topics
    assert core.broker.directory.namespaces["public/default"].policies.max_topics is None
    apply(core, manifest("maxTopics: 3", "a", "c , partitions: 2"))
    apply(core, manifest("maxTopics: 3", "a", "c , partitions: 2"))
    with pytest.raises(PreconditionFailed, match="4 of 3"):
        apply(core, manifest("maxTopics: 3", "c , partitions: 3"))
    apply(core, manifest("maxTopics: 2", "a , maxSubscriptions: 2, subscriptions: [x, y]"))
    with pytest.raises(PreconditionFailed, match=r"spec\.subscriptions: there would be 3, maxSubscriptions is 2"):
        apply(core, manifest("maxTopics: 2", "a , maxSubscriptions: 2, subscriptions: [x, y, z]"))
    apply(core, manifest("maxTopics: 2", "a , maxSubscriptions: 1, subscriptions: [x]"))
    assert set(core.topic("a").subscriptions) == {"x", "y"}


# -- unacknowledged messages ---------------------------------------------------------------------------------


def test_the_maximum_of_unacknowledged_messages_follows_the_policy_at_once(core: Core) -> None:
    topic, client = core.topic(), Client()
    subscription = topic.create_subscription("s")
    core.consumer(subscription, SHARED, client, permits=10_000)
    producer = core.producer(topic)
    core.publish_all(producer, count=200)
    assert len(client.take()) == 100
    policy(core, max_unacked_per_consumer=130)
    assert len(client.take()) == 30
    policy(core, max_unacked_per_consumer=0)
    assert len(client.take()) == 70
    policy(core)
    assert subscription.max_unacked_per_consumer == 100
    policy(core, max_unacked_per_subscription=200)
    core.publish(producer)
    core.commit()
    assert not client.take()
    entries = [AckId(*topic.log.position(at)) for at in range(150)]
    subscription.acks.acknowledge(None, entries, None)
    assert len(client.take()) == 1


def test_a_new_subscription_has_its_topics_maxima(core: Core) -> None:
    core.topic()
    core.broker.policies.set_topic(NAME, Policies(max_unacked_per_consumer=7, max_unacked_per_subscription=9))
    subscription = core.topic().create_subscription("s")
    assert (subscription.max_unacked_per_consumer, subscription.max_unacked_messages) == (7, 9)
    core.restart()
    subscription = core.topic().subscriptions["s"]
    assert (subscription.max_unacked_per_consumer, subscription.max_unacked_messages) == (7, 9)


# -- switches ------------------------------------------------------------------------------------------------


def test_only_the_subscription_types_a_policy_names_may_be_used(core: Core) -> None:
    policy(core, subscription_types=["Shared", "Key_Shared"])
    topic = core.topic()
    admission.check_consumer(topic, "s", SHARED)
    admission.check_consumer(topic, "s", KEY_SHARED)
    with pytest.raises(
        NotAllowed, match=r"^Topic\[\{persistent://public/default/t\}\] doesn't support Exclusive sub type!"
    ):
        admission.check_consumer(topic, "s", EXCLUSIVE)
    policy(core, subscription_types=[])
    admission.check_consumer(topic, "s", EXCLUSIVE)


def test_a_namespaces_word_on_automatic_creation_goes_over_the_brokers(tmp_path: Path) -> None:
    core = Core(tmp_path / "d", allow_auto_topic_creation=False, default_partitions=2)
    with pytest.raises(TopicNotFound):
        core.topic()
    policy(core, auto_topic_creation=AutoTopicCreation(allow=True, partitions=5))
    assert admission.auto_topic_creation(core.broker.config, core.broker.policies, NAME).partitions == 5
    topic = core.topic()
    policy(core, auto_topic_creation=AutoTopicCreation(allow=False), auto_subscription_creation=False)
    with pytest.raises(TopicNotFound):
        core.topic("u")
    assert core.topic() is topic
    assert not admission.may_auto_subscribe(core.broker.config, topic)
    policy(core)
    assert admission.may_auto_subscribe(core.broker.config, topic)
    core.close()


def test_unencrypted_producers_and_messages_are_refused_where_encryption_is_required(core: Core) -> None:
    policy(core, encryption_required=True)
    topic = core.topic()
    with pytest.raises(InvalidRequestMetadata, match=r"^Encryption is required in persistent://public/default/t$"):
        admission.check_producer(topic, "p", encrypted=False)
    admission.check_producer(topic, "p", encrypted=True)
    metadata, _ = make_frame()
    assert topic.entry_rules is not None
    assert str(topic.entry_rules.refusal(metadata, 10)) == "Messages must be encrypted"
    metadata.encryption_keys.add(key="k", value=b"v")
    assert topic.entry_rules.refusal(metadata, 10) is None


# -- entries -------------------------------------------------------------------------------------------------


def refused(core: Core, size: int = 10, **options: object) -> BrokerError | None:
    rules = core.topic().entry_rules
    metadata, _ = make_frame(**options)  # type: ignore[arg-type]
    return None if rules is None else rules.refusal(metadata, size)


def test_a_topic_without_such_policies_asks_nothing_of_entries(core: Core) -> None:
    assert core.topic().entry_rules is None


def test_an_entry_over_the_topics_maximum_size_is_refused_and_a_chunk_is_not(core: Core) -> None:
    policy(core, max_message_size=100)
    assert refused(core, 100) is None
    error = refused(core, 101)
    assert isinstance(error, NotAllowed)
    assert str(error) == "Exceed maximum message size: 101 bytes, 100 are allowed"
    assert refused(core, 101, chunk=(0, 2)) is None


def test_a_delay_over_the_maximum_is_refused_where_delays_count(core: Core) -> None:
    policy(core, max_delivery_delay_ms=5000)
    assert refused(core, publish_time=1000, deliver_at=6000) is None
    error = refused(core, publish_time=1000, deliver_at=6001)
    assert isinstance(error, NotAllowed)
    assert str(error).startswith("Exceeds max allowed delivery delay of 5000 milliseconds")
    policy(core, max_delivery_delay_ms=5000, delayed_delivery=False)
    assert refused(core, publish_time=1000, deliver_at=6001) is None


# -- schemas -------------------------------------------------------------------------------------------------

AVRO = wire.Schema.Avro


def schema(*fields: str) -> SchemaRecord:
    """Return a record schema; a field that ends in ? has a default."""
    parts = [
        {"name": field.rstrip("?"), "type": "int"} | ({"default": 0} if field.endswith("?") else {}) for field in fields
    ]
    return SchemaRecord("s", AVRO, json.dumps({"type": "record", "name": "r", "fields": parts}).encode())


ADDS, REMOVES, BOTH = schema("a", "b"), schema("a"), schema("a", "b?")


@pytest.mark.parametrize(
    ("strategy", "first", "then", "fits"),
    [
        ("FULL", REMOVES, BOTH, True),
        ("FULL", REMOVES, ADDS, False),
        ("FULL", ADDS, REMOVES, False),
        ("BACKWARD", ADDS, REMOVES, True),
        ("BACKWARD", REMOVES, ADDS, False),
        ("FORWARD", REMOVES, ADDS, True),
        ("FORWARD", ADDS, REMOVES, False),
        ("ALWAYS_COMPATIBLE", REMOVES, ADDS, True),
        ("ALWAYS_INCOMPATIBLE", REMOVES, BOTH, False),
        (None, REMOVES, ADDS, False),
    ],
)
def test_the_strategy_says_which_schema_may_follow_which(
    strategy: str | None, first: SchemaRecord, then: SchemaRecord, fits: bool
) -> None:
    registry = SchemaRegistry(lambda key, value: None, lambda key: None)
    assert registry.add("t", first, strategy) == 0
    assert registry.add("t", first, strategy) == 0
    if fits:
        assert registry.add("t", then, strategy) == 1
    else:
        with pytest.raises(IncompatibleSchema, match="is incompatible with version 0"):
            registry.add("t", then, strategy)
        assert len(registry.versions("t")) == 1


def test_a_transitive_strategy_asks_every_version() -> None:
    for strategy, fits in (("FORWARD", True), ("FORWARD_TRANSITIVE", False)):
        registry = SchemaRegistry(lambda key, value: None, lambda key: None)
        registry.add("t", schema("a", "b"), "ALWAYS_COMPATIBLE")
        registry.add("t", schema("a"), "ALWAYS_COMPATIBLE")
        new = schema("a", "c")
        if fits:
            registry.add("t", new, strategy)
        else:
            with pytest.raises(IncompatibleSchema, match="version 0"):
                registry.add("t", new, strategy)


def test_clients_may_not_add_schemas_where_automatic_updates_are_off() -> None:
    registry = SchemaRegistry(lambda key, value: None, lambda key: None)
    with pytest.raises(IncompatibleSchema, match=r"^Schema not found and schema auto updating is disabled\.$"):
        registry.add("t", REMOVES, may_update=False)
    assert list(registry.topics()) == []
    registry.add("t", REMOVES)
    assert registry.add("t", REMOVES, may_update=False) == 0


def test_producers_without_a_schema_are_refused_only_where_there_is_one_and_it_is_enforced(core: Core) -> None:
    topic = core.topic()
    admission.check_schemaless_producer(topic, has_schema=True)
    policy(core, schema_validation_enforced=True)
    admission.check_schemaless_producer(topic, has_schema=False)
    with pytest.raises(IncompatibleSchema, match="without a schema to topics with a schema"):
        admission.check_schemaless_producer(topic, has_schema=True)
