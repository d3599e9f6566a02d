"""The pipeline's own producer when brokers, connections and answers fail: nothing is lost, and the reason is named."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.failures import NotStored, Refused
from heliograph_spark.wire.frames import Frames
from heliograph_spark.wire.producer import NameBusy, Producer
from heliograph_spark.wire.window import Window

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, receive_many, rest
from tests.support.entries import open_entry
from tests.support.entry_reading import connection_to, contents, everything, whole
from tests.support.entry_writing import frame_of, frames_of, joined, opened, send, send_all
from tests.support.fake_broker import CONNECTED, FakeBroker
from tests.support.polling import eventually
from tests.support.wire_client import Frame, encode

Type = wire.BaseCommand
MakeBroker = Callable[..., BrokerProcess]
_DROPPED = wire.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)


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


# With a broker


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


# With peers that answer what no broker of ours does


class Peer:
    """Lets everybody in, keeps the numbers that were sent with SEND, and answers each by ``answer``.

    That is given the producer's id, the number and how often the number was sent; it returns the bytes to send, and
    None to end the connection.
    """

    def __init__(self, answer: Callable[[int, int, int], bytes | None], last_sequence_id: int = -1) -> None:
        self.sent: list[int] = []
        self.opened: list[wire.CommandProducer] = []
        self._answer = answer
        self._last = last_sequence_id

    def __call__(self, frame: Frame) -> bytes | None:
        body: Any = frame.body
        kind = frame.command.type
        if kind == Type.CONNECT:
            return CONNECTED
        if kind == Type.LOOKUP:
            return encode(
                Type.LOOKUP_RESPONSE,
                request_id=body.request_id,
                response=wire.CommandLookupTopicResponse.Connect,
                brokerServiceUrl=self.url,
            )
        if kind == Type.PRODUCER:
            self.opened.append(body)
            name = body.producer_name or "given"
            return encode(
                Type.PRODUCER_SUCCESS,
                request_id=body.request_id,
                producer_name=name,
                last_sequence_id=self._last,
                schema_version=b"v",
            )
        if kind == Type.CLOSE_PRODUCER:
            return encode(Type.SUCCESS, request_id=body.request_id)
        if kind == Type.SEND:
            assert [payload for _, payload in open_entry(frame.entry)] == [b"%d" % body.sequence_id]
            self.sent.append(body.sequence_id)
            return self._answer(body.producer_id, body.sequence_id, self.sent.count(body.sequence_id))
        return b""

    url = ""


def receipt(producer_id: int, number: int, entry: int | None = None) -> bytes:
    place = wire.MessageIdData(ledgerId=1, entryId=number if entry is None else entry)
    return encode(Type.SEND_RECEIPT, producer_id=producer_id, sequence_id=number, message_id=place)


def error_of(producer_id: int, number: int, code: int, text: str = "no") -> bytes:
    return encode(Type.SEND_ERROR, producer_id=producer_id, sequence_id=number, error=code, message=text)


@pytest.fixture
def with_peer() -> Iterator[Callable[..., tuple[Producer, list[int]]]]:
    """Returns a producer of a peer that answers so, and the numbers of messages that it has receipts for."""
    ends: list[Callable[[], None]] = []

    def make(peer: Peer, **settings: Any) -> tuple[Producer, list[int]]:
        fake = FakeBroker(peer)
        peer.url = fake.url
        brokers = Brokers(connection_to(fake.url))
        brokers.answered_within_s = settings.pop("answered_within_s", brokers.answered_within_s)
        ends.extend((brokers.close, lambda: fake.__exit__(None, None, None)))
        taken: list[int] = []
        settings.setdefault("receipt_within_s", 60.0)
        return opened(brokers, "t", received=lambda messages, _: taken.append(messages), **settings), taken

    yield make
    for end in ends:
        end()


Made = Callable[..., tuple[Producer, list[int]]]


def test_a_receipt_for_another_message_has_the_rest_sent_again(with_peer: Made) -> None:
    def skips_one(producer: int, number: int, time: int) -> bytes:
        return b"" if (number, time) == (4, 1) else receipt(producer, number)

    peer = Peer(skips_one)
    producer, taken = with_peer(peer)
    send_all(producer, range(10))
    assert sum(taken) == 10
    assert peer.sent == [*range(10), *range(4, 10)]
    # Under the name it was given, as one that comes back.
    assert [(each.epoch, each.producer_name, each.user_provided_producer_name) for each in peer.opened] == [
        (0, "", False),
        (1, "given", False),
    ]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda producer, number, _: receipt(producer, number + 1), "a receipt for the sequence id 1 when that of 0"),
        (lambda *_: b"", "sendTimeoutMs"),
        (lambda *_: None, "the broker closed the connection"),
        (lambda producer, number, _: error_of(producer, number, wire.ChecksumError), "ChecksumError: no"),
        (lambda producer, number, _: error_of(producer, number, wire.PersistenceError), "PersistenceError: no"),
        (lambda producer, number, _: error_of(producer, number, wire.NotAllowedError), "NotAllowedError: no"),
        (lambda producer, number, _: error_of(producer, number, wire.ProducerFenced), "ProducerFenced: no"),
        (
            lambda producer, _, __: encode(Type.CLOSE_PRODUCER, producer_id=producer, request_id=0),
            "has stored no message",
        ),
        (lambda *_: b"\0\0\0\x05\0\0\0\x01\xff", "no frame of Pulsar's protocol"),
    ],
)
def test_answers_that_take_no_message_end_the_producer_with_their_reason(
    with_peer: Made, answer: Callable[[int, int, int], bytes | None], text: str
) -> None:
    peer = Peer(answer)
    # The peer is in this process: long enough for its first answer, should the process stand still for a while.
    producer, taken = with_peer(peer, receipt_within_s=3.0)
    with pytest.raises(PulsarSourceError, match=text) as ended:
        send_all(producer, range(10))
    assert "writing to persistent://public/default/t: " in str(ended.value)
    assert sum(taken) == 0
    # It was tried again, but not without a pause.
    assert len(peer.opened) < 20
    producer.leave()


@pytest.mark.parametrize("code", [wire.ChecksumError, wire.PersistenceError, wire.ServiceNotReady, wire.UnknownError])
def test_an_error_that_passes_has_the_messages_sent_again_in_order(with_peer: Made, code: int) -> None:
    def fails_once(producer: int, number: int, time: int) -> bytes:
        return error_of(producer, number, code) if number >= 5 and time == 1 else receipt(producer, number)

    peer = Peer(fails_once)
    producer, taken = with_peer(peer)
    send_all(producer, range(10))
    assert sum(taken) == 10
    assert peer.sent == [*range(10), *range(5, 10)]


def test_receipts_that_come_twice_or_for_nobody_change_nothing(with_peer: Made) -> None:
    def repeats(producer: int, number: int, _: int) -> bytes:
        again = receipt(producer, max(0, number - 3))
        return again + receipt(producer, number) + receipt(producer, number) + receipt(producer + 99, number)

    peer = Peer(repeats)
    producer, taken = with_peer(peer)
    send_all(producer, range(100))
    assert sum(taken) == 100
    assert peer.sent == list(range(100))
    producer.close()


def test_the_receipt_of_a_chunk_that_comes_twice_is_not_that_of_the_next_one(with_peer: Made) -> None:
    entries = itertools.count()

    def once(producer: int, number: int, time: int) -> bytes:
        if time == 3:
            # The last chunk is never stored.
            return b""
        one = receipt(producer, number, next(entries))
        return one * 3

    producer, taken = with_peer(Peer(once), receipt_within_s=1.0)
    frames = joined([frame_of(producer, 0)] * 3, [0, 0, 0], [0, 0, 1])
    producer.send(frames)
    with pytest.raises(PulsarSourceError, match="sendTimeoutMs"):
        producer.flush()
    assert sum(taken) == 0


@pytest.mark.parametrize("closes", [False, True])
def test_a_message_of_which_a_chunk_was_not_stored_is_sent_again_from_its_first_chunk(
    with_peer: Made, closes: bool
) -> None:
    def fails_in_between(producer: int, number: int, time: int) -> bytes:
        if time == 2:
            closed = encode(Type.CLOSE_PRODUCER, producer_id=producer, request_id=0)
            return closed if closes else error_of(producer, number, wire.PersistenceError)
        return b"" if closes and time == 3 else receipt(producer, number, time)

    peer = Peer(fails_in_between)
    window = Window()
    producer, taken = with_peer(peer, window=window)
    producer.send(joined([frame_of(producer, 0)] * 3, [0, 0, 0], [0, 0, 1]))
    producer.flush()
    # The third one's receipt is not that of the second one, and a consumer puts together what follows a first chunk.
    assert len(peer.sent) == 6
    assert sum(taken) == 1
    assert (window.bytes, window.frames, producer.pending_messages) == (0, 0, 0)
    producer.close()


class Deaf(Peer):
    """Never answers CLOSE_PRODUCER, and counts its connections."""

    connections = 0

    def __call__(self, frame: Frame) -> bytes | None:
        if frame.command.type == Type.CLOSE_PRODUCER:
            return b""
        self.connections += frame.command.type == Type.CONNECT
        return super().__call__(frame)


def test_a_late_receipt_of_a_chunk_is_not_that_of_one_that_was_sent_again(with_peer: Made) -> None:
    def stores_late(producer: int, number: int, time: int) -> bytes:
        if time == 1:
            return error_of(producer, number, wire.PersistenceError)
        if time < 4:
            return b""
        if peer.connections > 1:
            return receipt(producer, number, time)
        # The chunks of before are stored meanwhile, and of those that are sent again only the first one is.
        return b"".join(receipt(producer, number, entry) for entry in (2, 3, 4)) if time == 4 else b""

    peer = Deaf(stores_late)
    # Only CLOSE_PRODUCER is without an answer for this time.
    producer, taken = with_peer(peer, answered_within_s=5.0)
    producer.send(joined([frame_of(producer, 0)] * 3, [0, 0, 0], [0, 0, 1]))
    producer.flush()
    assert (peer.connections, len(peer.sent), sum(taken)) == (2, 6, 1)


def test_a_producer_that_the_broker_closed_registers_again_and_sends_only_what_has_no_receipt(with_peer: Made) -> None:
    def closes(producer: int, number: int, time: int) -> bytes:
        if number == 5 and time == 1:
            return encode(Type.CLOSE_PRODUCER, producer_id=producer, request_id=0)
        return b"" if number > 5 and time == 1 else receipt(producer, number)

    peer = Peer(closes)
    producer, taken = with_peer(peer, name="me")
    send_all(producer, range(10))
    assert sum(taken) == 10
    assert peer.sent == [*range(10), *range(5, 10)]
    assert [(each.epoch, each.producer_name, each.user_provided_producer_name) for each in peer.opened] == [
        (0, "me", True),
        (1, "me", True),
    ]


def test_a_message_that_is_dropped_although_the_broker_did_not_have_it_is_an_error(with_peer: Made) -> None:
    def drops(producer: int, number: int, _: int) -> bytes:
        return encode(Type.SEND_RECEIPT, producer_id=producer, sequence_id=number, message_id=_DROPPED)

    producer, _ = with_peer(Peer(drops, last_sequence_id=4), name="me")
    send_all(producer, range(5))
    with pytest.raises(PulsarSourceError, match="had none of its sequence id under me: another producer sends under"):
        send_all(producer, range(5, 6))
    producer.leave()


def test_what_is_sent_again_may_be_dropped(with_peer: Made) -> None:
    """The broker has stored it, and the receipt was lost with the connection."""

    def forgets(producer: int, number: int, time: int) -> bytes | None:
        if time == 1:
            return None if number == 9 else b""
        return encode(Type.SEND_RECEIPT, producer_id=producer, sequence_id=number, message_id=_DROPPED)

    peer = Peer(forgets)
    producer, taken = with_peer(peer, name="me")
    send_all(producer, range(10))
    assert sum(taken) == 10


@pytest.mark.parametrize("damaged", [True, False])
def test_a_message_that_was_not_stored_while_later_ones_were_is_an_error_where_it_is_dropped(
    with_peer: Made, damaged: bool
) -> None:
    def loses_one(producer: int, number: int, time: int) -> bytes:
        if (number, time) == (4, 1):
            return error_of(producer, number, wire.ChecksumError) if damaged else b""
        if time > 1:
            return encode(Type.SEND_RECEIPT, producer_id=producer, sequence_id=number, message_id=_DROPPED)
        return receipt(producer, number)

    producer, taken = with_peer(Peer(loses_one), name="me")
    with pytest.raises(NotStored, match="has not stored the message of sequence id 4 under me, but later ones"):
        send_all(producer, range(10))
    assert sum(taken) == 4
    producer.leave()


class Unreliable(Peer):
    """Stores messages in order, each once, and fails in every way that a broker may, now and then."""

    def __init__(self, random: Random) -> None:
        super().__init__(self._stored)
        self.stored: list[int] = []
        self._random = random
        #: Whether the producer has to register before anything more is stored.
        self._away = False

    def __call__(self, frame: Frame) -> bytes | None:
        if frame.command.type == Type.PRODUCER:
            self._away = False
            self._last = self.stored[-1] if self.stored else -1
            if self._random.random() < 0.2:
                return None
        return super().__call__(frame)

    def _stored(self, producer: int, number: int, _: int) -> bytes | None:
        if self._away:
            return b""
        if self.stored and number <= self.stored[-1]:
            return encode(Type.SEND_RECEIPT, producer_id=producer, sequence_id=number, message_id=_DROPPED)
        fails = self._random.randrange(60)
        if fails < 3:
            self._away = True
            return [
                None,
                encode(Type.CLOSE_PRODUCER, producer_id=producer, request_id=0),
                error_of(producer, number, wire.PersistenceError),
            ][fails]
        self.stored.append(number)
        if fails == 3:
            # Stored, and the receipt is lost with the connection.
            return None
        again = receipt(producer, self._random.choice(self.stored)) if fails < 10 else b""
        return again + receipt(producer, number)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_broker_does_each_message_is_stored_once_and_in_order(with_peer: Made, seed: int) -> None:
    random = Random(seed)
    peer = Unreliable(random)
    producer, taken = with_peer(peer, name="me", window=Window(most_frames=random.choice([1, 7, 100])))
    send_all(producer, range(200))
    assert peer.stored == list(range(200))
    assert sum(taken) == 200
    assert producer.pending_messages == 0
    producer.close()


def test_a_refused_producer_is_named_at_once() -> None:
    def refuse(frame: Frame) -> bytes | None:
        if frame.command.type == Type.PRODUCER:
            return encode(
                Type.ERROR, request_id=frame.body.request_id, error=wire.AuthorizationError, message="not yours"
            )
        return Peer.__call__(peer, frame)

    peer = Peer(lambda *_: b"")
    with FakeBroker(refuse) as fake:
        peer.url = fake.url
        brokers = Brokers(connection_to(fake.url))
        expected = r"writing to persistent://public/default/t: .*these credentials do not allow it: not yours"
        with pytest.raises(Refused, match=expected):
            opened(brokers, "t")
        brokers.close()


def test_a_broker_that_does_not_answer_a_producer_is_named() -> None:
    def silent(frame: Frame) -> bytes | None:
        return b"" if frame.command.type == Type.PRODUCER else Peer.__call__(peer, frame)

    peer = Peer(lambda *_: b"")
    with FakeBroker(silent) as fake:
        peer.url = fake.url
        brokers = Brokers(connection_to(fake.url))
        brokers.answered_within_s = 2.0
        with pytest.raises(PulsarSourceError, match=r"there was no answer in time.*when its backlog quota is reached"):
            opened(brokers, "t")
        brokers.close()
