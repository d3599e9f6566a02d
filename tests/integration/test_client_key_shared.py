"""Key_Shared, and consumers of non-persistent topics, with the official Python client and on the wire."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import mmh3
import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    connect,
    ignore_receipt,
    numbers,
    payloads,
    receive_available,
    receive_many,
    receive_shares,
    rest,
    stats,
)
from tests.support.entries import make_entry
from tests.support.wire_client import Frame, WireClient, payload_of

KEY_SHARED = pulsar.ConsumerType.KeyShared
#: A key of slot 0.
ZERO = "36046"
MAX_INT = 2**31 - 1


def policy(*ranges: tuple[int, int], allow_out_of_order: bool = False) -> pulsar.ConsumerKeySharedPolicy:
    if ranges:
        return pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))
    return pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=allow_out_of_order)


def publish(client: pulsar.Client, topic: str, *sent: tuple[bytes, dict[str, Any]]) -> None:
    producer = client.create_producer(topic)
    for content, options in sent:
        producer.send_async(content, ignore_receipt, **options)
    producer.flush()


def ranges_of(broker: RunningBroker, topic: str) -> dict[str, list[tuple[int, int]]]:
    """Return the ranges of each consumer by its name, as the statistics show them."""
    consumers = stats(broker, topic)["subscriptions"]["s"]["consumers"]
    return {each["consumerName"]: [tuple(part) for part in each["keyHashRangeArrays"]] for each in consumers}


def test_messages_without_a_key_go_to_one_consumer_in_order(client: pulsar.Client, topic: str) -> None:
    def join(name: str) -> pulsar.Consumer:
        return client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=name)

    consumers = [join(name) for name in ("a", "b", "c")]
    publish(client, topic, *[(content, {}) for content in numbers(0, 49)])
    received = receive_shares(50, *consumers)
    assert sorted(map(len, received)) == [0, 0, 50]
    (held,) = filter(None, received)
    owner = consumers[received.index(held)]
    assert payloads(held) == numbers(0, 49)
    consumers += [join(name) for name in ("d", "e", "f")]
    publish(client, topic, *[(content, {}) for content in numbers(50, 99)])
    for message in held:
        owner.acknowledge(message)
    (later,) = filter(None, receive_shares(50, *consumers))
    assert payloads(later) == numbers(50, 99)


def test_a_newcomer_that_allows_it_does_not_wait(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    keys = [f"key-{number}" for number in range(40)]
    first = client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name="first", key_shared_policy=policy())
    publish(client, topic, *[(b"0", {"partition_key": key}) for key in keys])
    receive_many(first, len(keys), acknowledge=False)
    second = client.subscribe(
        topic, "s", consumer_type=KEY_SHARED, consumer_name="second", key_shared_policy=policy(allow_out_of_order=True)
    )
    assert stats(broker, topic)["subscriptions"]["s"]["allowOutOfOrderDelivery"] is True
    publish(client, topic, *[(b"%d" % number, {"partition_key": key}) for number in (1, 2) for key in keys])
    moved, kept = receive_shares(2 * len(keys), second, first)
    assert moved, "its keys wait for what the first consumer holds"
    assert {m.partition_key() for m in moved}.isdisjoint(m.partition_key() for m in kept)
    for share in (moved, kept):
        for key in {m.partition_key() for m in share}:
            assert payloads([m for m in share if m.partition_key() == key]) == [b"1", b"2"]


def test_a_newcomer_that_does_not_allow_it_waits(client: pulsar.Client, topic: str) -> None:
    keys = [f"key-{number}" for number in range(40)]
    first = client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=policy(allow_out_of_order=True))
    publish(client, topic, *[(b"0", {"partition_key": key}) for key in keys])
    held = receive_many(first, len(keys), acknowledge=False)
    second = client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=policy())
    publish(client, topic, *[(b"1", {"partition_key": key}) for key in keys])
    assert receive_available(second) == []
    for message in held:
        first.acknowledge(message)
    assert second.receive(DEADLINE_MS).data() == b"1"


def test_a_key_is_the_same_however_it_is_given(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=name) for name in "abcdef"]
    publish(
        client,
        topic,
        (b"key", {"partition_key": "same"}),
        (b"ordering key", {"partition_key": "other", "ordering_key": "same"}),
    )
    with WireClient(broker.service_url) as wired:
        encoded = b64encode(b"same").decode()
        entry = make_entry(b"base64", partition_key=encoded, partition_key_b64_encoded=True)
        wired.publish(wired.producer(topic), entry)
    (received,) = filter(None, receive_shares(3, *consumers))
    assert payloads(received) == [b"key", b"ordering key", b"base64"]


def test_index_0_goes_to_the_declared_range_that_has_it(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    assert mmh3.hash(ZERO, 0, False) % 65536 == 0
    zero, others = (
        client.subscribe(
            topic, "s", consumer_type=KEY_SHARED, consumer_name=name, key_shared_policy=policy((start, end))
        )
        for name, start, end in (("zero", 0, 0), ("others", 1, 65535))
    )
    publish(client, topic, (b"0", {"partition_key": ZERO}), *[(b"x", {"partition_key": str(n)}) for n in range(20)])
    assert payloads([zero.receive(DEADLINE_MS)]) == [b"0"]
    assert len(receive_many(others, 20)) == 20
    assert ranges_of(broker, topic) == {"zero": [(0, 0)], "others": [(1, 65535)]}


def test_the_statistics_show_the_ring(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    """Each consumer has the points of the guide's formula: the ends of its ranges are among them."""
    names = ["orders-aggregator-pod-2345-consumer", "another"]
    consumers = [client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=names[0])]
    assert ranges_of(broker, topic) == {names[0]: [(0, MAX_INT)]}
    consumers.append(client.subscribe(topic, "s", consumer_type=KEY_SHARED, consumer_name=names[1]))
    shown = ranges_of(broker, topic)
    for name in names:
        points = {mmh3.hash(f"{name}{number}", 0, False) & MAX_INT for number in range(1, 101)}
        assert {end for _, end in shown[name]} <= points | {MAX_INT}
    for point in (1003084738, 373317202, 320276078):
        assert any(start <= point <= end for start, end in shown[names[0]])
    publish(client, topic, *[(b"x", {"partition_key": f"k{number}"}) for number in range(100)])
    for name, received in zip(names, receive_shares(100, *consumers), strict=True):
        assert received
        for message in received:
            position = mmh3.hash(message.partition_key(), 0, False) & MAX_INT
            assert any(start <= position <= end for start, end in shown[name])


