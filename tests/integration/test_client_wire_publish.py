"""PRODUCER and SEND on the wire."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import RunningBroker, rest
from tests.support.entries import make_entry
from tests.support.wire_client import Type, WireClient, WireError, payload_of


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


def open_producer(client: WireClient, topic: str, producer_id: int, **fields: object) -> wire.CommandProducerSuccess:
    answer: wire.CommandProducerSuccess = client.request(
        Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer_id, **fields
    )
    return answer


def test_entry_is_passed_on_byte_for_byte(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic)
    wired.flow(consumer, 10)
    producer = wired.producer(topic)
    entry = make_entry(b"\x00\x01\x02", partition_key="k", compression=wire.ZSTD, uncompressed_size=99)
    message_id = wired.publish(producer, entry)
    frame = wired.expect(Type.MESSAGE)
    assert frame.entry == entry
    assert (frame.body.message_id.ledgerId, frame.body.message_id.entryId) == (
        message_id.ledgerId,
        message_id.entryId,
    )
    assert frame.body.consumer_id == consumer
    assert frame.body.redelivery_count == 0
    assert not frame.body.ack_set


def test_receipts_come_in_order_with_growing_ids(wired: WireClient, topic: str) -> None:
    producer = wired.producer(topic)
    for i in range(100):
        wired.send(Type.SEND, make_entry(b"%d" % i, sequence_id=i), producer_id=producer, sequence_id=i)
    receipts = [wired.expect(Type.SEND_RECEIPT).body for _ in range(100)]
    assert [r.sequence_id for r in receipts] == list(range(100))
    positions = [(r.message_id.ledgerId, r.message_id.entryId) for r in receipts]
    assert positions == sorted(set(positions))


def test_receipt_of_a_batch_names_its_highest_sequence_id(wired: WireClient, topic: str) -> None:
    producer = wired.producer(topic)
    wired.send(
        Type.SEND,
        make_entry([b"a", b"b", b"c"], sequence_id=5),
        producer_id=producer,
        sequence_id=5,
        highest_sequence_id=7,
        num_messages=3,
    )
    receipt = wired.expect(Type.SEND_RECEIPT).body
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (5, 7)


def test_wrong_checksum_is_a_send_error_and_nothing_is_stored(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic)
    wired.flow(consumer, 10)
    producer = wired.producer(topic)
    damaged = bytearray(make_entry(b"payload"))
    damaged[-1] ^= 1
    with pytest.raises(WireError) as refused:
        wired.publish(producer, bytes(damaged), sequence_id=1)
    assert refused.value.code == wire.ChecksumError
    wired.publish(producer, make_entry(b"good"), sequence_id=2)
    assert payload_of(wired.expect(Type.MESSAGE)) == b"good"
    assert wired.fence() == []


def test_entry_without_checksum_is_taken(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic)
    wired.flow(consumer, 1)
    bare = make_entry(b"old client")[6:]
    wired.publish(wired.producer(topic), bare)
    assert payload_of(wired.expect(Type.MESSAGE)) == b"old client"


def test_send_before_producer_ends_the_connection(broker: RunningBroker) -> None:
    with WireClient(broker.service_url) as client:
        client.send(Type.SEND, make_entry(b"x"), producer_id=9, sequence_id=0)
        client.expect_end()


def test_send_above_the_limit_is_refused(broker: RunningBroker, topic: str) -> None:
    # Small enough for a frame, too large for a message.
    with WireClient(broker.service_url) as client:
        producer = client.producer(topic)
        with pytest.raises(WireError) as refused:
            client.publish(producer, make_entry(bytes(5 * 1024 * 1024 + 5000)))
        assert refused.value.code in (wire.NotAllowedError, wire.UnknownError)
        client.publish(producer, make_entry(b"small"), sequence_id=1)


def test_generated_name_and_last_sequence_id(wired: WireClient, topic: str) -> None:
    first = open_producer(wired, topic, 1)
    second = open_producer(wired, topic, 2, user_provided_producer_name=False)
    assert all((first.producer_name, second.producer_name))
    assert first.producer_name != second.producer_name
    assert first.last_sequence_id == -1
    assert first.producer_ready


def test_producer_that_opens_again_is_itself_on_its_connection_only(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as client, WireClient(broker.service_url) as other:
        generated = {"user_provided_producer_name": False}
        name = open_producer(client, topic, 1, epoch=0, **generated).producer_name
        # A client whose request timed out asks again with a newer epoch.
        assert open_producer(client, topic, 1, epoch=1, producer_name=name, **generated).producer_name == name
        client.publish(1, make_entry(b"still works"))
        with pytest.raises(WireError) as busy:
            open_producer(other, topic, 1, epoch=0, producer_name=name, **generated)
        assert busy.value.code == wire.ProducerBusy


def test_close_producer_frees_the_name(wired: WireClient, topic: str) -> None:
    producer = wired.producer(topic, producer_name="n")
    wired.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=producer)
    wired.producer(topic, producer_name="n")


def test_initial_subscription_is_created_with_the_producer(wired: WireClient, topic: str) -> None:
    producer = wired.producer(topic, initial_subscription_name="first")
    wired.publish(producer, make_entry(b"kept"))
    consumer = wired.subscribe(topic, "first")
    wired.flow(consumer, 1)
    assert payload_of(wired.expect(Type.MESSAGE)) == b"kept"


def test_topic_epoch_grows_and_fences_the_former_exclusive(broker: RunningBroker, topic: str) -> None:
    exclusive = {"producer_access_mode": wire.Exclusive}
    with WireClient(broker.service_url) as client, WireClient(broker.service_url) as other:
        first = open_producer(client, topic, 1, **exclusive)
        assert first.HasField("topic_epoch")
        client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=1)
        second = open_producer(other, topic, 1, **exclusive)
        assert second.topic_epoch > first.topic_epoch
        other.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=1)
        with pytest.raises(WireError) as fenced:
            open_producer(client, topic, 2, topic_epoch=first.topic_epoch, **exclusive)
        assert fenced.value.code == wire.ProducerFenced


def test_wait_for_exclusive_is_told_twice(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as holder, WireClient(broker.service_url) as waiting:
        open_producer(holder, topic, 1, producer_access_mode=wire.Exclusive)
        waiting.send(
            Type.PRODUCER,
            topic=topic,
            producer_id=7,
            request_id=70,
            producer_access_mode=wire.WaitForExclusive,
        )
        pending = waiting.answer_to(70, Type.PRODUCER_SUCCESS)
        assert not pending.producer_ready
        assert waiting.fence() == []
        holder.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=1)
        ready = waiting.answer_to(70, Type.PRODUCER_SUCCESS)
        assert ready.producer_ready
        waiting.publish(7, make_entry(b"mine now"))


def test_fencing_closes_the_others(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as old, WireClient(broker.service_url) as new:
        open_producer(old, topic, 3)
        open_producer(new, topic, 1, producer_access_mode=wire.ExclusiveWithFencing)
        assert old.expect(Type.CLOSE_PRODUCER).body.producer_id == 3
        with pytest.raises(WireError) as refused:
            open_producer(old, topic, 4)
        assert refused.value.code in (wire.ProducerBusy, wire.ProducerFenced)


def test_deleting_the_topic_closes_its_producers_and_consumers(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as client:
        producer = client.producer(topic)
        consumer = client.subscribe(topic)
        rest(broker, "DELETE", f"persistent/public/default/{topic}?force=true")
        assert client.expect(Type.CLOSE_PRODUCER).body.producer_id == producer
        assert client.expect(Type.CLOSE_CONSUMER).body.consumer_id == consumer


AVRO = wire.Schema.Avro
V1 = b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
V2 = (
    b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"},'
    b'{"name":"b","type":["null","int"],"default":null}]}'
)
OTHER = b'{"type":"record","name":"R","fields":[{"name":"z","type":"int"}]}'


def avro(definition: bytes) -> wire.Schema:
    return wire.Schema(name="R", type=AVRO, schema_data=definition)


def test_schema_versions(wired: WireClient, topic: str) -> None:
    name = f"persistent://public/default/{topic}"
    missing = wired.request(Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, topic=name)
    assert missing.error_code == wire.TopicNotFound

    def get_or_create(definition: bytes) -> wire.CommandGetOrCreateSchemaResponse:
        answer: wire.CommandGetOrCreateSchemaResponse = wired.request(
            Type.GET_OR_CREATE_SCHEMA, Type.GET_OR_CREATE_SCHEMA_RESPONSE, topic=name, schema=avro(definition)
        )
        return answer

    wired.producer(topic)
    versions = [get_or_create(v).schema_version for v in (V1, V1, V2, V1)]
    assert versions == [
        (0).to_bytes(8, "big"),
        (0).to_bytes(8, "big"),
        (1).to_bytes(8, "big"),
        (0).to_bytes(8, "big"),
    ]
    refused = get_or_create(OTHER)
    assert refused.error_code == wire.IncompatibleSchema
    latest = wired.request(Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, topic=name)
    assert (latest.schema.schema_data, latest.schema.type) == (V2, AVRO)
    assert latest.schema_version == (1).to_bytes(8, "big")
    old = wired.request(Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, topic=name, schema_version=(0).to_bytes(8, "big"))
    assert old.schema.schema_data == V1


def test_types_of_schemas_have_the_names_of_pulsars_admin_api(
    broker: RunningBroker, wired: WireClient, topic: str
) -> None:
    expected = [
        "NONE",
        "STRING",
        "JSON",
        "PROTOBUF",
        "AVRO",
        "BOOLEAN",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FLOAT",
        "DOUBLE",
        "DATE",
        "TIME",
        "TIMESTAMP",
        "KEY_VALUE",
        "INSTANT",
        "LOCAL_DATE",
        "LOCAL_TIME",
        "LOCAL_DATE_TIME",
        "PROTOBUF_NATIVE",
        "EXTERNAL",
    ]
    kinds = [kind for kind in wire.Schema.Type.values() if kind != wire.Schema.AutoConsume]
    names = []
    for number, kind in enumerate(kinds, 1):
        schema = wire.Schema(name="s", type=kind, schema_data=V1)
        open_producer(wired, f"{topic}-{kind}", number, schema=schema)
        names.append(rest(broker, "GET", f"schemas/public/default/{topic}-{kind}/schema")["type"])
    assert names == expected
    for name in expected[1:]:
        document = {"type": name, "schema": V1.decode(), "properties": {}}
        rest(broker, "POST", f"schemas/public/default/{topic}-posted-{name}/schema", document)


def test_producer_with_a_schema_is_told_its_version(wired: WireClient, topic: str) -> None:
    assert open_producer(wired, topic, 1, schema=avro(V1)).schema_version == bytes(8)
    assert open_producer(wired, topic, 2, schema=avro(V2)).schema_version == (1).to_bytes(8, "big")
    with pytest.raises(WireError) as refused:
        open_producer(wired, topic, 3, schema=avro(OTHER))
    assert refused.value.code == wire.IncompatibleSchema
