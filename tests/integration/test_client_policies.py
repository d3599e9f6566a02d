"""Guarantees that a Pulsar in its default settings does not give: the official client against the real process."""

from __future__ import annotations

import time
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.integration.policies import PolicyNamespace
from tests.support.clients import (
    BATCH_WAITS_MS,
    DEADLINE_MS,
    RunningBroker,
    ignore_receipt,
    payloads,
    receive_many,
    rest,
)
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.rest import apply
from tests.support.wire_client import WireClient, WireError

_KIB = b"k" * 1024


def _stats(broker: RunningBroker, namespace: PolicyNamespace, local: str = "t") -> dict[str, Any]:
    answer: dict[str, Any] = rest(broker, "GET", f"persistent/{namespace.name}/{local}/stats")
    return answer


def _backlog(broker: RunningBroker, namespace: PolicyNamespace, subscription: str = "s") -> int:
    return int(_stats(broker, namespace)["subscriptions"][subscription]["msgBacklog"])


def test_a_thousand_messages_in_batches_are_a_backlog_of_a_thousand(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    namespace = PolicyNamespace(broker)
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(
        namespace.topic(),
        batching_enabled=True,
        batching_max_messages=250,
        batching_max_publish_delay_ms=BATCH_WAITS_MS,
        block_if_queue_full=True,
    )
    for number in range(1000):
        producer.send_async(b"%d" % number, ignore_receipt)
    producer.flush()
    eventually(lambda: _backlog(broker, namespace) == 1000, what="a backlog of 1,000 messages")
    internal = rest(broker, "GET", f"persistent/{namespace.name}/t/internalStats")
    assert internal["numberOfEntries"] < 100


def test_messages_with_a_ttl_of_two_seconds_go_after_that_time_and_not_before(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    namespace = PolicyNamespace(broker, messageTTL="2s")
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic())
    began = time.monotonic()
    for _ in range(100):
        producer.send(b"x")
    # Not one of them before its time: the first was published no sooner than `began`.
    while (now := time.monotonic()) < began + 1.8:
        left = _backlog(broker, namespace)
        assert left == 100 or time.monotonic() >= began + 2, f"{100 - left} expired {now - began:.2f} s after the first"
    eventually(lambda: _backlog(broker, namespace) == 0, what="everything expired")
    assert _stats(broker, namespace)["subscriptions"]["s"]["totalMsgExpired"] == 100


def test_under_a_retention_of_one_megabyte_no_more_stays_though_the_ledger_is_open(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    namespace = PolicyNamespace(broker, retention={"time": "1h", "size": "1M"})
    consumer = client.subscribe(namespace.topic(), "s")
    producer = client.create_producer(namespace.topic(), block_if_queue_full=True)
    for _ in range(4096):
        producer.send_async(_KIB, ignore_receipt)
    producer.flush()
    receive_many(consumer, 4096)

    def trimmed() -> bool:
        return int(_stats(broker, namespace)["storageSize"]) <= 1024 * 1024

    eventually(trimmed, what="a megabyte stored")
    internal = rest(broker, "GET", f"persistent/{namespace.name}/t/internalStats")
    assert len(internal["ledgers"]) == 1
    reader = client.create_reader(namespace.topic(), pulsar.MessageId.earliest)
    kept = 0
    while reader.has_message_available():
        reader.read_next(DEADLINE_MS)
        kept += 1
    assert 800 <= kept <= 1024


def test_a_size_quota_of_one_mebibyte_lets_not_a_byte_more_through(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    namespace = PolicyNamespace(
        broker, backlogQuota={"destinationStorage": {"limit": "1Mi", "policy": "producer_exception"}}
    )
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic())
    sent = 0
    try:
        while sent < 3000:
            producer.send(_KIB)
            sent += 1
    except pulsar.ProducerBlockedQuotaExceededException:
        pass
    found = _stats(broker, namespace)
    assert found["backlogSize"] <= 1024 * 1024
    assert 900 <= sent <= 1024
    assert found["subscriptions"]["s"]["msgBacklog"] == sent


def test_a_size_quota_of_one_mebibyte_evicts_down_to_it(broker: RunningBroker, client: pulsar.Client) -> None:
    namespace = PolicyNamespace(
        broker, backlogQuota={"destinationStorage": {"limit": "1Mi", "policy": "consumer_backlog_eviction"}}
    )
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic(), block_if_queue_full=True)
    for number in range(3000):
        producer.send_async(b"%04d" % number + _KIB, ignore_receipt)
    producer.flush()
    eventually(lambda: int(_stats(broker, namespace)["backlogSize"]) <= 1024 * 1024, what="a mebibyte of backlog")
    left = _backlog(broker, namespace)
    assert 900 <= left <= 1024
    consumer = client.subscribe(namespace.topic(), "s")
    numbers = [int(payload[:4]) for payload in payloads(receive_many(consumer, left))]
    assert numbers == list(range(3000 - left, 3000))


def test_a_message_carries_its_own_ttl(broker: RunningBroker, client: pulsar.Client) -> None:
    namespace = PolicyNamespace(broker)
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic(), batching_enabled=False)
    producer.send(b"short", properties={"x-message-ttl": "1000"})
    producer.send(b"forever")
    eventually(lambda: _backlog(broker, namespace) == 1, what="the short one expired")
    consumer = client.subscribe(namespace.topic(), "s")
    assert payloads(receive_many(consumer, 1)) == [b"forever"]


