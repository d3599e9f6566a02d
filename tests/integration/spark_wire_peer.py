"""A peer that answers what no broker of ours does, and a producer of the pipeline that sends to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.producer import Producer

from tests.support.entries import open_entry
from tests.support.entry_reading import connection_to
from tests.support.entry_writing import opened
from tests.support.fake_broker import CONNECTED, FakeBroker
from tests.support.wire_client import Frame, encode

Type = wire.BaseCommand
Made = Callable[..., tuple[Producer, list[int]]]


def looked_up(frame: Frame, url: str) -> bytes:
    """Return the answer to a LOOKUP: the topic is at this address."""
    connect = wire.CommandLookupTopicResponse.Connect
    return encode(Type.LOOKUP_RESPONSE, request_id=frame.body.request_id, response=connect, brokerServiceUrl=url)


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
            return looked_up(frame, self.url)
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
