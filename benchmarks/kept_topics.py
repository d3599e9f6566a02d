"""A broker with topics that keep every message, for what the benchmarks of the pipeline read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pulsar

from tests.support.broker_process import BrokerProcess
from tests.support.clients import ignore_receipt, rest

from .read_requests import Request

#: Messages in an entry: the client's batches.
_BATCH = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """Messages of one size, in batches of so many or alone (1)."""

    payload: int
    batch: int
    messages: int

    @property
    def name(self) -> str:
        size = "1 KiB" if self.payload == 1024 else f"{self.payload} B"
        return f"{size}, batches of {self.batch}" if self.batch > 1 else f"{size}, not batched"

    @property
    def topic(self) -> str:
        return f"persistent://public/default/of-{self.payload}-{self.batch}-{self.messages}"

    def request(self, splits: int) -> Request:
        """Return the request to read the topic."""
        return Request(self.topic, self.messages, self.batch, splits)


def shapes_of(messages: int) -> Sequence[Shape]:
    """Return what is compared: 100 B and 1 KiB, so many messages in batches, and a fifth of them alone."""
    batched = messages // _BATCH * _BATCH
    return [
        Shape(payload, batch, batched if batch > 1 else batched // 5)
        for payload in (100, 1024)
        for batch in (_BATCH, 1)
    ]


@contextmanager
def keeping_broker(directory: Path | None = None) -> Iterator[tuple[BrokerProcess, Path]]:
    """Run a broker that keeps every message, with a scratch directory (below ``directory``) that goes with it."""
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-", dir=directory) as name:
        scratch = Path(name)
        with BrokerProcess(scratch / "data") as broker:
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            rest(broker, "POST", "namespaces/public/default/retention", forever)
            yield broker, scratch


def fill(broker: BrokerProcess, topic: str, messages: int, payload: int, batch: int) -> None:
    """Publish so many messages with a key to a topic that keeps them, in batches of ``batch`` or, with 1, alone."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=1000,
        block_if_queue_full=True,
    )
    content = b"x" * payload
    for number in range(messages):
        producer.send_async(content, ignore_receipt, partition_key=str(number % 1000))
    producer.flush()
    client.close()


def publish(broker: BrokerProcess, shape: Shape) -> None:
    """Fill the shape's topic. Raises :class:`RuntimeError` if its entries are not as large as they should be."""
    fill(broker, shape.topic, shape.messages, shape.payload, shape.batch)
    stats = rest(broker, "GET", shape.topic.replace("://", "/") + "/internalStats")
    if stats["numberOfEntries"] * shape.batch != shape.messages:
        raise RuntimeError(f"{stats['numberOfEntries']} entries for {shape}")
