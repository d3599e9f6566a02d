"""Readers of the protocol without Spark: ``python -m benchmarks.client_readers wire|python SERVICE-URL``.

``wire`` is the data source's own client without decoding: entries arrive as bytes and are counted. ``python`` is
the reader of the official Python client.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import pulsar
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.options import Connection
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.link import Link
from heliograph_spark.wire.permits import READ_AHEAD_BYTES, Permits
from heliograph_spark.wire.receiver import Receiver

from .read_requests import Reading, Request, serve

_UINT64 = (1 << 64) - 1
#: Longest wait (s) for the next message.
WAITS_S = 60.0


def brokers_of(service_url: str) -> Brokers:
    """Return the brokers of the data source's own client."""
    return Brokers(Connection(service_url, None, {}, {}))


def subscribe_from_earliest(topic: str, consumer_id: int) -> wire.CommandSubscribe:
    """Return the command of a reader that begins with the first message."""
    body = wire.CommandSubscribe(
        topic=topic,
        subscription=f"reading-{time.monotonic_ns()}",
        subType=wire.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
        durable=False,
        force_topic_creation=False,
    )
    body.start_message_id.ledgerId = _UINT64
    body.start_message_id.entryId = _UINT64
    return body


def read_frames(brokers: Brokers, request: Request) -> Reading:
    """Count the entries of a topic, each a batch of the size that the request says."""
    began = time.monotonic()
    link: Link = brokers.owner(request.topic)
    receiver = Receiver(2 * READ_AHEAD_BYTES)
    consumer_id = link.attach(receiver)
    permits = Permits(link.max_message_size)
    link.request("subscribe", subscribe_from_earliest(request.topic, consumer_id), f"reading {request.topic}", WAITS_S)
    link.flow(consumer_id, permits.first())
    messages, first = 0, 0.0
    while messages < request.messages:
        if not link.wait(lambda: receiver.arrived or receiver.closed, time.monotonic() + WAITS_S) or receiver.closed:
            break
        first = first or time.monotonic()
        arrived, size = receiver.take()
        count = len(arrived) * request.batch
        messages += count
        if granted := permits.taken(count, size):
            link.flow(consumer_id, granted)
    ended = time.monotonic()
    link.leave(consumer_id)
    return Reading(messages, None, ended - began, ended - first)


def read_with_python_client(client: pulsar.Client, request: Request) -> Reading:
    """Read a topic by the official client's reader, message by message."""
    began = time.monotonic()
    reader = client.create_reader(request.topic, pulsar.MessageId.earliest)
    timeout_ms = int(WAITS_S * 1000)
    size = len(reader.read_next(timeout_ms).data())
    first = time.monotonic()
    for _ in range(request.messages - 1):
        size += len(reader.read_next(timeout_ms).data())
    ended = time.monotonic()
    more = reader.has_message_available()
    reader.close()
    return Reading(request.messages + more, size, ended - began, ended - first)


if __name__ == "__main__":
    kind, url = sys.argv[1:]
    if kind == "wire":
        serve(partial(read_frames, brokers_of(url)))
    else:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        serve(partial(read_with_python_client, pulsar.Client(url, logger=logger)))
