"""Measures the cost of a step of the core as the work around it grows ten times: the table of docs/scaling.md.

Run it with ``benchmarks/run-scaling``; see its ``--help``. The core runs on its real store without sockets, on virtual
time, so that a step is exactly what it says. The exponent is log10 of the second time by the first: 0 for a step that
does not depend on n, 1 for one that costs as much more as there is more.
"""

from __future__ import annotations

import gc
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.broker.topic_list import TopicPattern
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer, Receipt
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType
from heliograph_broker.messaging.delivery.subscription import AckId, Subscription
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE, SHARED

_DAY_MS = 86_400_000
_GROUP = 2_000
_TMPFS = Path("/dev/shm")


class Sink(Client):
    """A connection that takes everything and keeps nothing."""

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        pass

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        pass


class Measured(NamedTuple):
    """Seconds of a step on ``n`` of something and on ten times as many."""

    step: str
    of: str
    n: int
    at_n: float
    at_ten: float

    @property
    def exponent(self) -> float:
        return math.log10(self.at_ten / self.at_n)


#: Makes a core in which there is ``n`` of something, and yields the step: called again and again, timed each time.
Scene = Callable[[Core, int], Callable[[], object]]


@contextmanager
def _core(*, tail_cache_bytes: int = 4 << 30) -> Iterator[Core]:
    base = str(_TMPFS) if os.access(_TMPFS, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="heliograph-scaling-", dir=base) as directory:
        core = Core(
            Path(directory) / "data",
            tail_cache_bytes=tail_cache_bytes,
            max_unacked_per_consumer=0,
            max_unacked_per_subscription=0,
        )
        try:
            yield core
        finally:
            core.close()


def _publish(core: Core, topic: Topic, count: int, *, delay_ms: Callable[[int], int] | None = None) -> None:
    producer = next(iter(topic.producers.values()), None) or core.producer(topic, Sink())
    for number in range(count):
        deliver_at = None if delay_ms is None else core.clock.now_ms() + delay_ms(number)
        core.publish(producer, deliver_at=deliver_at)
        if number % _GROUP == _GROUP - 1:
            core.commit()
    core.commit()


def _subscribed(core: Core, n: int, sub_type: SubscriptionType, *, consumers: int = 1) -> tuple[Topic, Subscription]:
    """Return a subscription with ``n`` entries in flight, spread over ``consumers``."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for number in range(consumers):
        core.consumer(subscription, sub_type, Sink(), name=f"c{number}", consumer_id=number, permits=n)
    _publish(core, topic, n)
    return topic, subscription


def cumulative_ack(core: Core, n: int) -> Callable[[], object]:
    topic, subscription = _subscribed(core, n, EXCLUSIVE)
    consumer = subscription.consumers[0]
    ids = iter([AckId(*topic.log.position(offset)) for offset in range(n)])
    return lambda: subscription.acks.acknowledge_cumulative(consumer, next(ids), None)


def single_ack(core: Core, n: int) -> Callable[[], object]:
    topic, subscription = _subscribed(core, n, SHARED)
    order = list(range(n))
    random.Random(1).shuffle(order)
    ids = iter([AckId(*topic.log.position(offset)) for offset in order])
    return lambda: subscription.acks.acknowledge(None, [next(ids)], None)


def negative_ack(core: Core, n: int) -> Callable[[], object]:
    topic, subscription = _subscribed(core, n, SHARED)
    consumer = subscription.consumers[0]
    consumer.permits = 1 << 30
    positions = [topic.log.position(offset) for offset in random.Random(1).sample(range(n), min(n, 2_000))]
    following = iter(positions)
    return lambda: subscription.redeliver(consumer, [next(following)], None)


def leaving(core: Core, n: int) -> Callable[[], object]:
    """Twenty consumers leave that hold twenty entries each, while another one holds ``n``."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    for number in range(20):
        core.consumer(subscription, SHARED, Sink(), name=f"c{number}", consumer_id=number, permits=20)
    _publish(core, topic, 400)
    core.consumer(subscription, SHARED, Sink(), name="large", consumer_id=20, permits=n)
    _publish(core, topic, n)
    return lambda: subscription.remove_consumer(subscription.consumers[0])


