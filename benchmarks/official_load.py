"""The official Python client (C++ underneath) as load: ``python -m benchmarks.official_load '{json of OfficialJob}'``.

One process publishes and another one consumes, each prints a line of JSON when it has finished.
"""

from __future__ import annotations

import sys
import threading
import time

import msgspec
import pulsar


class OfficialJob(msgspec.Struct):
    """``role`` is publish or consume; batching is the client's own, at its default limits."""

    role: str
    service_url: str
    topic: str
    payload_bytes: int
    messages: int


class OfficialResult(msgspec.Struct):
    """When the first message was sent, or the last one was receipted or received (monotonic clock, seconds)."""

    began: float
    finished: float
    cpu_s: float


def publish(client: pulsar.Client, job: OfficialJob) -> OfficialResult:
    """Publish with receipts counted in the client's callbacks. Raises RuntimeError if a message was refused."""
    producer = client.create_producer(
        job.topic,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=128 * 1024,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
        max_pending_messages=20_000,
    )
    payload = bytes(job.payload_bytes)
    refused: list[object] = []
    counted = threading.Event()
    receipts = 0

    def on_receipt(result: object, message_id: object) -> None:
        nonlocal receipts
        if result != pulsar.Result.Ok:
            refused.append(result)
        receipts += 1
        if receipts == job.messages:
            counted.set()

    began = time.monotonic()
    for _ in range(job.messages):
        producer.send_async(payload, on_receipt)
    producer.flush()
    counted.wait(120)
    finished = time.monotonic()
    if refused or receipts != job.messages:
        raise RuntimeError(f"{receipts} of {job.messages} receipts, refused: {refused[:3]}")
    return OfficialResult(began, finished, time.process_time())


def consume(client: pulsar.Client, job: OfficialJob) -> OfficialResult:
    """Receive and acknowledge everything."""
    consumer = client.subscribe(
        job.topic,
        "official",
        consumer_type=pulsar.ConsumerType.Exclusive,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=10_000,
    )
    print("subscribed", flush=True)
    began = time.monotonic()
    for _ in range(job.messages):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    return OfficialResult(began, time.monotonic(), time.process_time())


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=OfficialJob)
    client = pulsar.Client(job.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"))
    result = publish(client, job) if job.role == "publish" else consume(client, job)
    print(msgspec.json.encode(result).decode(), flush=True)
    client.close()


if __name__ == "__main__":
    main()
