"""Statistics as Java's own classes read them: what pulsar-admin prints again is what was answered, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.support.clients import RunningBroker, fresh_name, receive_many, rest
from tests.support.polling import eventually
from tests.support.pulsar_admin import PulsarAdmin, missing
from tests.support.rest import metrics

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"pulsar-admin is not tested: {missing()}")


#: Fields that Pulsar's brokers, or only this one, answer and its client's classes have no place for.
_DROPPED = {
    "damagedEntries",
    "firstConsumedFlowTimestamp",
    "firstEntry",
    "firstMessagesSentTimestamp",
    "keptByLedgerMessages",
    "keptByLedgerSize",
    "lastPublishTimeStamp",
    "msgExpired",
    "properties",
    "idleReason",
    "idleSinceTimestamp",
    "skippedEntries",
    "skippedMessages",
    "suspended",
    "topicCreationTimeStamp",
}


_MEASURED = re.compile("Rate|Throughput|Age|averageMsgSize")


@pytest.fixture(scope="module")
def admin(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    with PulsarAdmin(tmp_path_factory.mktemp("pulsar-admin"), broker.http_url, broker.service_url) as running:
        yield running


def fields(document: Any, path: str = "") -> Iterator[str]:
    """Yield the path of every field, a list's elements and the named parts under one path."""
    if isinstance(document, dict):
        for name, value in document.items():
            own = f"{path}.{name}"
            yield own
            yield from fields(value, own)
    elif isinstance(document, list):
        for element in document:
            yield from fields(element, f"{path}[]")


def common(document: Any) -> Any:
    """Leave out what Java's client drops, and what differs between two questions: rates, their quotients, and ages."""
    if isinstance(document, dict):
        names = [name for name in document if name not in _DROPPED and not _MEASURED.search(name)]
        return {name: common(document[name]) for name in names}
    if isinstance(document, list):
        return [common(element) for element in document]
    return round(document, 6) if isinstance(document, float) else document


def check(java: Any, ours: Any) -> None:
    """Java prints a field that it misses with its default, and not at all one that it does not know."""
    missed = set(fields(java)) - set(fields(ours))
    assert missed == set()
    unknown = {path.rpartition(".")[2] for path in set(fields(ours)) - set(fields(java))}
    assert unknown <= _DROPPED
    assert common(java) == common(ours)


def _used_topic(broker: RunningBroker, client: pulsar.Client, topic: str) -> list[pulsar.Consumer]:
    """Let a topic have producers, backlogs, holes, and consumers of a Key_Shared and a Failover subscription."""
    rest(broker, "PUT", f"{topic.replace('://', '/')}/subscription/idle")
    consumers = []
    for name, kind in (("keys", pulsar.ConsumerType.KeyShared), ("one", pulsar.ConsumerType.Failover)):
        consumers.append(client.subscribe(topic, name, consumer_type=kind, properties={"app": "demo"}))
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(10):
        producer.send(b"x" * 100, partition_key=str(index))
    consumers[0].acknowledge(receive_many(consumers[0], 10, acknowledge=False)[3])
    receive_many(consumers[1], 4)

    def acknowledged() -> bool:
        text = metrics(broker.http_url)
        found = re.findall(rf'^pulsar_subscription_back_log{{.*"{topic}(?:-partition-.)?",.* (\d+)$', text, re.M)
        return sum(map(int, found)) == 10 + 9 + 6

    eventually(acknowledged, what="the clients' acknowledgments")
    return consumers


def test_java_knows_every_field_of_a_topics_stats(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client
) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    consumers = _used_topic(broker, client, topic)
    path = topic.replace("://", "/")
    ours = rest(broker, "GET", f"{path}/stats?getEarliestTimeInBacklog=true")
    options = "--get-precise-backlog --get-earliest-time-in-backlog"
    java = admin(f"topics stats {topic} {options}").json
    check(java, ours)
    assert ours["earliestMsgPublishTimeInBacklogs"] > 0
    # Its switch is on already, so naming it turns it off.
    lean = admin(f"topics stats {topic} --get-subscription-backlog-size").json
    assert lean["subscriptions"]["idle"]["backlogSize"] == -1
    ours = rest(broker, "GET", f"{path}/internalStats")
    java = admin(f"topics stats-internal {topic}").json
    check(java, ours)
    for consumer in consumers:
        consumer.close()


def test_java_knows_every_field_of_a_partitioned_topics_stats(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client
) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    path = topic.replace("://", "/")
    rest(broker, "PUT", f"{path}/partitions", 2)
    consumers = _used_topic(broker, client, topic)
    ours = rest(broker, "GET", f"{path}/partitioned-stats?perPartition=true")
    java = admin(f"topics partitioned-stats {topic} --per-partition").json
    check(java, ours)
    ours = rest(broker, "GET", f"{path}/partitioned-internalStats")
    java = admin(f"topics partitioned-stats-internal {topic}").json
    check(java, ours)
    for consumer in consumers:
        consumer.close()


def test_java_knows_every_field_of_a_non_persistent_topics_stats(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client
) -> None:
    topic = f"non-persistent://public/default/{fresh_name()}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"x")
    ours = rest(broker, "GET", f"{topic.replace('://', '/')}/stats")
    java = admin(f"topics stats {topic}").json
    check(java, ours)
    consumer.close()
