"""The broker restarts under its clients: data and cursors stay, and clients come back by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    BATCH_WAITS_MS,
    backlog,
    connect,
    create_partitions,
    ignore_receipt,
    payloads,
    receive_many,
    receive_or_none,
    rest,
    stats,
)
from tests.support.polling import eventually

#: A client tries again with growing pauses, so on a busy machine it may come back long after the broker.
RECONNECT_MS = 60_000


@pytest.fixture
def own_broker(broker_factory: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker of this test's own, running."""
    process = broker_factory()
    process.start()
    return process


@pytest.fixture
def client(own_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    """A client of that broker."""
    connected = connect(own_broker.service_url, operation_timeout_seconds=30)
    yield connected
    connected.close()


@pytest.fixture(params=[False, True], ids=["in good order", "killed"])
def killed(request: pytest.FixtureRequest) -> bool:
    """The signal that ends the broker."""
    return bool(request.param)


@pytest.fixture
def restart(killed: bool, own_broker: BrokerProcess) -> Callable[[], None]:
    """Ends the broker one way or the other and starts it again on the same ports."""

    def again() -> None:
        if killed:
            own_broker.kill9()
        own_broker.restart()

    return again


def test_clients_reconnect_and_go_on(
    client: pulsar.Client, own_broker: BrokerProcess, topic: str, restart: Callable[[], None], killed: bool
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    before = [producer.send(b"%d" % i) for i in range(10)]
    for message in receive_many(consumer, 10, acknowledge=False):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    eventually(lambda: backlog(own_broker, topic, "s") == 5, what="a backlog of 5")
    restart()
    after = [producer.send(b"%d" % i) for i in range(10, 15)]
    assert sorted(before + after) == before + after
    expected = {0, 2, 4, 6, 8, 10, 11, 12, 13, 14}
    received: list[int] = []
    while not expected <= set(received):
        message = consumer.receive(RECONNECT_MS)
        consumer.acknowledge(message)
        received.append(int(message.data()))
    # This client asks for no ack receipts, so a killed broker may deliver again what was acked just before.
    assert len(received) == len(set(received))
    assert set(received) == expected or (killed and set(received) <= set(range(15)))
    eventually(lambda: backlog(own_broker, topic, "s") == 0, what="an empty backlog")
    assert receive_or_none(consumer, 200) is None


def test_data_subscriptions_and_partial_batches_are_kept(
    client: pulsar.Client, own_broker: BrokerProcess, topic: str, restart: Callable[[], None], killed: bool
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
    client.subscribe(topic, "never-read").close()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS)
    for i in range(10):
        producer.send_async(b"%d" % i, ignore_receipt, properties={"n": str(i)})
    producer.flush()
    for message in receive_many(consumer, 10, acknowledge=False)[:7]:
        consumer.acknowledge(message)
    eventually(lambda: backlog(own_broker, topic, "s") == 3, what="a backlog of 3")
    consumer.close()
    size = stats(own_broker, topic)["subscriptions"]["never-read"]["backlogSize"]
    assert size > 0
    restart()
    shown = stats(own_broker, topic)["subscriptions"]
    assert shown["never-read"]["msgBacklog"] == 10
    # Acks without receipt are written every tenth of a second: the last of them may be lost with a killed broker.
    assert 3 <= shown["s"]["msgBacklog"] <= (10 if killed else 3)
    assert shown["never-read"]["backlogSize"] == size
    fresh = connect(own_broker.service_url)
    try:
        rest_of_batch = fresh.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
        )
        left = shown["s"]["msgBacklog"]
        assert payloads(receive_many(rest_of_batch, left)) == [b"%d" % i for i in range(10 - left, 10)]
        messages = receive_many(fresh.subscribe(topic, "never-read"), 10)
        assert [(m.data(), m.properties()) for m in messages] == [(b"%d" % i, {"n": str(i)}) for i in range(10)]
    finally:
        fresh.close()


def test_partitions_schemas_and_names_are_kept(
    client: pulsar.Client, own_broker: BrokerProcess, topic: str, restart: Callable[[], None]
) -> None:
    create_partitions(own_broker, topic, 3)
    rest(own_broker, "PUT", "namespaces/public/kept")
    schema = pulsar.schema.StringSchema()
    producer = client.create_producer(topic, schema=schema, producer_name="named")
    consumer = client.subscribe(topic, "s", schema=schema)
    for i in range(6):
        producer.send(str(i))
    restart()
    assert len(client.get_topic_partitions(topic)) == 3
    assert rest(own_broker, "GET", f"persistent/public/default/{topic}/partitions")["partitions"] == 3
    assert "public/kept" in rest(own_broker, "GET", "namespaces/public")
    for i in range(6, 9):
        producer.send(str(i))
    values: set[str] = set()
    while len(values) < 9:
        # Messages in the client's queue when the connection ended may come twice.
        values.add(consumer.receive(RECONNECT_MS).value())
    assert values == {str(i) for i in range(9)}
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=pulsar.schema.JsonSchema(Wrong))


class Wrong(pulsar.schema.Record):  # type: ignore[misc]
    a = pulsar.schema.Integer()


def test_reader_goes_on_where_it_was(
    client: pulsar.Client, own_broker: BrokerProcess, topic: str, restart: Callable[[], None]
) -> None:
    client.subscribe(topic, "keeper")
    producer = client.create_producer(topic)
    for i in range(10):
        producer.send(b"%d" % i)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
    read = [reader.read_next(RECONNECT_MS).data() for _ in range(4)]
    restart()
    producer.send(b"10")
    while len(read) < 11:
        read.append(reader.read_next(RECONNECT_MS).data())
    assert read == [b"%d" % i for i in range(11)]