def leaving_many(core: Core, n: int) -> Callable[[], object]:
    """Each of ``n`` consumers holds twenty entries; nobody can take what those that leave held."""
    _, subscription = _subscribed(core, 20 * n, SHARED, consumers=n)
    for consumer in subscription.consumers:
        consumer.permits = 0
    return lambda: subscription.remove_consumer(subscription.consumers[-1])


def idle_flow(core: Core, n: int) -> Callable[[], object]:
    """``n`` consumers that have got everything: one asks for more."""
    _, subscription = _subscribed(core, 20, SHARED, consumers=n)
    consumer = subscription.consumers[0]
    return lambda: subscription.flow(consumer, 1)


def passing_acknowledged(core: Core, n: int) -> Callable[[], object]:
    """Return the reconnection of a consumer to ``n`` entries acknowledged one by one behind an open one."""
    topic = core.topic()
    subscription = topic.create_subscription("s")
    _publish(core, topic, n)
    subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in range(1, n - 1)], None)

    def come_and_go() -> None:
        subscription.remove_consumer(core.consumer(subscription, EXCLUSIVE, Sink(), permits=10))

    return come_and_go


def publish_delayed(core: Core, n: int) -> Callable[[], object]:
    topic, _ = _delayed(core, n)
    producer = next(iter(topic.producers.values()))
    rng = random.Random(2)
    return lambda: core.publish(producer, deliver_at=core.clock.now_ms() + rng.randrange(_DAY_MS))


def _delayed(core: Core, n: int) -> tuple[Topic, Subscription]:
    topic = core.topic()
    subscription = topic.create_subscription("s")
    core.consumer(subscription, SHARED, Sink(), permits=1 << 30)
    rng = random.Random(3)
    _publish(core, topic, n, delay_ms=lambda _: _DAY_MS + rng.randrange(_DAY_MS))
    return topic, subscription


def reconnect_to_delayed(core: Core, n: int) -> Callable[[], object]:
    _, subscription = _delayed(core, n)

    def come_and_go() -> None:
        subscription.remove_consumer(subscription.consumers[0])
        core.consumer(subscription, SHARED, Sink(), permits=1 << 30)

    return come_and_go


def deliver_delayed(core: Core, n: int) -> Callable[[], object]:
    """Return a tick at which about one of ``n`` delayed messages is due."""
    topic, _ = _delayed(core, n)

    def until_the_next() -> None:
        core.clock.advance_ms(max(0, topic.timing.timed.next_due_ms - core.clock.now_ms()))
        core.broker.delayed_topics.run(core.clock.now_ms())

    return until_the_next


def tick_over_delayed_topics(core: Core, n: int) -> Callable[[], object]:
    """Return a tick with ``n`` topics in which something is delayed, and nothing due."""
    _topics(core, n, delayed=True)
    return core.broker.ticks.run


def idle_tick(core: Core, n: int) -> Callable[[], object]:
    _topics(core, n)
    return core.broker.ticks.run


def _topics(core: Core, n: int, *, delayed: bool = False) -> None:
    for number in range(n):
        topic = core.topic(f"t{number}")
        topic.create_subscription("s")
        if delayed:
            core.publish(core.producer(topic, Sink()), deliver_at=core.clock.now_ms() + _DAY_MS)
        if number % _GROUP == _GROUP - 1:
            core.commit()
    core.commit()
    for _ in range(3):
        core.advance(1_000)


def watched_topics(core: Core, n: int) -> Callable[[], object]:
    """Five hundred new topics among ``n``, with twenty watchers: one hash of the whole list."""
    _topics(core, n)
    names = core.broker.directory.list_topics("public/default")
    pattern = "persistent://public/default/.*"
    for _ in range(20):
        core.broker.watches.watch("public/default", TopicPattern(pattern), names, lambda new, gone, hashed: None)
    serial = iter(range(1 << 30))

    def change() -> None:
        for _ in range(500):
            core.broker.watches.created("public/default", f"persistent://public/default/new-{next(serial)}")
        core.broker.watches.run()

    return change


