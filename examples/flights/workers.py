"""The publisher and the consumers, each a process of its own, as they would be anywhere else."""

from __future__ import annotations

import signal
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import msgspec
import pulsar

from .dataset import Totals, read_flights

#: Interval, in messages, at which the shared counters are updated: every message would cost more than the rest.
_REPORT_EVERY = 500
_BATCH = 1000
_WAIT_MS = 100


class _Distance(msgspec.Struct):
    """The one field of a flight's value that is added up; decoding only it is what makes this quick."""

    distance: int


class Published(NamedTuple):
    """The messages that the publisher has receipts for, or the reason why it stopped."""

    receipts: int
    error: str | None


class Consumed(NamedTuple):
    """The messages that one consumer received and acknowledged, or the reason why it stopped."""

    subscription: str
    consumer: str
    totals: Totals
    error: str | None


class Work(NamedTuple):
    """The arguments of every worker: the broker's address, and the means to report."""

    service_url: str
    topic: str
    progress: Synchronized[int]
    results: Queue[Published | Consumed]
    ready: Event
    stop: Event


def _client(url: str) -> pulsar.Client:
    # Ctrl-C goes to every process of the terminal; the parent alone acts on it, and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"))


def publish(work: Work, limit: int | None) -> None:
    """Publish the flights, key = carrier, event time = departure; batched so that a batch holds one key only."""
    receipts = 0
    errors: list[str] = []

    def receipt(result: Any, _message_id: Any) -> None:
        # Called on the client's one thread for this connection.
        nonlocal receipts
        if result != pulsar.Result.Ok:
            errors.append(str(result))
            return
        receipts += 1
        if receipts % _REPORT_EVERY == 0:
            work.progress.value = receipts

    client = _client(work.service_url)
    try:
        producer = client.create_producer(
            work.topic,
            batching_enabled=True,
            # A Key_Shared subscription gives a whole batch to one consumer: keys must not share one.
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_messages=_BATCH,
            batching_max_publish_delay_ms=20,
            max_pending_messages=10 * _BATCH,
            block_if_queue_full=True,
        )
        for flight in read_flights(limit):
            producer.send_async(
                flight.value, receipt, partition_key=flight.carrier, event_timestamp=flight.departure_ms
            )
            if errors or work.stop.is_set():
                break
        producer.flush()
    except pulsar.PulsarException as error:
        errors.append(str(error))
    finally:
        client.close()
    work.progress.value = receipts
    work.results.put(Published(receipts, errors[0] if errors else None))


def consume(work: Work, subscription: str, consumer_type: str, name: str) -> None:
    """Receive and acknowledge until told to stop, adding up what came."""
    totals = Totals()
    failure: str | None = None
    distance_of = msgspec.json.Decoder(_Distance).decode
    client = _client(work.service_url)
    try:
        consumer = client.subscribe(
            work.topic,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, consumer_type.replace("_", "")),
            consumer_name=name,
            receiver_queue_size=5 * _BATCH,
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(_BATCH, -1, _WAIT_MS),
        )
        work.ready.set()
        while True:
            # Looked at before receiving: after it is set, one more empty batch says that nothing is left.
            stopping = work.stop.is_set()
            batch = consumer.batch_receive()
            if not batch and stopping:
                break
            for message in batch:
                totals.add(message.partition_key(), distance_of(message.data()).distance)
                consumer.acknowledge(message)
            work.progress.value = totals.messages
        consumer.close()
    except (pulsar.PulsarException, msgspec.MsgspecError) as error:
        failure = f"{type(error).__name__}: {error}"
        work.ready.set()
    finally:
        client.close()
    work.results.put(Consumed(subscription, name, totals, failure))
