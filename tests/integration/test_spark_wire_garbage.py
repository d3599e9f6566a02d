"""The pipeline's own client and peers that answer what no broker would: it ends with a reason, or goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, EntryReader
from heliograph_spark.wire.failures import LinkLost

from tests.support.entries import make_entry
from tests.support.entry_reading import connection_to, contents, read_count
from tests.support.fake_broker import CONNECTED, FakeBroker
from tests.support.polling import eventually
from tests.support.wire_client import Frame, encode

from .spark_wire_peer import looked_up

Type = wire.BaseCommand
TOPIC = "persistent://public/default/t"
NO_REQUEST = (1 << 64) - 1


def partitions_of(frame: Frame, partitions: int) -> bytes:
    success = wire.CommandPartitionedTopicMetadataResponse.Success
    return encode(
        Type.PARTITIONED_METADATA_RESPONSE,
        request_id=frame.body.request_id,
        partitions=partitions,
        response=success,
    )


class Serving:
    """Has one topic, of which the first FLOW of a consumer brings what ``delivers`` returns for its id."""

    def __init__(self, delivers: Callable[[int], bytes]) -> None:
        self.url = ""
        self.permits: list[int] = []
        self._delivers = delivers
        self._served: set[int] = set()

    def __call__(self, frame: Frame) -> bytes | None:
        body: Any = frame.body
        kind = frame.command.type
        if kind == Type.CONNECT:
            return CONNECTED
        if kind == Type.LOOKUP:
            return looked_up(frame, self.url)
        if kind == Type.SUBSCRIBE:
            return encode(Type.SUCCESS, request_id=body.request_id)
        if kind == Type.FLOW:
            self.permits.append(body.messagePermits)
            if body.consumer_id not in self._served:
                self._served.add(body.consumer_id)
                return self._delivers(body.consumer_id)
        return b""


def delivered(consumer_id: int, entry_id: int, entry: bytes, ack_set: tuple[int, ...] = ()) -> bytes:
    place = wire.MessageIdData(ledgerId=5, entryId=entry_id)
    return encode(Type.MESSAGE, entry, consumer_id=consumer_id, message_id=place, ack_set=ack_set)


def test_the_answer_to_another_question_ends_the_connection() -> None:
    def answer(frame: Frame) -> bytes | None:
        if frame.command.type == Type.CONNECT:
            return CONNECTED
        if len(broker.frames) == 1:
            return encode(Type.SUCCESS, request_id=frame.body.request_id)
        return partitions_of(frame, 3)

    with FakeBroker(answer) as broker:
        brokers = Brokers(connection_to(broker.url))
        # A new connection answers the question as it should.
        assert brokers.partitions(TOPIC) == 3
        assert len(broker.frames) == 2
        brokers.close()


def test_a_peer_that_never_answers_what_it_is_asked_is_named() -> None:
    def answer(frame: Frame) -> bytes | None:
        if frame.command.type == Type.CONNECT:
            return CONNECTED
        return encode(Type.SUCCESS, request_id=frame.body.request_id)

    with FakeBroker(answer) as broker:
        brokers = Brokers(connection_to(broker.url, operation_timeout_seconds=1))
        with pytest.raises(LinkLost, match=rf"partitions of {TOPIC}: .*:{broker.port}: this is no answer of Pulsar's"):
            brokers.partitions(TOPIC)
        brokers.close()


@pytest.mark.parametrize("url", ["http://localhost:8080", "pulsar://", "pulsar://a:b", "\0"])
def test_an_address_that_is_none_is_named_with_the_broker_that_gave_it(url: str) -> None:
    serving = Serving(lambda _: b"")
    serving.url = url
    with FakeBroker(serving) as broker:
        brokers = Brokers(connection_to(broker.url))
        with pytest.raises(PulsarSourceError, match=rf"looking up {TOPIC}: .*:{broker.port}: it names a broker by '"):
            brokers.owner(TOPIC)
        brokers.close()


def test_a_topic_whose_next_broker_is_said_to_be_at_no_address_is_looked_up() -> None:
    serving = Serving(lambda consumer_id: delivered(consumer_id, consumer_id, make_entry(b"%d" % consumer_id)))
    with FakeBroker(serving) as broker:
        serving.url = broker.url
        brokers = Brokers(connection_to(broker.url))
        with EntryReader(brokers, TOPIC, EARLIEST) as reader:
            assert contents(read_count(reader, 1)) == [b"1"]
            broker.send(
                encode(Type.CLOSE_CONSUMER, consumer_id=1, request_id=NO_REQUEST, assignedBrokerServiceUrl="nowhere")
            )
            assert contents(read_count(reader, 1)) == [b"2"]
        brokers.close()


def test_a_set_of_more_acknowledgments_than_a_batch_can_have_names_the_entry() -> None:
    serving = Serving(lambda consumer_id: delivered(consumer_id, 7, make_entry(b"v"), (-1,) * ((1 << 14) + 1)))
    with FakeBroker(serving) as broker:
        serving.url = broker.url
        brokers = Brokers(connection_to(broker.url))
        with pytest.raises(PulsarSourceError, match=rf"reading {TOPIC}: the entry 5:7 is damaged: an ack_set of 16385"):
            EntryReader(brokers, TOPIC, EARLIEST).read(30)
        brokers.close()


def test_batches_that_say_they_have_billions_of_messages_are_paid_for() -> None:
    """A broker counts permits by what the producer says of its batch."""
    says, entries = (1 << 31) - 1, 3
    entry = make_entry(b"v", num_messages_in_batch=says)
    serving = Serving(lambda consumer_id: b"".join(delivered(consumer_id, at, entry) for at in range(entries)))
    with FakeBroker(serving) as broker:
        serving.url = broker.url
        brokers = Brokers(connection_to(broker.url))
        with EntryReader(brokers, TOPIC, EARLIEST) as reader:
            read_count(reader, entries)
            eventually(lambda: sum(serving.permits) > entries * says, what="the permits")
        brokers.close()
    assert max(serving.permits) <= says
