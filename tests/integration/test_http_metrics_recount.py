"""Every backlog count of /metrics equals what an official client and the wire count, after histories of all kinds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, connect, receive_many, receive_or_none, rest
from tests.support.polling import DEADLINE_S, eventually
from tests.support.rest import fetch
from tests.support.wire_link import WireLink

Labels = tuple[tuple[str, str], ...]
Samples = dict[tuple[str, Labels], float]

_NAMESPACES = ("public/default", "public/other")
_SUBSCRIPTIONS = ("untouched", "individual", "indexes", "cumulative", "skipped", "expired", "emptied", "sought")
#: How long a publish and an answer may take, together.
SLOW_S = 30
#: A history takes some seconds, so that ages differ.
_APART_S = 2


class Backlog(NamedTuple):
    """The unacknowledged messages of a subscription; ``published_ms`` of the oldest message, 0 without."""

    messages: int
    bytes: int
    published_ms: int


Recount = dict[str, dict[str, Backlog]]


def scrape(broker: BrokerProcess) -> Samples:
    """Return every sample by name and labels (sorted, the cluster left out)."""
    text = fetch(f"{broker.http_url}/metrics", accept="application/openmetrics-text").decode()
    return {
        (sample.name, tuple(sorted(pair for pair in sample.labels.items() if pair[0] != "cluster"))): sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def _publish(client: pulsar.Client, topic: str, rng: random.Random, count: int) -> None:
    """Publish in batches and one by one."""
    batched = client.create_producer(topic, batching_max_publish_delay_ms=5, batching_max_messages=20)
    for _ in range(count):
        batched.send_async(rng.randbytes(rng.randrange(300)), lambda result, _: _must_be_ok(result))
    batched.flush()
    batched.close()
    single = client.create_producer(topic, batching_enabled=False)
    for _ in range(count // 4):
        single.send(rng.randbytes(rng.randrange(300)), partition_key=str(rng.randrange(5)))
    single.close()


def _must_be_ok(result: Any) -> None:
    assert result == pulsar.Result.Ok


def _act(broker: BrokerProcess, client: pulsar.Client, topic: str, rng: random.Random) -> None:
    """Do with each subscription what its name says."""

    def consumer(name: str, kind: Any = pulsar.ConsumerType.Shared, **options: Any) -> pulsar.Consumer:
        return client.subscribe(topic, name, consumer_type=kind, receiver_queue_size=30, **options)

    def admin(name: str, operation: str) -> None:
        rest(broker, "POST", f"{topic.replace('://', '/')}/subscription/{name}/{operation}")

    for name, options in (("individual", {}), ("indexes", {"batch_index_ack_enabled": True})):
        one = consumer(name, **options)
        for _ in range(25):
            message = one.receive(DEADLINE_MS)
            if rng.random() < 0.5:
                one.acknowledge(message)
        # Closing sends the acknowledgments that the client has grouped.
        one.close()
    exclusive = consumer("cumulative", pulsar.ConsumerType.Exclusive, batch_index_ack_enabled=True)
    for at in range(rng.randrange(10, 30)):
        message = exclusive.receive(DEADLINE_MS)
        if at % 7 == 3:
            exclusive.acknowledge_cumulative(message)
    exclusive.close()
    admin("skipped", f"skip/{rng.randrange(3, 30)}")
    admin("expired", "expireMessages/1")
    admin("emptied", "skip_all")
    sought = consumer("sought", pulsar.ConsumerType.Exclusive)
    ids = [sought.receive(DEADLINE_MS).message_id() for _ in range(12)]
    sought.seek(ids[rng.randrange(len(ids))])
    sought.close()


def _official(client: pulsar.Client, topic: str, subscription: str, expected: int) -> int:
    """Let the official client receive what is not acknowledged, no more and no less than is expected.

    Returns the oldest publish time, 0 without messages.
    """
    consumer = client.subscribe(
        topic, subscription, consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    messages = receive_many(consumer, expected, acknowledge=False)
    assert receive_or_none(consumer, 300) is None, f"{topic} {subscription}: more than {expected}"
    consumer.close()
    return min((message.publish_timestamp() for message in messages), default=0)


async def _on_the_wire(broker: BrokerProcess, topic: str, subscription: str, messages: int) -> int:
    """Return the bytes of the entries of which ``messages`` are not acknowledged, and check that number."""
    link = await WireLink.connect(broker.service_url)
    found = size = 0
    complete = asyncio.Event()

    def take(command: wire.CommandMessage, entry: bytes) -> None:
        nonlocal found, size
        unacked = sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in command.ack_set)
        found += unacked or parse_entry(entry)[0].num_messages_in_batch
        size += len(entry)
        if found >= messages:
            complete.set()

    link.on_message = take
    consumer = await link.subscribe(topic, subscription, subType=wire.CommandSubscribe.Shared)
    link.flow(consumer, 1_000_000)
    async with asyncio.timeout(DEADLINE_S):
        if messages:
            await complete.wait()
        # Nothing more than that: what the broker still has is sent before it answers.
        await link.ping()
    link.check()
    assert found == messages
    await link.request(wire.BaseCommand.CLOSE_CONSUMER, consumer_id=consumer)
    link.close()
    return size


def _recount(broker: BrokerProcess, client: pulsar.Client, topics: list[str], samples: Samples) -> Recount:
    recount: Recount = {}
    for topic in topics:
        recount[topic] = {}
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        for name in _SUBSCRIPTIONS:
            of_one = (("namespace", namespace), ("subscription", name), ("topic", topic))
            messages = int(samples["pulsar_subscription_back_log", of_one])
            published_ms = _official(client, topic, name, messages)
            size = asyncio.run(_on_the_wire(broker, topic, name, messages))
            recount[topic][name] = Backlog(messages, size, published_ms)
    return recount


def _age_fits(age_s: float, published_ms: int, at_s: float) -> bool:
    """Whether an age that was shown before ``at_s`` is that of a message published then.

    The broker received it a little later, and what a busy machine was shown came a little earlier.
    """
    if not published_ms:
        return age_s == -1
    return -0.5 <= at_s - published_ms / 1000 - age_s <= SLOW_S


def _check_topics(samples: Samples, recount: Recount, at_s: float) -> None:
    for topic, by_name in recount.items():
        namespace = topic.removeprefix("persistent://").rpartition("/")[0]
        labels = (("namespace", namespace), ("topic", topic))
        for name, backlog in by_name.items():
            of_one = (("namespace", namespace), ("subscription", name), ("topic", topic))
            assert samples["pulsar_subscription_back_log", of_one] == backlog.messages, (topic, name)
            assert samples["pulsar_subscription_back_log_no_delayed", of_one] == backlog.messages
            assert samples["heliograph_subscription_backlog_bytes", of_one] == backlog.bytes, (topic, name)
            age = samples["heliograph_subscription_backlog_age_seconds", of_one]
            assert _age_fits(age, backlog.published_ms, at_s), (topic, name, age, backlog, at_s)
        backlogs = by_name.values()
        assert samples["pulsar_msg_backlog", labels] == sum(backlog.messages for backlog in backlogs)
        assert samples["pulsar_storage_backlog_size", labels] == max(backlog.bytes for backlog in backlogs)
        oldest = min(backlog.published_ms for backlog in backlogs if backlog.published_ms)
        assert _age_fits(samples["pulsar_storage_backlog_age_seconds", labels], oldest, at_s)
        ratio = samples["heliograph_backlog_quota_usage_ratio", (labels[0], ("quota_type", "size"), labels[1])]
        assert ratio == pytest.approx(max(backlog.bytes for backlog in backlogs) / 1_000_000, abs=1e-6)
    total = sum(backlog.messages for by_name in recount.values() for backlog in by_name.values())
    assert samples["pulsar_broker_msg_backlog", ()] == total


def _check_namespaces(samples: Samples, recount: Recount, at_s: float) -> None:
    for namespace in _NAMESPACES:
        parts = [by_name for topic, by_name in recount.items() if topic.startswith(f"persistent://{namespace}/")]
        labels = (("namespace", namespace),)
        local = (*labels, ("remote_cluster", "local"))
        assert samples["pulsar_topics_count", labels] == len(parts)
        assert samples["pulsar_msg_backlog", local] == sum(
            backlog.messages for part in parts for backlog in part.values()
        )
        assert samples["pulsar_storage_backlog_size", labels] == sum(
            max(backlog.bytes for backlog in part.values()) for part in parts
        )
        oldest = min(backlog.published_ms for part in parts for backlog in part.values() if backlog.published_ms)
        assert _age_fits(samples["pulsar_storage_backlog_age_seconds", labels], oldest, at_s)
    total = sum(backlog.messages for by_name in recount.values() for backlog in by_name.values())
    assert samples["pulsar_broker_msg_backlog", ()] == total


def test_every_backlog_figure_equals_a_recount(broker_factory: Callable[..., BrokerProcess]) -> None:
    rng = random.Random(4)
    broker = broker_factory("data")
    broker.start()
    client = connect(broker.service_url)
    quota = {"limitSize": 1_000_000, "policy": "producer_exception"}
    rest(broker, "PUT", "namespaces/public/other")
    for namespace in _NAMESPACES:
        rest(broker, "POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage", quota)
    topics = [
        "persistent://public/default/a",
        "persistent://public/other/a",
        "persistent://public/other/parted-partition-0",
    ]
    rest(broker, "PUT", "persistent/public/other/parted/partitions", 1)
    for topic in topics:
        for name in _SUBSCRIPTIONS:
            rest(broker, "PUT", f"{topic.replace('://', '/')}/subscription/{name}")
        _publish(client, topic, rng, 40)
    # A reader has no say in what a topic's backlog is.
    reader = client.create_reader(topics[0], pulsar.MessageId.earliest)
    reader.read_next(DEADLINE_MS)

    of_last = (("namespace", "public/other"), ("topic", topics[-1]))

    def age_s() -> float:
        found = scrape(broker)["pulsar_storage_backlog_age_seconds", of_last]
        return found if found >= _APART_S else 0

    eventually(age_s, what="messages old enough to expire")
    for topic in topics:
        _act(broker, client, topic, rng)
        _publish(client, topic, rng, 12)
        _act(broker, client, topic, rng)
    samples, at_s = scrape(broker), time.time()
    expired = [value for (name, _), value in samples.items() if name == "heliograph_expired_messages_total"]
    assert sum(value > 0 for value in expired) == len(topics)
    recount = _recount(broker, client, topics, samples)
    assert all(recount[topic]["untouched"].messages == 65 for topic in topics)
    _check_topics(samples, recount, at_s)
    # Receiving is not acknowledging: reading everything has changed nothing.
    _check_topics(scrape(broker), recount, time.time())
    reader.close()
    client.close()
    assert broker.terminate() == 0
    whole = broker_factory("data", environment={"HELIOGRAPH_METRICS_LEVEL": "namespace"})
    whole.start()
    _check_namespaces(scrape(whole), recount, time.time())
