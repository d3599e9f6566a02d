"""Producers of a topic: their settings, the partition of each message, and the wait for a name that is still in use."""

from __future__ import annotations

import sys
import time
from typing import Any

import _pulsar
import pulsar

from heliograph_spark.plan.errors import PulsarSourceError, named
from heliograph_spark.plan.options import WriteOptions

#: A broker keeps the producer of a dead connection for up to two keep-alive intervals of 30 s by default; seconds.
_BUSY_FOR_S = 90.0
_TELL_AFTER_S = 10.0


class Router:
    """The partition of a topic for a message: by its key as Java clients do, else in turn, or always one's own."""

    def __init__(self, own: int | None) -> None:
        self._own = own
        self._turn = 0

    def __call__(self, message: pulsar.Message, partitions: int) -> int:
        if key := message.partition_key():
            return java_hash(key) % partitions
        if self._own is not None:
            return self._own % partitions
        self._turn += 1
        return self._turn % partitions


def java_hash(key: str) -> int:
    """Return Java's ``String.hashCode`` of the key, without its sign: Pulsar's default for routing."""
    value = 0
    units = key.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def compression(name: str) -> Any:
    """Return the client's compression of that name. Raises :class:`PulsarSourceError`, naming those there are."""
    kinds = {each: getattr(pulsar.CompressionType, each) for each in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")}
    for known, kind in kinds.items():
        if known.upper() == name:
            return kind
    raise PulsarSourceError(f"pulsar.producer.compressionType: {name!r} is none of {', '.join(kinds)}")


def open_producer(
    client: pulsar.Client,
    topic: str,
    schema: pulsar.schema.Schema,
    writing: WriteOptions,
    name: str | None = None,
    own: int | None = None,
    busy_for_s: float = _BUSY_FOR_S,
) -> pulsar.Producer:
    """Open a producer; with a ``name`` each message is an entry, and one without a key goes to partition ``own``.

    While the name is in use, as by a run that was killed, it waits up to ``busy_for_s`` and says so on stderr.
    Raises :class:`PulsarSourceError`.
    """
    # A batch is taken or dropped whole by the broker, and chunks and the client's batches exclude each other.
    batched = name is None and not writing.producer.get("chunking_enabled")
    settings: dict[str, Any] = {"batching_enabled": batched, **writing.producer}
    if "compression_type" in settings:
        settings["compression_type"] = compression(settings["compression_type"])
    began = time.monotonic()
    printed_at = began
    while True:
        try:
            with named(f"writing to {topic}"):
                return client.create_producer(
                    topic,
                    producer_name=name,
                    schema=schema,
                    block_if_queue_full=True,
                    message_router=Router(own if name else None),
                    **settings,
                )
        except PulsarSourceError as error:
            if name is None or not isinstance(error.__cause__, _pulsar.ProducerBusy):
                raise
            now = time.monotonic()
            if now - began > busy_for_s:
                raise PulsarSourceError(
                    f"writing to {topic}: the producer name {name} has been in use for {busy_for_s:.0f} s; only one"
                    " query can use it at a time"
                ) from error
            if printed_at == began or now - printed_at > _TELL_AFTER_S:
                printed_at = now
                text = f"waiting for the producer name {name} on {topic}, which is in use"
                print(text, file=sys.stderr, flush=True)
            time.sleep(1)
