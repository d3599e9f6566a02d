"""Deduplication as official clients and the wire see it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import RunningBroker, connect, fresh_name, payloads, read_all, receive_many, rest
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient, WireError

_MINUS_ONE = (1 << 64) - 1
KEEP = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


@pytest.fixture
def unique_topic(broker: RunningBroker) -> str:
    """A topic in a namespace that has deduplication switched on and keeps what was acknowledged."""
    namespace = f"public/{fresh_name('dedup')}"
    rest(broker, "PUT", f"namespaces/{namespace}", {})
    rest(broker, "POST", f"namespaces/{namespace}/deduplication", True)
    rest(broker, "POST", f"namespaces/{namespace}/retention", KEEP)
    return f"persistent://{namespace}/t"


@pytest.fixture
def link(broker: RunningBroker) -> Iterator[Callable[[], WireClient]]:
    """Opens connections of one's own."""
    opened: list[WireClient] = []

    def open_one() -> WireClient:
        opened.append(WireClient(broker.service_url))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def open_producer(client: WireClient, topic: str, name: str, producer_id: int = 1) -> int:
    """Open a producer under ``name`` and return the last sequence id the broker says it has of it."""
    answer = client.request(
        Type.PRODUCER,
        Type.PRODUCER_SUCCESS,
        topic=topic,
        producer_id=producer_id,
        producer_name=name,
        user_provided_producer_name=True,
    )
    return int(answer.last_sequence_id)


def send(client: WireClient, name: str, sequence_ids: range, **fields: Any) -> None:
    for sequence_id in sequence_ids:
        entry = make_entry(b"%d" % sequence_id, producer_name=name, sequence_id=sequence_id)
        client.send(Type.SEND, entry, producer_id=1, sequence_id=sequence_id, num_messages=1, **fields)


def receipts(client: WireClient, count: int) -> list[tuple[int, bool]]:
    """Return sequence id and "was a duplicate" of the next receipts."""
    found = []
    for _ in range(count):
        body = client.expect(Type.SEND_RECEIPT).body
        position = (body.message_id.ledgerId, body.message_id.entryId)
        found.append((int(body.sequence_id), position == (_MINUS_ONE, _MINUS_ONE)))
    return found


def test_what_an_official_client_sent_is_not_stored_again_and_the_client_counts_on(
    client: pulsar.Client, unique_topic: str, link: Callable[[], WireClient]
) -> None:
    consumer = client.subscribe(unique_topic, "s")
    producer = client.create_producer(unique_topic, producer_name="me", batching_enabled=False)
    for at in range(5):
        producer.send(b"%d" % at)
    assert producer.last_sequence_id() == 4
    producer.close()
    resending = link()
    assert open_producer(resending, unique_topic, "me") == 4
    send(resending, "me", range(3, 7))
    assert receipts(resending, 4) == [(3, True), (4, True), (5, False), (6, False)]
    resending.close()
    again = client.create_producer(unique_topic, producer_name="me", batching_enabled=False)
    assert again.last_sequence_id() == 6
    again.send(b"7")
    assert again.last_sequence_id() == 7
    assert payloads(receive_many(consumer, 8)) == [b"%d" % at for at in range(8)]


def test_a_client_that_assigns_its_own_ids_is_told_of_success_for_what_was_there(
    client: pulsar.Client, unique_topic: str
) -> None:
    producer = client.create_producer(unique_topic, producer_name="log", batching_enabled=False)
    for sequence_id in (10, 20, 20, 10, 30):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    reader = client.create_reader(unique_topic, pulsar.MessageId.earliest)
    assert read_all(reader) == [b"10", b"20", b"30"]


def test_batches_and_large_messages_in_chunks_are_known_again(
    client: pulsar.Client, unique_topic: str, link: Callable[[], WireClient]
) -> None:
    for _ in range(2):
        producer = client.create_producer(
            unique_topic, producer_name="big", initial_sequence_id=-1, batching_enabled=False, chunking_enabled=True
        )
        producer.send(b"x" * (12 * 1024 * 1024), sequence_id=1)
        producer.close()
    reader = client.create_reader(unique_topic, pulsar.MessageId.earliest)
    assert [len(payload) for payload in read_all(reader)] == [12 * 1024 * 1024]
    assert open_producer(link(), unique_topic, "big") == 1


def test_receipts_of_a_connection_that_takes_over_come_in_order(
    unique_topic: str, link: Callable[[], WireClient]
) -> None:
    first = link()
    open_producer(first, unique_topic, "p")
    send(first, "p", range(500))
    first.close()
    second = link()

    def opened() -> bool:
        # Until the broker has seen the first connection end, the name is taken.
        with contextlib.suppress(WireError):
            open_producer(second, unique_topic, "p")
            return True
        return False

    eventually(opened, what="the name given back")
    send(second, "p", range(700))
    found = receipts(second, 700)
    assert [sequence_id for sequence_id, _ in found] == list(range(700))
    assert all(not duplicate for sequence_id, duplicate in found if sequence_id >= 500)


def test_switching_it_off_and_on_holds_at_once(
    broker: RunningBroker, unique_topic: str, link: Callable[[], WireClient]
) -> None:
    wired = link()
    open_producer(wired, unique_topic, "p")
    send(wired, "p", range(3))
    send(wired, "p", range(3))
    assert [duplicate for _, duplicate in receipts(wired, 6)] == [False] * 3 + [True] * 3
    path = unique_topic.removeprefix("persistent://")
    rest(broker, "POST", f"persistent/{path}/deduplicationEnabled", False)
    send(wired, "p", range(3))
    assert [duplicate for _, duplicate in receipts(wired, 3)] == [False] * 3
    rest(broker, "DELETE", f"persistent/{path}/deduplicationEnabled")
    send(wired, "p", range(3))
    send(wired, "p", range(3))
    assert [duplicate for _, duplicate in receipts(wired, 6)] == [False] * 3 + [True] * 3


def test_an_official_client_that_lives_through_kill_nine_has_everything_stored_once(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    broker = broker_factory()
    broker.start()
    rest(broker, "POST", "namespaces/public/default/deduplication", True)
    rest(broker, "POST", "namespaces/public/default/retention", KEEP)
    client = connect(broker.service_url)
    try:
        producer = client.create_producer("t", producer_name="p", block_if_queue_full=True, send_timeout_millis=0)
        # Until its first receipt this client begins to count again whenever it connects, with whatever it holds.
        producer.send(b"0")
        answers: list[Any] = []
        for at in range(1, 3000):
            producer.send_async(b"%d" % at, lambda result, message_id: answers.append(result))
            if at % 1000 == 500:
                broker.kill9()
                broker.start()
        producer.flush()
        eventually(lambda: len(answers) == 2999, what="an answer to each")
        assert answers == [pulsar.Result.Ok] * 2999
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        assert read_all(reader) == [b"%d" % at for at in range(3000)]
    finally:
        client.close()


def test_a_wrong_name_inside_an_entry_is_refused(unique_topic: str, link: Callable[[], WireClient]) -> None:
    wired = link()
    open_producer(wired, unique_topic, "p")
    send(wired, "another", range(1))
    error = wired.expect(Type.SEND_ERROR).body
    assert error.error == wire.NotAllowedError
    assert "'another', not 'p'" in error.message
