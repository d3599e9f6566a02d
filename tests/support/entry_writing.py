"""Sends entries with the pipeline's own client, as tests of it need it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.frames import Frames
from heliograph_spark.wire.producer import Producer
from heliograph_spark.wire.window import Window

from .entries import make_entry
from .entry_reading import whole
from .wire_client import Type, encode


def opened(brokers: Brokers, topic: str, **settings: Any) -> Producer:
    """Return an open producer of a topic in public/default with a window of its own."""
    producer = Producer(brokers, whole(topic), settings.pop("window", None) or Window(), **settings)
    producer.open()
    return producer


def frame_of(producer: Producer, number: int, payload: bytes | None = None, **fields: Any) -> bytes:
    """Return the frame of a message with this sequence id, which is the text of the number unless it is given."""
    payload = b"%d" % number if payload is None else payload
    entry = make_entry(payload, producer_name=producer.name, sequence_id=number, **fields)
    return encode(Type.SEND, entry, producer_id=producer.id, sequence_id=number, num_messages=1)


def frames_of(producer: Producer, numbers: Iterable[int]) -> Frames:
    """Return the frames of messages that are the texts of these numbers, which are their sequence ids."""
    sequences = list(numbers)
    return joined([frame_of(producer, number) for number in sequences], sequences, [1] * len(sequences))


def joined(frames: Sequence[bytes], sequences: Sequence[int], messages: Sequence[int]) -> Frames:
    """Return frames with these sequence ids and numbers of messages."""
    ends = list(itertools.accumulate(map(len, frames)))
    return Frames(b"".join(frames), ends, sequences, messages)


def send(producer: Producer, numbers: Iterable[int]) -> None:
    """Send messages that are the texts of these numbers, ten in a block."""
    left = list(numbers)
    for at in range(0, len(left), 10):
        producer.send(frames_of(producer, left[at : at + 10]))


def send_all(producer: Producer, numbers: Iterable[int]) -> None:
    """As :func:`send`, and wait for their receipts."""
    send(producer, numbers)
    producer.flush()
