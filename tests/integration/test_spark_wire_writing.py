"""The pipeline's own producer when brokers and connections fail: nothing is lost, and the reason is named."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.failures import Refused
from heliograph_spark.wire.frames import Frames
from heliograph_spark.wire.producer import NameBusy, Producer
from heliograph_spark.wire.window import Window

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, receive_many, rest
from tests.support.entry_reading import connection_to, contents, everything, whole
from tests.support.entry_writing import frame_of, frames_of, joined, opened, send, send_all
from tests.support.polling import eventually

Type = wire.BaseCommand
MakeBroker = Callable[..., BrokerProcess]


@pytest.fixture
def own_broker(broker_factory: MakeBroker) -> BrokerProcess:
    """A broker of the test's own that keeps everything."""
    broker = broker_factory()
    broker.start()
    rest(broker, "POST", "namespaces/public/default/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    return broker


@pytest.fixture
def brokers(own_broker: BrokerProcess) -> Iterator[Brokers]:
    made = Brokers(connection_to(own_broker.service_url))
    yield made
    made.close()


def stored(brokers: Brokers, topic: str) -> list[int]:
    return [int(content) for content in contents(everything(brokers, topic))]


def deduplicate(broker: BrokerProcess) -> None:
    rest(broker, "POST", "namespaces/public/default/deduplication", True)


def test_what_is_sent_is_stored_in_order_and_counted(brokers: Brokers, topic: str) -> None:
    taken: list[tuple[int, bool]] = []
    window = Window()
    producer = opened(brokers, topic, window=window, received=lambda *receipt: taken.append(receipt))
    assert (producer.last_sequence_id, producer.max_message_size) == (-1, 5 << 20)
    send(producer, range(1000))
    assert window.frames > 0
    producer.flush()
    assert (window.bytes, window.frames, producer.pending_messages) == (0, 0, 0)
    assert sum(messages for messages, _ in taken) == 1000
    assert not any(dropped for _, dropped in taken)
    producer.close()
    assert stored(brokers, topic) == list(range(1000))


@pytest.mark.parametrize("name", ["", "me"])
def test_a_producer_goes_on_after_its_broker_was_killed(
    own_broker: BrokerProcess, brokers: Brokers, topic: str, name: str
) -> None:
    deduplicate(own_broker)
    producer = opened(brokers, topic, name=name, window=Window(most_frames=200))
    for first in range(0, 3000, 1000):
        send(producer, range(first, first + 900))
        own_broker.kill9()
        own_broker.start()
        send_all(producer, range(first + 900, first + 1000))
    producer.close()
    # Also without a name of its own: the broker has given it one, which it keeps.
    assert stored(brokers, topic) == list(range(3000))
    again = opened(brokers, topic, name=name or producer.name)
    assert again.last_sequence_id == 2999
    again.close()


def test_without_deduplication_everything_is_there_at_least_once_and_in_order(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    producer = opened(brokers, topic, window=Window(most_frames=200))
    send(producer, range(900))
    own_broker.kill9()
    own_broker.start()
    send_all(producer, range(900, 1000))
    producer.close()
    assert list(dict.fromkeys(stored(brokers, topic))) == list(range(1000))


class DamagedOnce(Frames):
    """Frames of which the fifth one is damaged on its way, when they are sent for the first time."""

    def unacknowledged(self) -> bytes | memoryview:
        data = bytearray(super().unacknowledged())
        if self.tries == 1:
            data[self.ends[4] - 1] ^= 1
        return bytes(data)


def test_what_is_damaged_on_its_way_is_stored_before_what_comes_after_it(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    deduplicate(own_broker)
    producer = opened(brokers, topic, name="me")
    frames = frames_of(producer, range(10))
    producer.send(DamagedOnce(frames.data, frames.ends, frames.sequences, frames.messages))
    send_all(producer, range(10, 20))
    producer.close()
    assert stored(brokers, topic) == list(range(20))


def test_a_producer_goes_on_after_its_topic_was_unloaded(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    deduplicate(own_broker)
    producer = opened(brokers, topic, name="me")
    for first in range(0, 2000, 500):
        send(producer, range(first, first + 500))
        rest(own_broker, "PUT", f"persistent/public/default/{topic}/unload")
    producer.flush()
    producer.close()
    assert stored(brokers, topic) == list(range(2000))


def test_a_broker_that_stores_nothing_ends_the_producer_in_time(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    producer = opened(brokers, topic, window=Window(most_frames=5))
    send_all(producer, range(10))
    # Only now, when no receipt comes.
    producer._deadline.within_s = 1.0
    os.kill(own_broker.pid, signal.SIGSTOP)
    try:
        expected = rf"writing to {whole(topic)}: the broker has stored no message for 1000 ms \(pulsar\.producer\.sendT"
        with pytest.raises(PulsarSourceError, match=expected):
            send(producer, range(10, 30))
    finally:
        os.kill(own_broker.pid, signal.SIGCONT)
    producer.leave()


def test_a_broker_that_is_away_for_a_while_loses_nothing_though_the_task_was_busy_longer_than_it_may_be_silent(
    own_broker: BrokerProcess, brokers: Brokers, topic: str
) -> None:
    producer = opened(brokers, topic, receipt_within_s=30.0)
    send(producer, range(10))
    own_broker.kill9()
    # The task does something else for longer than it would wait for a receipt.
    producer._deadline._left_at -= 60.0
    own_broker.start()
    send_all(producer, range(10, 20))
    producer.close()
    assert list(dict.fromkeys(stored(brokers, topic))) == list(range(20))


def test_a_name_that_is_in_use_is_refused_and_free_once_its_producer_has_left(brokers: Brokers, topic: str) -> None:
    first = opened(brokers, topic, name="me")
    with pytest.raises(NameBusy, match=rf"writing to {whole(topic)}: .*ProducerBusy"):
        opened(brokers, topic, name="me")
    first.leave()

    def free() -> Producer | None:
        try:
            return opened(brokers, topic, name="me")
        except NameBusy:
            return None

    second = eventually(free, what="the name")
    assert second is not None
    second.close()


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_exception", "ProducerBlockedQuotaExceededException"),
        ("producer_request_hold", "ProducerBlockedQuotaExceededError|backlog quota"),
    ],
)
def test_a_topic_whose_backlog_is_full_is_named_with_its_quota(
    own_broker: BrokerProcess, brokers: Brokers, topic: str, policy: str, error: str
) -> None:
    rest(own_broker, "POST", "namespaces/public/default/backlogQuota", {"limitSize": 10_000, "policy": policy})
    client = connect(own_broker.service_url)
    consumer = client.subscribe(topic, "slow", receiver_queue_size=1)
    producer = opened(brokers, topic, receipt_within_s=5.0)
    stored_until: list[int] = []

    def fill() -> None:
        for number in range(1000):
            send_all(producer, [number])
            stored_until.append(number)

    with pytest.raises(PulsarSourceError, match=rf"writing to {whole(topic)}: .*({error})"):
        fill()
    producer.leave()
    brokers.answered_within_s = 1.0
    with pytest.raises(PulsarSourceError, match=error):
        opened(brokers, topic)
    assert [int(message.data()) for message in receive_many(consumer, len(stored_until))] == stored_until
    client.close()


def test_a_held_producer_goes_on_when_there_is_room(own_broker: BrokerProcess, brokers: Brokers, topic: str) -> None:
    quota = {"limitSize": 5_000, "policy": "producer_request_hold"}
    rest(own_broker, "POST", "namespaces/public/default/backlogQuota", quota)
    client = connect(own_broker.service_url)
    consumer = client.subscribe(topic, "slow", receiver_queue_size=1)
    producer = opened(brokers, topic, window=Window(most_frames=10))
    sending = threading.Thread(target=send_all, args=(producer, range(300)))
    sending.start()
    held = f"persistent/public/default/{topic}/stats"
    eventually(lambda: not rest(own_broker, "GET", held)["publishers"], what="the producer being held")
    found = [int(message.data()) for message in receive_many(consumer, 300)]
    assert found == list(range(300))
    sending.join(60)
    assert not sending.is_alive()
    producer.close()
    client.close()


def test_a_topic_that_was_terminated_is_named(own_broker: BrokerProcess, brokers: Brokers, topic: str) -> None:
    producer = opened(brokers, topic)
    send_all(producer, range(10))
    rest(own_broker, "POST", f"persistent/public/default/{topic}/terminate")
    with pytest.raises(PulsarSourceError, match=rf"writing to {whole(topic)}: .*TopicTerminatedError"):
        send_all(producer, range(10, 20))
    producer.leave()
    assert stored(brokers, topic) == list(range(10))


def test_a_message_that_is_too_large_for_the_broker_is_refused_by_name(brokers: Brokers, topic: str) -> None:
    producer = opened(brokers, topic)
    producer.send(joined([frame_of(producer, 0, b"x" * ((5 << 20) + 1))], [0], [1]))
    with pytest.raises(Refused, match=rf"writing to {whole(topic)}: .*NotAllowedError: payload of 5242881 bytes"):
        producer.flush()
    producer.leave()


def test_producers_that_share_a_window_wait_for_each_other_and_end_together(brokers: Brokers, topic: str) -> None:
    window = Window(most_bytes=2000)
    producers = [opened(brokers, f"{topic}-{number}", window=window) for number in range(20)]
    for first in range(0, 200, 10):
        for producer in producers:
            producer.send(frames_of(producer, range(first, first + 10)))
            assert window.bytes <= 2000
    window.flush()
    for number, producer in enumerate(producers):
        producer.close()
        assert stored(brokers, f"{topic}-{number}") == list(range(200))
