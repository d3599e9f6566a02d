"""Records frames of Pulsar's official client as first inputs: ``python -m tests.fuzz.record``.

The client talks to a broker through a relay, which the broker advertises as its own address. Run it again after a
client's new version has new frames.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pulsar

from tests.support.clients import DEADLINE_MS, connect, publish, publish_batch
from tests.support.relay import relayed

from . import corpus
from .streams import parts_of

#: A stream is cut into inputs of about this size (bytes), none of which cuts a frame.
_INPUT_BYTES = 1500
_CODECS = (
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
)
_TYPES = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared)


def _talk(url: str) -> None:
    """Use what a client has: every codec, type of consumer, kind of acknowledgment and seek."""
    client = connect(url)
    topic = "persistent://public/default/recorded"
    consumers = [
        client.subscribe(topic, f"s{number}", consumer_type=kind, negative_ack_redelivery_delay_ms=100)
        for number, kind in enumerate(_TYPES)
    ]
    for codec in _CODECS:
        publish(client, topic, [b"value" * 20], keys=1, compression_type=codec)
    publish_batch(client, topic, [b"a", b"bc", b""])
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"c", ordering_key="o", event_timestamp=5, deliver_after=None, sequence_id=9)
    producer.close()
    for consumer in consumers:
        messages = [consumer.receive(DEADLINE_MS) for _ in range(4)]
        consumer.negative_acknowledge(messages.pop())
        for message in messages:
            consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        consumer.seek(pulsar.MessageId.earliest)
        consumer.seek(1_700_000_000_000)
    exclusive = client.subscribe(topic, "cumulative", initial_position=pulsar.InitialPosition.Earliest)
    exclusive.acknowledge_cumulative(exclusive.receive(DEADLINE_MS))
    exclusive.unsubscribe()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    reader.read_next(DEADLINE_MS)
    reader.has_message_available()
    pattern = client.subscribe(["persistent://public/default/recorded"], "several")
    pattern.close()
    with_schema = client.create_producer(f"{topic}-schema", schema=pulsar.schema.StringSchema())
    with_schema.send("text")
    client.get_topic_partitions(topic)
    client.close()


def _cut(stream: bytes) -> Iterator[bytes]:
    """Yield inputs of a stream's frames; that of CONNECT is left out, as targets send their own."""
    taken = b""
    for part in list(parts_of(stream))[1:]:
        if taken and len(taken) + len(part) > _INPUT_BYTES:
            yield taken
            taken = b""
        taken += part
    if taken:
        yield taken


def main() -> None:
    with tempfile.TemporaryDirectory() as name, relayed(Path(name) / "data") as (_broker, relay):
        # In a process of its own: while the client waits, no other thread of its process runs.
        subprocess.run([sys.executable, "-m", __spec__.name, f"pulsar://127.0.0.1:{relay.port}"], check=True)
    inputs = [each for stream in relay.streams for each in _cut(bytes(stream))]
    corpus.save(corpus.RECORDED, inputs)
    print(f"{len(inputs)} inputs of {sum(map(len, inputs))} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _talk(sys.argv[1])
    else:
        main()
