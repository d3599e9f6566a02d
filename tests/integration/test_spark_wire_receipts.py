"""The pipeline's own producer and answers that no broker of ours gives: nothing is lost, and the reason is named."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.failures import NotStored, Refused
from heliograph_spark.wire.producer import leave_all
from heliograph_spark.wire.window import Window

from tests.support.entry_reading import connection_to
from tests.support.entry_writing import opened, send_all
from tests.support.fake_broker import FakeBroker
from tests.support.wire_client import Frame, encode

from .spark_wire_peer import Made, Peer, error_of, receipt

Type = wire.BaseCommand
_DROPPED = wire.MessageIdData(ledgerId=(1 << 64) - 1, entryId=(1 << 64) - 1)


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


def test_a_producer_closed_with_errors_sends_again_in_order_what_was_behind_the_failed_message(with_peer: Made) -> None:
    """As a broker does whose disk is full: it says which messages failed, closes the producer, and drops the rest."""

    def full(producer: int, number: int, time: int) -> bytes:
        if number < 5 or time > 1:
            return receipt(producer, number)
        closed = encode(Type.CLOSE_PRODUCER, producer_id=producer, request_id=0) if number == 6 else b""
        return error_of(producer, number, wire.PersistenceError) + closed if number <= 6 else b""

    peer = Peer(full)
    producer, taken = with_peer(peer)
    send_all(producer, range(10))
    assert sum(taken) == 10
    assert list(dict.fromkeys(peer.sent)) == list(range(10))
    assert peer.sent[-5:] == [5, 6, 7, 8, 9]
    producer.close()


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


@pytest.mark.parametrize("code", [wire.ChecksumError, wire.PersistenceError, wire.UnknownError, None])
def test_a_message_that_was_not_stored_while_later_ones_were_is_an_error_where_it_is_dropped(
    with_peer: Made, code: int | None
) -> None:
    producer, taken = with_peer(Peer(_loses_fifth(code)), name="me")
    with pytest.raises(NotStored, match="has not stored the message of sequence id 4 under me, but later ones"):
        send_all(producer, range(10))
    assert sum(taken) == 4
    producer.leave()


def _loses_fifth(code: int | None, later: int | None = None) -> Callable[[int, int, int], bytes]:
    """Answer that all are stored but number 4, and drop what comes again; ``later`` is the error of those after it."""

    def answer(producer: int, number: int, time: int) -> bytes:
        if (number, time) == (4, 1):
            return b"" if code is None else error_of(producer, number, code)
        if number > 4 and later is not None:
            return error_of(producer, number, later)
        if time > 1:
            return encode(Type.SEND_RECEIPT, producer_id=producer, sequence_id=number, message_id=_DROPPED)
        return receipt(producer, number)

    return answer


def test_a_message_of_a_task_that_has_another_name_when_it_is_repeated_is_not_lost(with_peer: Made) -> None:
    producer, _ = with_peer(Peer(_loses_fifth(wire.ChecksumError)))
    with pytest.raises(PulsarSourceError, match="has not stored the message of sequence id 4 under given") as ended:
        send_all(producer, range(10))
    assert not isinstance(ended.value, NotStored)
    leave_all([producer], ended.value)


def test_a_message_that_an_earlier_task_has_sent_is_dropped_although_it_is_damaged_now(with_peer: Made) -> None:
    producer, taken = with_peer(Peer(_loses_fifth(wire.ChecksumError), last_sequence_id=9), name="me")
    send_all(producer, range(10))
    assert sum(taken) == 10
    producer.close()


def test_an_error_that_does_not_pass_is_one_after_which_no_task_may_go_on_if_later_messages_are_stored(
    with_peer: Made,
) -> None:
    producer, _ = with_peer(Peer(_loses_fifth(wire.NotAllowedError)), name="me")
    with pytest.raises(Refused, match="NotAllowedError: no") as ended:
        send_all(producer, range(10))
    with pytest.raises(NotStored, match=r"not stored the message of sequence id 4 under me, but perhaps.*NotAllowed"):
        leave_all([producer], ended.value)


@pytest.mark.parametrize("named", [True, False])
def test_an_error_that_does_not_pass_is_one_after_which_a_task_may_be_repeated_if_nothing_later_is_stored(
    with_peer: Made, *, named: bool
) -> None:
    code = wire.TopicTerminatedError
    producer, _ = with_peer(Peer(_loses_fifth(code, later=code)), name="me" if named else "")
    with pytest.raises(Refused, match="TopicTerminatedError: no") as ended:
        send_all(producer, range(10))
    leave_all([producer], ended.value)


def test_a_task_that_ends_with_another_error_while_a_message_is_not_stored_may_not_be_repeated(
    with_peer: Made,
) -> None:
    """A repeated task would take the message for stored, as the broker drops it."""
    loses_fifth = _loses_fifth(wire.ChecksumError)

    def falls_silent(producer: int, number: int, time: int) -> bytes:
        return loses_fifth(producer, number, time) if time == 1 else b""

    other, _ = with_peer(Peer(lambda producer, number, _: receipt(producer, number)), name="other")
    producer, _ = with_peer(Peer(falls_silent), name="me", receipt_within_s=3.0)
    with pytest.raises(PulsarSourceError, match="sendTimeoutMs") as ended:
        send_all(producer, range(10))
    with pytest.raises(NotStored, match=r"sequence id 4 under me, but perhaps later ones.*\(.*sendTimeoutMs"):
        leave_all([other, producer], ended.value)
    # Nothing is lost where nobody repeats the task.
    leave_all([other, producer], None)


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
        expected = r"there was no answer in time.*while its disk is full.*when its backlog quota is reached"
        with pytest.raises(PulsarSourceError, match=expected):
            opened(brokers, "t")
        brokers.close()