# -- hash ranges -----------------------------------------------------------------------------------------------


@pytest.fixture
def ranges_broker(broker_factory: Callable[..., BrokerProcess]) -> BrokerProcess:
    process = broker_factory(environment={"HELIOGRAPH_SUBSCRIPTION_KEY_SHARED_USE_CONSISTENT_HASHING": "false"})
    process.start()
    return process


def test_hash_ranges_are_those_of_the_guides_pictures(ranges_broker: BrokerProcess) -> None:
    with contextlib.closing(connect(ranges_broker.service_url)) as client:
        consumers = {
            name: client.subscribe("t", "s", consumer_type=KEY_SHARED, consumer_name=name)
            for name in ("C1", "C2", "C3", "C4")
        }

        def regions() -> dict[str, list[tuple[int, int]]]:
            """Return the regions as the guide writes them: without their ends."""
            shown = ranges_of(ranges_broker, "t")
            return {name: [(start, end + 1) for start, end in parts] for name, parts in shown.items()}

        assert regions() == {
            "C3": [(0, 16384)],
            "C2": [(16384, 32768)],
            "C4": [(32768, 49152)],
            "C1": [(49152, 65536)],
        }
        publish(client, "t", (b"order", {"partition_key": "Order-3459134"}))
        assert consumers["C3"].receive(DEADLINE_MS).data() == b"order"
        consumers["C4"].close()
        assert regions() == {"C3": [(0, 16384)], "C2": [(16384, 32768)], "C1": [(32768, 65536)]}
        consumers["C1"].close()
        assert regions() == {"C3": [(0, 16384)], "C2": [(16384, 65536)]}


# -- non-persistent topics -----------------------------------------------------------------------------------------


def test_failover_on_non_persistent_partitions_goes_by_name(
    client: pulsar.Client, broker: RunningBroker, topic: str
) -> None:
    rest(broker, "PUT", f"non-persistent/public/default/{topic}/partitions", 3)
    name = f"non-persistent://public/default/{topic}"
    kind = pulsar.ConsumerType.Failover
    consumers = {each: client.subscribe(name, "s", consumer_type=kind, consumer_name=each) for each in "cab"}
    for partition in range(3):
        publish(client, f"{name}-partition-{partition}", (b"%d" % partition, {}))
    assert {each: payloads([consumer.receive(DEADLINE_MS)]) for each, consumer in consumers.items()} == {
        "a": [b"0"],
        "b": [b"1"],
        "c": [b"2"],
    }


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "Key_Shared"])
def test_acknowledgments_on_a_non_persistent_topic_have_receipts(wired: WireClient, topic: str, kind: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    consumer = wired.subscribe(name, subType=wire.CommandSubscribe.SubType.Value(kind))
    wired.flow(consumer, 100)
    producer = wired.producer(name)
    for number in range(3):
        wired.publish(producer, make_entry(b"%d" % number, partition_key="k"), sequence_id=number)
    received: list[Frame] = wired.messages(3)
    assert [payload_of(frame) for frame in received] == numbers(0, 2)
    answer = wired.ack(consumer, received[0].command.message.message_id)
    assert not answer.HasField("error")


@pytest.mark.parametrize(
    ("kind", "both"),
    [
        (pulsar.ConsumerType.Shared, True),
        (pulsar.ConsumerType.KeyShared, True),
        (pulsar.ConsumerType.Failover, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_two_consumers_of_a_non_persistent_topic(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType, both: bool
) -> None:
    name = f"non-persistent://public/default/{topic}"
    consumers = [client.subscribe(name, "s", consumer_type=kind, consumer_name=each) for each in ("first", "second")]
    publish(client, name, *[(content, {"partition_key": content.decode()}) for content in numbers(0, 59)])
    shares = [payloads(share) for share in receive_shares(60, *consumers)]
    assert sorted(shares[0] + shares[1], key=int) == numbers(0, 59)
    assert all(shares) == both
    consumers[0].close()
    publish(client, name, *[(content, {"partition_key": content.decode()}) for content in numbers(60, 79)])
    assert [payloads(share) for share in receive_shares(20, consumers[1])] == [numbers(60, 79)]