def test_a_ttl_that_is_none_is_refused_by_name(broker: RunningBroker) -> None:
    namespace = PolicyNamespace(broker)
    with WireClient(broker.service_url) as wired:
        producer = wired.producer(namespace.topic())
        with pytest.raises(WireError, match="x-message-ttl is 'soon'") as refused:
            wired.publish(producer, make_entry(b"never", ttl="soon"))
        assert refused.value.code == wire.NotAllowedError
        wired.publish(producer, make_entry(b"kept"), sequence_id=1)
    assert _stats(broker, namespace)["msgInCounter"] == 1


def test_a_ttl_that_is_none_fails_its_message_and_no_other(broker: RunningBroker, client: pulsar.Client) -> None:
    namespace = PolicyNamespace(broker)
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic(), batching_enabled=False)
    results: list[Any] = []
    for ttl in ("60000", "soon", "60000", "60000", "never", "60000"):
        producer.send_async(b"x", lambda result, _: results.append(result), properties={"x-message-ttl": ttl})
    eventually(lambda: len(results) == 6, what="an answer to each")
    assert [result == pulsar.Result.Ok for result in results] == [True, False, True, True, False, True]
    # This client has an exception of its own for one bad message only, that of a wrong checksum; the reason is logged.
    with pytest.raises(pulsar.ChecksumError):
        producer.send(b"never", properties={"x-message-ttl": "soon"})
    assert _backlog(broker, namespace) == 4


def test_an_expired_message_arrives_in_its_dead_letter_topic(broker: RunningBroker, client: pulsar.Client) -> None:
    namespace = PolicyNamespace(broker)
    dead = namespace.topic("dead")
    namespace.set(deadLetterTopic=dead, messageTTL="1h")
    watcher = client.subscribe(dead, "watch")
    client.subscribe(namespace.topic(), "s").close()
    producer = client.create_producer(namespace.topic(), batching_enabled=False)
    producer.send(b"late", properties={"x-message-ttl": "500", "colour": "red"}, partition_key="k")
    letter = watcher.receive(DEADLINE_MS)
    assert (letter.data(), letter.partition_key(), letter.properties()["colour"]) == (b"late", "k", "red")
    assert letter.properties()["x-death-reason"] == "expired"
    assert letter.properties()["x-death-topic"] == namespace.topic()
    assert letter.properties()["x-death-subscription"] == "s"
    assert letter.properties()["x-original-message-ttl"] == "500"
    assert "x-message-ttl" not in letter.properties()


def test_subscriptions_of_one_topic_expire_and_dead_letter_by_themselves(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    namespace = PolicyNamespace(broker)
    dead = namespace.topic("dead")
    topic = namespace.topic()
    watcher = client.subscribe(dead, "watch")
    spec = {
        "namespaceRef": {"name": namespace.name},
        "subscriptions": ["fast", "slow"],
        "subscriptionPolicies": [{"name": "fast", "messageTTL": "500ms", "deadLetterTopic": dead}],
    }
    apply(broker.http_url, {"kind": "Topic", "metadata": {"name": "t"}, "spec": spec})
    client.create_producer(topic).send(b"x")
    letter = watcher.receive(DEADLINE_MS)
    assert (letter.data(), letter.properties()["x-death-subscription"]) == (b"x", "fast")
    # For the other one it is there as ever.
    assert client.subscribe(topic, "slow").receive(DEADLINE_MS).data() == b"x"
