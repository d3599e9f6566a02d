"""Situations that come about rarely by chance, brought about on purpose; each is one operation of a history.

They use topics of their own, so that what others do there does not prevent them, and claim nothing that the rest of
the checks does not: what is special is only how they get there. Where they check something, they say so.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_broker.messaging.topic.topic import Topic

from . import acknowledging, administration, consuming, damage, expectations, hostile, producing
from .action import Action
from .disk import Crashed
from .model import EXCLUSIVE, SHARED, ConsumerModel, TopicModel, Violation

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

#: A dead-letter topic that cannot be made: its namespace is missing.
UNREACHABLE = "persistent://public/missing/letters"
_LETTERS = "persistent://public/default/small-letters"
#: Dead-letter topics that nothing may get into: what goes there may wait forever.
CLOGGED = (UNREACHABLE, _LETTERS)
#: Bytes of segments beside live ones: the open one, one that leaves, and copies.
_BURST_BYTES = 256 * 1024
_BURSTS = 60
#: Nothing expires, waits, is trimmed or held back.
_KEEP = Policies(
    message_ttl_ms=-1,
    retention=Retention(-1, -1),
    delayed_delivery=False,
    max_unacked_per_consumer=1_000_000,
    max_unacked_per_subscription=1_000_000,
)
_HOUR_MS = 3_600_000


def trim_race(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Acks without receipt, trimmed at once, a record of the topic written, and a kill before the acks' own flush."""
    topic = world.topic(10 + number)
    consumer = consuming.own_consumer(world, client, topic, SHARED, 1000)
    if consumer is None:
        return
    administration.set_policies(world, topic, Policies(retention=Retention(0, 0)))
    producing.publish(world, client, topic, rng, 9)
    world.advance(400)
    _acknowledge(world, client, consumer, 1)
    world.advance(rng.choice([1, 5, 20]))
    _acknowledge(world, client, consumer, 1000)
    world.advance(rng.choice([30, 55, 75]))
    administration.set_policies(world, topic, Policies(retention=Retention(0, 0), message_ttl_ms=600_000))
    for _ in range(rng.choice([20, 40])):
        world.machine.loop.step()
    raise Crashed


