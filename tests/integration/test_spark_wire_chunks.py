"""The pipeline's own producer and the receipts of chunks: a message is stored whole, or not at all."""

from __future__ import annotations

import itertools

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.window import Window

from tests.support.entry_writing import frame_of, joined
from tests.support.wire_client import Frame, encode

from .spark_wire_peer import Made, Peer, error_of, receipt

Type = wire.BaseCommand


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
