"""A run: messages are published, the jobs that write them are killed now and then, and every message must be there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pulsar

from tests.support.clients import RunningBroker, connect, create_partitions, fresh_name, rest

from .tally import Tally, message
from .targets import TARGETS, Source, Target

PARTITIONS = 2
#: A share of the kills comes before the first commit, which is where a batch is repeated.
EARLY = 0.3
#: Time after the first commit in which the others come (s).
WINDOW_S = 2.5
#: About what a message takes of an entry.
_MESSAGE_BYTES = 40
#: Micro-batches in which a job reads what is published between two of its kills.
_TRIGGERS = 10


@dataclass(frozen=True)
class Finished:
    """The targets after a run, and how often a kill met a job at work."""

    targets: dict[str, Target]
    #: How many kills came while their job had something to write.
    hits: int


@dataclass(frozen=True)
class Plan:
    """The size of a run; ``kills`` are those of all targets together, in turn."""

    messages: int
    kills: int
    seed: int
    targets: Sequence[str] = tuple(TARGETS)


def run(broker: RunningBroker, directory: Path, plan: Plan, say: Callable[[str], None]) -> Finished:
    """Publish a share of the messages before each kill, and let the jobs finish.

    Raises :class:`~.killed.JobFailed`.
    """
    began = time.monotonic()
    name = fresh_name("kills")
    create_partitions(broker, name, PARTITIONS)
    # What no job has subscribed to yet has to stay, too.
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", "namespaces/public/default/retention", forever)
    trigger_messages = max(100, plan.messages * len(plan.targets) // plan.kills // _TRIGGERS)
    source = Source(broker, name, PARTITIONS, trigger_messages * _MESSAGE_BYTES)
    targets = {each: TARGETS[each](source, directory) for each in plan.targets}
    moments = Random(plan.seed)
    published, hits = 0, 0
    for number in range(plan.kills):
        until = (number + 1) * plan.messages // plan.kills
        _publish(source, range(published, until), trigger_messages)
        published = until
        each = plan.targets[number % len(plan.targets)]
        moment = moments.random() if moments.random() < EARLY else 1 + moments.random()
        when = targets[each].job.run_and_kill(moment, WINDOW_S)
        hits += when is not None
        passed = time.monotonic() - began
        say(f"{passed:.0f} s: kill {number + 1} of {plan.kills}, {published:,} messages: {each}, {when or 'had ended'}")
    for each, target in targets.items():
        target.finish()
        say(f"{time.monotonic() - began:.0f} s: {each} has finished")
    return Finished(targets, hits)


def _publish(source: Source, numbers: range, trigger_messages: int) -> None:
    """Publish messages and wait for their receipts."""
    refused: list[Any] = []

    def received(result: Any, _id: Any) -> None:
        if result != pulsar.Result.Ok:
            refused.append(result)

    client = connect(source.broker.service_url)
    # A trigger is cut between entries.
    batched = max(2, min(1000, trigger_messages // 20))
    producer = client.create_producer(
        source.name, batching_enabled=True, batching_max_messages=batched, block_if_queue_full=True
    )
    for number in numbers:
        key, value = message(number)
        producer.send_async(value, received, partition_key=key)
    producer.flush()
    client.close()
    assert not refused, refused[:3]


def differences(target: Target, messages: int) -> list[str]:
    """Return how a target is not as it should be, a line each; nothing if it has every message once."""
    tally = Tally(messages)
    tally.add(target.rows())
    return tally.differences() + target.differences()
