"""The connection itself: handshake, keep-alive, lookups, and what ends it."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import RunningBroker, create_partitions
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient, WireError, encode, payload_of

MAX_MESSAGE_SIZE = 5 * 1024 * 1024


def assert_healthy(client: WireClient, topic: str) -> None:
    """Publish and receive over a connection that should be unharmed."""
    consumer = client.subscribe(topic, "health")
    client.flow(consumer, 1)
    client.publish(client.producer(topic), make_entry(b"healthy"))
    assert payload_of(client.expect(Type.MESSAGE)) == b"healthy"


def test_connected_announces_version_size_and_features(broker: RunningBroker) -> None:
    with WireClient(broker.service_url, protocol_version=21) as client:
        connected = client.connected
        assert connected is not None
        assert connected.server_version
        assert connected.protocol_version == 21
        assert connected.max_message_size == MAX_MESSAGE_SIZE
        assert connected.feature_flags.supports_topic_watchers


def test_protocol_version_is_not_above_the_clients(broker: RunningBroker) -> None:
    with WireClient(broker.service_url, protocol_version=15) as client:
        assert client.connected is not None
        assert client.connected.protocol_version == 15


def test_ping_is_answered_also_byte_by_byte(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        for byte in encode(Type.PING):
            client.send_raw(bytes([byte]))
        client.expect(Type.PONG)
        client.send_raw(encode(Type.PING) * 50)
        for _ in range(50):
            client.expect(Type.PONG)


def test_a_client_that_ends_sending_gets_the_answers_to_all_it_sent(broker: RunningBroker) -> None:
    # They take more than one turn, so that the end arrives while the last of them are handled.
    requests = 20_000
    data = b"".join(encode(Type.CONSUMER_STATS, request_id=n, consumer_id=1) for n in range(requests))
    for _ in range(5):
        with WireClient(broker.service_url) as client:
            client.send_raw(data)
            client.end_sending()
            end = client.expect_end()
            assert (len(client.inbox), end) == (requests, "end of stream")
            assert [frame.body.request_id for frame in client.inbox] == list(range(requests))


def test_command_before_connect_ends_the_connection(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url, connect=False) as client:
        client.send(Type.LOOKUP, topic=topic, request_id=1)
        client.expect_end()


def test_second_connect_ends_the_connection(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        client.send(Type.CONNECT, client_version="again", protocol_version=21)
        client.expect_end()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_MESSAGE_SIZE + 64 * 1024) + b"x" * 1000,
        struct.pack(">II", 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack(">II", 8, 100) + b"\x00" * 4,
        struct.pack(">II", 4, 0),
        struct.pack(">II", 9, 5) + b"\xff\xff\xff\xff\xff",
        struct.pack(">II", 7, 3) + b"\x08\xe7\x07",  # type 999
    ],
    ids=["oversized", "4 GiB", "command longer than frame", "empty command", "garbage", "unknown command"],
)
def test_malformed_frame_ends_this_connection_only(broker: RunningBroker, topic: str, data: bytes) -> None:
    with WireClient(broker.service_url) as other, WireClient(broker.service_url) as client:
        client.send_raw(data)
        client.expect_end()
        assert_healthy(other, topic)


def test_commands_that_only_a_broker_sends_end_the_connection(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        client.send(Type.CONNECTED, server_version="me", protocol_version=21)
        client.expect_end()


def test_lookup_names_this_broker(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as client:
        answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=f"persistent://public/default/{topic}")
        assert answer.response == wire.CommandLookupTopicResponse.Connect
        assert answer.brokerServiceUrl == broker.service_url
        assert answer.authoritative


@pytest.mark.parametrize("way", ["parameter", "header"])
def test_a_listener_that_is_not_there_is_refused_over_http_too(broker: RunningBroker, topic: str, way: str) -> None:
    url = f"{broker.http_url}/lookup/v2/topic/persistent/public/default/{topic}"
    asked = urllib.request.Request(f"{url}?listenerName=outside") if way == "parameter" else urllib.request.Request(url)
    if way == "header":
        asked.add_header("X-Pulsar-ListenerName", "outside")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == 404
    assert "no listener of the name outside" in json.loads(refused.value.read())["reason"]


def test_lookup_of_an_invalid_name_is_refused_by_name(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic="nonsense://a/b/c")
        assert answer.response == wire.CommandLookupTopicResponse.Failed
        assert answer.error == wire.InvalidTopicName
        assert answer.message
        metadata = client.request(
            Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic="nonsense://a/b/c"
        )
        assert metadata.response == wire.CommandPartitionedTopicMetadataResponse.Failed
        assert metadata.error == wire.InvalidTopicName


def test_partitioned_metadata(broker: RunningBroker, topic: str) -> None:
    create_partitions(broker, topic, 3)
    with WireClient(broker.service_url) as client:
        for name, partitions in ((topic, 3), (f"{topic}-other", 0), (f"{topic}-partition-1", 0)):
            answer = client.request(
                Type.PARTITIONED_METADATA,
                Type.PARTITIONED_METADATA_RESPONSE,
                topic=f"persistent://public/default/{name}",
            )
            assert (answer.response, answer.partitions) == (0, partitions), name


@pytest.mark.parametrize(
    ("kind", "answer", "fields"),
    [
        (Type.UNSUBSCRIBE, Type.SUCCESS, {}),
        (Type.SEEK, Type.SUCCESS, {"message_publish_time": 1}),
        (Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, {}),
    ],
    ids=["unsubscribe", "seek", "last message id"],
)
def test_requests_about_an_unknown_consumer(
    broker: RunningBroker, kind: int, answer: int, fields: dict[str, Any]
) -> None:
    with WireClient(broker.service_url) as client:
        with pytest.raises(WireError) as refused:
            client.request(kind, answer, consumer_id=404, **fields)
        assert refused.value.code == wire.MetadataError
        client.fence()


def test_flow_and_redeliver_for_an_unknown_consumer_are_ignored(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        client.flow(404, 10)
        client.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=404)
        assert client.fence() == []


def test_consumer_stats_of_an_unknown_consumer(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        answer = client.request(Type.CONSUMER_STATS, Type.CONSUMER_STATS_RESPONSE, consumer_id=404)
        assert answer.error_code == wire.ConsumerNotFound


def test_dropped_connection_frees_producer_name_and_exclusive_subscription(broker: RunningBroker, topic: str) -> None:
    first = WireClient(broker.service_url)
    first.producer(topic, producer_name="mine")
    first.subscribe(topic)
    with WireClient(broker.service_url) as second:
        with pytest.raises(WireError) as busy:
            second.producer(topic, producer_name="mine")
        assert busy.value.code == wire.ProducerBusy
        with pytest.raises(WireError) as taken:
            second.subscribe(topic)
        assert taken.value.code == wire.ConsumerBusy
        first.close()

        def free() -> bool:
            try:
                second.producer(topic, producer_name="mine")
                second.subscribe(topic)
            except WireError as error:
                if error.code not in (wire.ProducerBusy, wire.ConsumerBusy):
                    raise
                return False
            return True

        assert eventually(free, what="the dropped connection's names to be free")