def withhold(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Messages expire, cannot go to the dead-letter topic, and live on with the next policies: in order."""
    topic = world.topic(20 + number)
    consumer = consuming.own_consumer(world, client, topic, EXCLUSIVE, 0)
    if consumer is None:
        return
    administration.set_policies(world, topic, Policies(message_ttl_ms=300, dead_letter_topic=UNREACHABLE))
    producing.publish(world, client, topic, rng, 6)
    world.advance(700)
    consuming.flow(world, client, consumer, 1000)
    world.advance(100)
    administration.set_policies(world, topic, Policies())
    world.advance(200)


def small_letters(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Messages expire into a dead-letter topic that is full again and again. Each must come once."""
    topic = world.topic(30 + number)
    letters = world.topics.get(_LETTERS)
    if letters is None:
        letters = world.topics[_LETTERS] = TopicModel(_LETTERS)
        letters.dead_letters = True
    crashes = world.crashes
    audit = consuming.own_consumer(world, client, letters, SHARED, 100_000)
    consumer = consuming.own_consumer(world, client, topic, SHARED, 0)
    if audit is None or consumer is None:
        return
    administration.set_policies(world, letters, Policies(backlog_quota_size=BacklogQuota(2000, "producer_exception")))
    producing.publish(world, client, topic, rng, 12)
    world.advance(300)
    administration.set_policies(world, topic, Policies(message_ttl_ms=300, dead_letter_topic=letters.name))
    for _ in range(15):
        world.advance(1000)
        client.acknowledge_letters(audit)
    if crashes or world.machine.disk.failed:
        # A crash may double a letter, or bring back one that was acknowledged.
        return
    counted = Counter(
        (letter.get("x-death-topic"), letter.get("x-death-subscription"), letter.get("x-death-message-id"))
        for letter in audit.letters
    )
    twice = [place for place, number in counted.items() if number > 1]
    if twice:
        raise Violation("dead letters", f"{len(twice)} of {len(counted)} came more than once")
    administration.set_policies(world, topic, Policies())
    client.ended_consumer(audit)


def bursts(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """A queue that fills and is drained every second, for a minute. The segments must not grow meanwhile."""
    topic = world.topic(40 + number)
    consumer = consuming.own_consumer(world, client, topic, SHARED, 100_000)
    if consumer is None:
        return
    # Without delays, and as much at a time as there is: what waits would keep all behind it.
    wanted = Policies(
        retention=Retention(0, 0),
        delayed_delivery=False,
        max_unacked_per_consumer=1_000_000,
        max_unacked_per_subscription=1_000_000,
    )
    administration.set_policies(world, topic, wanted)
    for _ in range(_BURSTS):
        producing.publish(world, client, topic, rng, 16)
        world.advance(300)
        _acknowledge(world, client, consumer, 1000)
        world.advance(700)
        if world.machine.disk.failed or consumer.closed or world.machine.program is None:
            return
        disk = world.machine.disk
        used = sum(disk.file_bytes(path) for path, _ in disk.walk() if path.parent.name == "segments")
        live = world.machine.program.store.segments.live_bytes()
        if used > _BURST_BYTES + 3 * live:
            raise Violation(
                "disk space is not given back", f"{used} bytes in segments, {live} live, in the midst of bursts"
            )


def clock_steps(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """The wall clock is set, back or ahead and back, while messages come that expire soon. They must expire soon."""
    topic = world.topic(50 + number)
    if consuming.own_consumer(world, client, topic, SHARED, 0) is None:
        return
    administration.set_policies(world, topic, Policies(message_ttl_ms=1000))
    clock = world.machine.clock
    before, sent = clock.offset_ms, len(topic.messages)
    for step_ms in rng.choice([(-_HOUR_MS,), (365 * 24 * _HOUR_MS, 0), (_HOUR_MS, 0)]):
        expectations.set_wall_clock(world, before + step_ms)
        producing.publish(world, client, topic, rng, 2)
        world.advance(200)
    world.advance(90_000)
    stored = world.stored(topic)
    disk = world.machine.disk
    if stored is not None and not disk.failed and not disk.reads_failed:
        for message in topic.messages[sent:]:
            offset = None if message.position is None else stored.log.offset_of(*message.position)
            if offset is None or message.deliver_at_ms:
                continue
            for subscription in stored.subscriptions.values():
                if subscription.durable and not subscription.acks.cursor.is_acked(offset):
                    raise Violation("expired and still there", f"{message!r}, 90 s after the clock was set")
    expectations.set_wall_clock(world, before)


def poisoned_expiry(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Entries that cannot be read are among those that expire. The others must expire all the same."""
    topic = world.topic(60 + number)
    if consuming.own_consumer(world, client, topic, SHARED, 0) is None:
        return
    for _ in range(3):
        hostile.smuggle(world, topic, rng)
    world.advance(600)
    producing.publish(world, client, topic, rng, 2)
    administration.set_policies(
        world, topic, Policies(message_ttl_ms=300, dead_letter_topic=rng.choice([None, _LETTERS]))
    )
    world.advance(2000)


def raising(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """Let the broker's work for one topic raise for a while. Everything else must go on."""
    stored = world.stored(world.topic(number))
    if stored is None:
        return
    until_ms = world.machine.clock.passed_ms + rng.choice([100, 1000, 5000])

    def raises(topic: Topic, now_ms: int) -> int | None:
        if topic is stored and world.machine.clock.passed_ms < until_ms:
            raise RuntimeError("raised by the simulation")
        return None

    housekeeping = world.machine.broker.housekeeping
    housekeeping._tasks.insert(rng.randrange(len(housekeeping._tasks) + 1), raises)
    housekeeping.changed(stored)
    world.advance(1200)


def lost_entries(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """A bit flips in what a consumer still has to read, or its segment is lost. The rest comes, and all is settled."""
    topic, other = world.topic(70 + number), world.topic(80 + number)
    if consuming.own_consumer(world, client, topic, SHARED, 0) is None or (stored := world.stored(topic)) is None:
        return
    administration.set_policies(world, topic, _KEEP)
    producing.publish(world, client, topic, rng, 12)
    world.advance(300)
    store = world.store
    while True:
        holders = [segment for ledger in stored.log.ledgers for segment in store.segments.holders(ledger.ledger_id)]
        if not holders or world.machine.disk.failed or len(other.messages) > 400:
            return
        if holders[-1] is not store.segments.open_segment:
            break
        # The end of the topic's open ledger is to be in a segment that is closed.
        producing.publish(world, client, other, rng, 16)
        world.advance(300)
    path = rng.choice(holders).path
    world.stop()
    loses = rng.random() < 0.5
    if not world.machine.disk.exists(path):
        world.start()
        return
    if loses:
        damage.lose_segment(world, path)
    else:
        damage.flip_bit(world, path.name, rng.choice(stored.log.ledgers).ledger_id.to_bytes(8, "big"))
    world.start()
    if loses and not world.store.segments.missing.entries():
        raise Violation("lost and not noticed", f"{path.name}, with entries of {topic.name}")
    _read_around(world, client, topic, rng)


def _read_around(world: World, client: SimulatedClient, topic: TopicModel, rng: random.Random) -> None:
    """Read and acknowledge a topic that has lost entries: what is readable is delivered, what is not is settled."""
    consumer = consuming.own_consumer(world, client, topic, SHARED, 100_000)
    stored = world.stored(topic)
    if consumer is None or stored is None or stored.policies != _KEEP:
        return
    producing.publish(world, client, topic, rng, 3)
    world.advance(5000)
    if consumer.closed or world.machine.disk.failed:
        return
    model = consumer.subscription
    damage.note_damaged(world)
    expectations.note_expired(world)
    missing = [each for each in topic.messages if model.owes(each) and each.number not in model.delivered]
    if missing:
        raise Violation("lost entries keep others", f"{missing} of {model!r} not delivered")
    _acknowledge(world, client, consumer, 1000)
    world.advance(5000)
    left = stored.subscriptions[model.name].acks.backlog_messages
    if left and not consumer.closed and not world.machine.disk.failed:
        raise Violation("lost entries stay in the backlog", f"{left} messages of {model!r}")


def failed_reservation(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """The metadata fails just when ledger ids are reserved, and a crash follows. No id may be given out twice."""
    before, after = world.topic(90 + number), world.topic(100 + number)
    if consuming.own_consumer(world, client, before, SHARED, 1000) is None:
        return
    client.open_producer(before)
    store = world.store
    while store.ledger_ids.next() < store.ledger_ids._reserved:
        """Use up what is reserved."""
    world.advance(150)
    world.machine.disk.fail(frozenset({"commit"}), errno.ENOSPC, 1, "metadata")
    producing.publish(world, client, before, rng, 1)
    world.advance(rng.choice([700, 1500]))
    for topic in (after, before):
        world.recover()
        if not client.connect():
            return
        producing.publish(world, client, topic, rng, 2)
        world.advance(300)
    consuming.own_consumer(world, client, before, SHARED, 1000)


SITUATIONS: dict[str, Action] = {
    "trim_race": trim_race,
    "withhold": withhold,
    "small_letters": small_letters,
    "bursts": bursts,
    "clock_steps": clock_steps,
    "poisoned_expiry": poisoned_expiry,
    "raising": raising,
    "lost_entries": lost_entries,
    "failed_reservation": failed_reservation,
}


def _acknowledge(world: World, client: SimulatedClient, consumer: ConsumerModel, count: int) -> None:
    """Acknowledge the first ``count`` entries the consumer holds, without receipts."""
    held = [each for each in consumer.inbox if each[0].number in consumer.hand][:count]
    acknowledging.acknowledge(world, client, consumer, [(*each, each[2]) for each in held], False)
