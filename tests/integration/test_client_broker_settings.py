"""Settings that switch something off, and system topics of an older version, as clients and tools meet them."""

from __future__ import annotations

import json
import re
import urllib.error
from collections.abc import Iterator

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, fresh_name, numbers, payloads, publish, publish_batch, receive_many
from tests.support.command_line import CommandLine
from tests.support.core import Core
from tests.support.polling import eventually
from tests.support.rest import apply, call
from tests.support.wire_client import WireClient, WireError

NON_PERSISTENT = "non-persistent://public/default/live"
SYSTEM = "persistent://public/default/__change_events"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker with everything switched off, and a topic whose name earlier versions did not reserve."""
    data = tmp_path_factory.mktemp("settings") / "data"
    core = Core(data)
    core.broker.topics.add(TopicName.parse(SYSTEM), {})
    core.commit()
    core.close()
    settings = {"HELIOGRAPH_BATCH_INDEX_ACK": "false", "HELIOGRAPH_ENABLE_NON_PERSISTENT_TOPICS": "false"}
    with BrokerProcess(data, environment=settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    client = connect(broker.service_url)
    yield client
    client.close()


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.Exclusive], ids=lambda k: k.name)
def test_one_of_four_acknowledged_messages_of_a_batch_leaves_four(
    broker: BrokerProcess, client: pulsar.Client, kind: pulsar.ConsumerType
) -> None:
    topic = fresh_name()
    consumer = client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)
    publish_batch(client, topic, numbers(0, 3))
    publish(client, topic, [b"last"])
    messages = receive_many(consumer, 5, acknowledge=False)
    consumer.acknowledge(messages[0])
    consumer.acknowledge(messages[4])
    eventually(lambda: backlog(broker, topic, "s") == 4, what="a backlog of the whole batch")
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=kind, batch_index_ack_enabled=True)
    assert payloads(receive_many(consumer, 4)) == numbers(0, 3)
    eventually(lambda: backlog(broker, topic, "s") == 0, what="an empty backlog")


def test_non_persistent_topics_are_refused_and_persistent_ones_are_not(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    with WireClient(broker.service_url) as wired:
        for ask in (wired.producer, wired.subscribe):
            with pytest.raises(
                WireError, match=r"non-persistent topic .*: enable_non_persistent_topics is false"
            ) as no:
                ask(NON_PERSISTENT)
            assert no.value.code == wire.NotAllowedError
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(NON_PERSISTENT)
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(NON_PERSISTENT, "s")
    for path, body in (("", None), ("/partitions", 2)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            call(f"{broker.http_url}/admin/v2/non-persistent/public/default/live{path}", "PUT", body)
        assert refused.value.code == 412
        assert "enable_non_persistent_topics" in refused.value.read().decode()
    publish(client, fresh_name(), [b"x"])


def test_system_topics_are_refused_to_client_rest_and_manifest(broker: BrokerProcess) -> None:
    name = "__transaction_buffer_snapshot"
    with WireClient(broker.service_url) as wired:
        for ask in (wired.producer, wired.subscribe):
            with pytest.raises(WireError, match="Cannot create topic in system topic format!") as no:
                ask(name)
            assert no.value.code == wire.NotAllowedError
    for path, body in (("", None), ("/partitions", 2)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            call(f"{broker.http_url}/admin/v2/persistent/public/default/{name}{path}", "PUT", body)
        assert refused.value.code == 400
    manifests = (
        {"kind": "Tenant", "metadata": {"name": "public"}},
        {"kind": "Namespace", "metadata": {"name": "default"}, "spec": {"tenantRef": {"name": "public"}}},
        {"kind": "Topic", "metadata": {"name": "t"}, "spec": {"name": name, "namespaceRef": {"name": "default"}}},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        apply(broker.http_url, *manifests)
    assert "Topic t: Cannot create topic in system topic format!" in refused.value.read().decode()


def test_a_system_topic_that_is_there_is_listed_only_if_asked_for(
    broker: BrokerProcess,
    client: pulsar.Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heliograph = CommandLine(monkeypatch, capsys)
    url = f"{broker.http_url}/admin/v2"
    for path in ("persistent/public/default", "namespaces/public/default/topics"):
        assert SYSTEM not in call(f"{url}/{path}")
        assert SYSTEM in call(f"{url}/{path}?includeSystemTopic=true")
    listed = ["topics", "list", "-o", "json", "--http-url", broker.http_url]
    assert SYSTEM not in heliograph(*listed).out
    assert SYSTEM in [row["name"] for row in json.loads(heliograph(*listed, "--include-system-topic").out)]
    prefix = fresh_name("seen")
    publish(client, prefix, [b"x"])
    publish(client, SYSTEM, [b"hidden"])
    consumer = client.subscribe(
        re.compile(f"public/default/(__.*|{prefix})"), "s", initial_position=pulsar.InitialPosition.Earliest
    )
    assert payloads(receive_many(consumer, 1)) == [b"x"]
    assert "s" not in call(f"{url}/persistent/public/default/__change_events/stats")["subscriptions"]
    consumer.close()