def policy_change(core: Core, n: int) -> Callable[[], object]:
    """The same topic's policies are set again, after ``n`` times."""
    name = TopicName.parse("t")
    core.topic()
    for number in range(n):
        core.broker.policies.set_topic(name, Policies(expires_ms=_DAY_MS + number))
    return lambda: core.broker.policies.set_topic(name, Policies(expires_ms=_DAY_MS))


def start(core: Core, n: int) -> Callable[[], object]:
    _topics(core, n)
    return core.restart


def start_with_delayed(core: Core, n: int) -> Callable[[], object]:
    _delayed(core, n)
    return core.restart


#: Step, what there is ``n`` of, ``n``, scene, how often it is timed.
STEPS: list[tuple[str, str, int, Scene, int]] = [
    ("cumulative acknowledgment of one more entry", "entries in flight", 5_000, cumulative_ack, 200),
    ("acknowledgment of one entry", "entries in flight", 5_000, single_ack, 200),
    ("negative acknowledgment of one entry", "entries in flight", 5_000, negative_ack, 200),
    ("a consumer leaves, with 20 entries", "entries at another consumer", 5_000, leaving, 20),
    ("a consumer leaves, with 20 entries", "consumers, none with permits", 100, leaving_many, 20),
    ("a consumer that has received everything asks for more", "consumers", 100, idle_flow, 200),
    ("a consumer reconnects behind acknowledged entries", "acknowledged one by one", 5_000, passing_acknowledged, 50),
    ("publish of a delayed message", "delayed messages", 10_000, publish_delayed, 500),
    ("the only consumer reconnects to delayed messages", "delayed messages", 10_000, reconnect_to_delayed, 50),
    ("tick with one delayed message due", "delayed messages", 10_000, deliver_delayed, 200),
    ("tick, nothing due", "topics with delayed messages", 500, tick_over_delayed_topics, 200),
    ("tick, nothing to do", "topics", 500, idle_tick, 200),
    ("20 watchers are notified of 500 new topics", "topics", 1_000, watched_topics, 5),
    ("change of a topic's policies", "changes before", 1_000, policy_change, 100),
    ("start", "topics", 500, start, 3),
    ("start", "delayed messages", 10_000, start_with_delayed, 3),
]


def measure(n: int, scene: Scene, times: int) -> float:
    """Return the median of a step's times, in seconds."""
    with _core() as core:
        step = scene(core, n)
        gc.collect()
        gc.disable()
        try:
            taken = []
            for _ in range(times):
                began = time.perf_counter()
                step()
                taken.append(time.perf_counter() - began)
        finally:
            gc.enable()
    return sorted(taken)[len(taken) // 2]


def delayed_memory(count: int) -> float:
    """Return the bytes that each of ``count`` delayed messages takes in a core, while a consumer waits for them."""
    with _core(tail_cache_bytes=1 << 20) as core:
        topic, subscription = _delayed(core, 1_000)
        gc.collect()
        before = _anonymous_bytes()
        rng = random.Random(4)
        _publish(core, topic, count, delay_ms=lambda _: _DAY_MS + rng.randrange(30 * _DAY_MS))
        gc.collect()
        used = _anonymous_bytes() - before
        assert subscription.acks.backlog_messages == count + 1_000
        assert len(topic.timing.timed.waiting) == count + 1_000
    return used / count


def _anonymous_bytes() -> int:
    """Return this process's memory without the pages of the store's files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not say RssAnon")


def _shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def main(
    only: Annotated[str, typer.Option(help="Steps whose name has this in it.")] = "",
    memory: Annotated[list[int] | None, typer.Option(help="Delayed messages to measure the memory of.")] = None,
) -> None:
    """Time each step at n and at ten times n, and print a table with the exponents."""
    for count in sorted(memory or []):
        print(f"{count:,} delayed messages: {delayed_memory(count):.1f} bytes each", flush=True)
    if memory and not only:
        return
    print("| step | n is the number of | n | at n | at 10 n | exponent |")
    print("|---|---|---|---|---|---|")
    for step, of, n, scene, times in STEPS:
        if only in step:
            row = Measured(step, of, n, measure(n, scene, times), measure(10 * n, scene, times))
            print(
                f"| {row.step} | {row.of} | {row.n:,} | {_shown(row.at_n)} | {_shown(row.at_ten)} "
                f"| {row.exponent:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
