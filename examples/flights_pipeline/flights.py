"""The flights as messages whose topic has a schema, and what their CSV file says of every number that comes after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import _pulsar
import msgspec
import pulsar

from examples.flights.dataset import read_flights

_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
_BATCH = 1000


class PublishFailed(Exception):
    """The broker did not take a message."""


class Expected:
    """Counted straight from the data set: messages and bytes, of each aircraft, too, and its last flight.

    An aircraft is known by its tail number; flights without one are messages without a key.
    """

    def __init__(self, limit: int | None) -> None:
        self.messages = 0
        self.bytes = 0
        self.of_aircraft: Counter[str] = Counter()
        self.bytes_of_aircraft: Counter[str] = Counter()
        self.last: dict[str, dict[str, Any]] = {}
        for key, _, value in keyed_flights(limit):
            self.messages += 1
            self.bytes += len(value)
            if key is not None:
                self.of_aircraft[key] += 1
                self.bytes_of_aircraft[key] += len(value)
                self.last[key] = msgspec.json.decode(value)


def keyed_flights(limit: int | None) -> Iterator[tuple[str | None, int, bytes]]:
    """Tail number, departure (ms since 1970) and JSON of each flight, in the order of the file."""
    for flight in read_flights(limit):
        yield msgspec.json.decode(flight.value)["tailnum"], flight.departure_ms, flight.value


class _Encoded(pulsar.schema.Schema):  # type: ignore[misc]
    """The schema of a topic whose messages are JSON already."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


def flight_schema(example: bytes) -> pulsar.schema.Schema:
    """Return the JSON schema of a flight: a field for each of the example's, texts or whole numbers, none required."""
    fields = [
        {"name": name, "type": ["null", "string" if name in _TEXTS else "long"], "default": None}
        for name in msgspec.json.decode(example)
    ]
    definition = {"type": "record", "name": "flight", "fields": fields}
    return _Encoded(bytes, _pulsar.SchemaType.JSON, definition, "JSON")


def publish(service_url: str, topic: str, limit: int | None) -> int:
    """Publish the flights, key = tail number, event time = departure; how many the broker has. Raises on a refusal."""
    failures: list[str] = []
    receipts = 0

    def receipt(result: Any, _message_id: Any) -> None:
        nonlocal receipts
        if result == pulsar.Result.Ok:
            receipts += 1
        else:
            failures.append(str(result))

    client = pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"))
    try:
        producer: Any = None
        for key, departure_ms, value in keyed_flights(limit):
            if producer is None:
                producer = client.create_producer(
                    topic,
                    schema=flight_schema(value),
                    batching_enabled=True,
                    batching_max_messages=_BATCH,
                    batching_max_publish_delay_ms=20,
                    max_pending_messages=10 * _BATCH,
                    block_if_queue_full=True,
                )
            producer.send_async(value, receipt, partition_key=key, event_timestamp=departure_ms)
            if failures:
                raise PublishFailed(f"{topic}: {failures[0]}")
        producer.flush()
    finally:
        client.close()
    if failures:
        raise PublishFailed(f"{topic}: {failures[0]}")
    return receipts
