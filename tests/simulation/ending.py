"""Checks at the end of every history, whatever happened in it.

The trouble stops. Then everything that is promised is delivered, what was acknowledged for sure is not, the counts are
those of a recount, everything can be acknowledged, expires, goes to the dead-letter topic once, and gives space back.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_broker.messaging.topic.topic import Topic

from . import acknowledging, administration, consuming, expectations, producing
from .model import SHARED, ConsumerModel, Message, SubscriptionModel, TopicModel, Violation
from .situations import CLOGGED

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

#: Bytes of all files when nothing is left, beside metadata and the segment that is open.
_DISK_LEFT = 400 * 1024
#: Time (ms) that suspended work may wait until it is tried again.
_PATIENCE_MS = 150_000


def end(world: World) -> None:
    """Check everything. Raises :class:`Violation`."""
    world.machine.disk.heal()
    world.machine.disk.crash_at = None
    world.machine.disk.capacity = 1 << 40
    for client in world.clients:
        if client.connection is not None:
            client.connection.cut()
        client.ended()
    expectations.note_expired(world)
    # Whatever was delayed while the clock was ahead is due.
    clock = world.machine.clock
    latest = max((message.deliver_at_ms for message in world.messages.messages), default=0)
    clock.offset_ms += max(0, latest - clock.now_ms())
    world.advance(2000)
    if world.rng.random() < 0.5:
        world.stop()
        world.start()
    world.advance(_PATIENCE_MS)
    expectations.note_expired(world)
    expectations.check_promised(world)
    _check_expired(world)
    _lift_policies(world)
    recount(world)
    backlogs = _drain(world, keep=True)
    recount(world)
    # Unreadable entries are delivered to nobody: expiry, or somebody's hand, takes it out of the backlog.
    unreadable = bool(world.damages) or any(message.hostile for message in world.messages.messages)
    way = world.rng.randrange(1 if unreadable else 0, 3)
    if way == 0:
        _drain(world, keep=False)
    elif way == 1:
        _clear(world)
    else:
        _expire_all(world, backlogs)
    _check_empty(world)
    recount(world)
    world.stop()
    world.start()
    world.advance(1000)
    _check_empty(world)
    _drain(world, keep=True)
    _check_space(world)
    _check_alive(world)


def _check_expired(world: World) -> None:
    """Check that messages that had to expire long ago are in no backlog. Raises :class:`Violation`."""
    now = world.machine.clock.now_ms()
    for topic in _living(world):
        stored = world.stored(topic)
        assert stored is not None
        if len(topic.policies) > 1 or getattr(topic.policies[0], "dead_letter_topic", None) in CLOGGED:
            # It is not known which policies apply, or there is nowhere to expire to.
            continue
        for message in topic.messages:
            own = -1 if message.batched else message.ttl_ms
            ttl = min((one for one in (own, topic.ttl_ms) if one >= 0), default=-1)
            if ttl < 0 or message.damaged or message.hostile or not message.positions:
                continue
            age = min(
                now - max(message.wall_ms, message.deliver_at_ms), world.machine.clock.passed_ms - message.passed_ms
            )
            if age < ttl + _PATIENCE_MS // 2:
                continue
            for position in message.positions:
                offset = stored.log.offset_of(*position)
                for model in topic.owed():
                    if offset is not None and not stored.subscriptions[model.name].acks.cursor.is_acked(offset):
                        raise Violation("expired and still there", f"{message!r} of {model!r}, {age} ms old")


def _lift_policies(world: World) -> None:
    """From here on nothing expires, is evicted or held back."""
    keep = _unlimited(retention=Retention(-1, -1))
    for topic in _living(world):
        administration.set_policies(world, topic, keep)
    world.advance(3000)


def _unlimited(*, retention: Retention) -> Policies:
    return Policies(
        message_ttl_ms=-1,
        retention=retention,
        delayed_delivery=True,
        max_unacked_per_consumer=1_000_000,
        max_unacked_per_subscription=1_000_000,
    )


def _living(world: World) -> list[TopicModel]:
    return [
        topic
        for topic in world.topics.values()
        if topic.confirmed and not topic.unknown and not topic.dead_letters and world.stored(topic) is not None
    ]


def recount(world: World) -> None:
    """Compare every backlog count with a count of what is stored and not acknowledged. Raises :class:`Violation`."""
    for name, topic in sorted(world.machine.broker.directory.topics.items()):
        if not isinstance(topic, Topic):
            continue
        for subscription in topic.subscriptions.values():
            cursor = subscription.acks.cursor
            messages = size = 0
            whole = True
            for offset in range(max(topic.log.first_offset, cursor.mark_delete + 1), topic.log.end_offset):
                if cursor.is_acked(offset):
                    continue
                try:
                    header = topic.log.header(offset)
                except Exception:
                    # Damaged, and named so: not to be counted from outside.
                    header = None
                if header is None:
                    whole = False
                    continue
                left = cursor.partial.get(offset)
                messages += header.messages if left is None else left.bit_count()
                size += header.size
            counted, backlog = (messages, size), (subscription.acks.backlog_messages, subscription.acks.backlog_bytes)
            if whole and not world.damages and counted != backlog:
                raise Violation(
                    "backlog count",
                    f"{name}/{subscription.name}: {backlog[0]} messages, {backlog[1]} bytes; counted {counted}",
                )
            if min(backlog) < 0:
                raise Violation("backlog count", f"{name}/{subscription.name}: {backlog}")


def _drain(world: World, *, keep: bool) -> dict[SubscriptionModel, dict[str, int]]:
    """Receive everything of every subscription; acknowledge it, with receipts, unless it is to be kept.

    Return, of each subscription, the letters there would be: message ids as dead letters name them.
    """
    client = world.clients[-1]
    client.connect()
    drained: dict[SubscriptionModel, dict[str, int]] = {}
    for topic in _living(world):
        for subscription in topic.owed():
            stored = world.stored(topic)
            assert stored is not None
            expected = stored.subscriptions[subscription.name].acks.backlog_messages
            for consumer in list(subscription.consumers):
                consumer.end()
            consumer = consuming.subscribe(world, client, topic, subscription.name, SHARED, 100_000)
            consumer.inbox.clear()
            received = _receive(world, client, consumer, keep, expected)
            drained[subscription] = {
                f"{position[0]}:{position[1]}" + (f":{index}" if message.batched else ""): 1
                for message, position, bits in received
                for index in range(message.count)
                if bits >> index & 1 and not message.hostile and not message.damaged
            }
            _check_received(world, subscription, received, expected)
            client.ended_consumer(consumer)
            world.advance(20)
    return drained


def _receive(
    world: World, client: SimulatedClient, consumer: ConsumerModel, keep: bool, expected: int
) -> list[tuple[Message, tuple[int, int], int]]:
    """Receive until nothing more comes; what is missing by the counts may be suspended for a while."""
    received: list[tuple[Message, tuple[int, int], int]] = []
    quiet = messages = 0
    while quiet < (10 if messages >= expected else 80):
        world.advance(50 if quiet < 10 else 1000)
        if consumer.closed:
            raise Violation("closed without reason", f"consumer of {consumer.subscription!r}")
        new = [one for one in consumer.inbox if one[0].number in consumer.hand]
        consumer.inbox.clear()
        quiet = 0 if new else quiet + 1
        received += new
        messages += sum(bits.bit_count() for _, _, bits in new)
        if new and not keep:
            acknowledging.acknowledge(world, client, consumer, [(*one, one[2]) for one in new], True)
    world.advance(200)
    return received


def _check_received(
    world: World, subscription: SubscriptionModel, received: list[tuple[Message, tuple[int, int], int]], expected: int
) -> None:
    got: dict[int, int] = {}
    places: dict[tuple[int, int], int] = {}
    for message, position, bits in received:
        if places.get(position, 0) & bits:
            raise Violation("delivered twice to one consumer", f"{message!r} of {subscription!r}")
        places[position] = places.get(position, 0) | bits
        got[message.number] = got.get(message.number, 0) | bits
    now = world.machine.clock.now_ms()
    # A message that may be expired is withheld at once and leaves the counts a moment later, with the clock in doubt
    # much later.
    waits = world.stepped
    for message in subscription.topic.messages:
        if message.deliver_at_ms > now and subscription.owes(message):
            # Delayed while the clock was ahead: its time comes when it comes.
            waits = True
            continue
        missing = subscription.owed_bits(message) & ~got.get(message.number, 0)
        if missing:
            raise Violation(
                "a message is lost",
                f"{message!r} of {subscription!r}, sent in {message.times_sent} times, bits {missing:b}",
            )
    messages = sum(bits.bit_count() for _, _, bits in received)
    if (
        messages != expected
        and not waits
        and not world.damages
        and not any(one.hostile for one in subscription.topic.messages)
    ):
        raise Violation("backlog count", f"{subscription!r} said {expected} messages and delivered {messages}")


def _clear(world: World) -> None:
    """Clear every backlog by hand; that must be answered."""
    for topic in _living(world):
        stored = world.stored(topic)
        assert stored is not None
        for subscription in topic.owed():
            outcome: list[object] = []
            subscription.excuse_all()
            stored.subscriptions[subscription.name].acks.clear_backlog(outcome.append)
            for _ in range(100):
                if outcome:
                    break
                world.advance(50)
            if not outcome:
                raise Violation("never answered", f"clearing {subscription!r}")


def _expire_all(world: World, backlogs: dict[SubscriptionModel, dict[str, int]]) -> None:
    """Let everything expire into a new dead-letter topic, which is small at times: one letter for each message."""
    letters = TopicModel("persistent://public/default/last-letters")
    letters.dead_letters = True
    world.topics[letters.name] = letters
    client = world.clients[-1]
    client.connect()
    audit = consuming.subscribe(world, client, letters, "audit", SHARED, 1_000_000)
    world.advance(200)
    if world.rng.random() < 0.5:
        small = BacklogQuota(8000, "producer_exception")
        administration.set_policies(world, letters, Policies(backlog_quota_size=small))
    expire = Policies(message_ttl_ms=500, retention=Retention(0, 0), dead_letter_topic=letters.name)
    for topic in _living(world):
        for subscription in topic.owed():
            subscription.excuse_all()
        administration.set_policies(world, topic, expire)
    for _ in range(400):
        world.advance(500)
        _take_letters(client, audit)
        if not any(
            stored.subscriptions[subscription.name].acks.backlog_messages
            for topic in _living(world)
            if (stored := world.stored(topic)) is not None
            for subscription in topic.owed()
        ):
            break
    taken = -1
    while taken != len(audit.letters):
        taken = len(audit.letters)
        world.advance(3000)
        _take_letters(client, audit)
    counted: dict[tuple[str, str], Counter[str]] = {}
    for letter in audit.letters:
        place = (letter.get("x-death-topic", ""), letter.get("x-death-subscription", ""))
        counted.setdefault(place, Counter())[letter.get("x-death-message-id", "")] += 1
    for subscription, expected in backlogs.items():
        found = counted.get((subscription.topic.name, subscription.name), Counter())
        twice = {place: number for place, number in found.items() if number > 1}
        missing = expected.keys() - found.keys()
        if twice or missing:
            raise Violation(
                "dead letters",
                f"{subscription!r}: {len(twice)} more than once, {len(missing)} of {len(expected)} missing",
            )
    client.ended_consumer(audit)


def _take_letters(client: SimulatedClient, audit: ConsumerModel) -> None:
    """Acknowledge the letters that came, so that there is room for more."""
    client.acknowledge_letters(audit)


def _check_empty(world: World) -> None:
    for topic in _living(world):
        stored = world.stored(topic)
        assert stored is not None
        for model in topic.owed():
            acks = stored.subscriptions[model.name].acks
            if acks.backlog_messages or acks.backlog_bytes:
                raise Violation(
                    "a backlog that nothing ends",
                    f"{model!r}: {acks.backlog_messages} messages, {acks.backlog_bytes} bytes",
                )


def _check_space(world: World) -> None:
    """Without retention everything goes, and the disk's space with it."""
    nothing = Policies(retention=Retention(0, 0), message_ttl_ms=1000)
    for name, stored in sorted(world.machine.broker.directory.topics.items()):
        if isinstance(stored, Topic):
            model = world.topics.get(name)
            if model is not None:
                administration.set_policies(world, model, nothing)
    world.advance(120_000)
    for topic in _living(world):
        stored_topic = world.stored(topic)
        assert stored_topic is not None
        compacted = "__compaction" in stored_topic.subscriptions
        if not compacted and stored_topic.log.first_offset != stored_topic.log.end_offset and not world.damages:
            raise Violation(
                "never trimmed", f"{topic.name} keeps {stored_topic.log.first_offset} to {stored_topic.log.end_offset}"
            )
    used = sum(
        world.machine.disk.file_bytes(path) for path, _ in world.machine.disk.walk() if "segments" in str(path.parent)
    )
    live = world.machine.program.store.segments.live_bytes() if world.machine.program is not None else 0
    if used > _DISK_LEFT + 2 * live and not world.damages:
        raise Violation("disk space is not given back", f"{used} bytes in segments, {live} live")


def _check_alive(world: World) -> None:
    """Everything still works: publish to each topic and receive it."""
    client = world.clients[-1]
    client.connect()
    rng = world.rng
    for number, topic in enumerate(_living(world)):
        administration.set_policies(world, topic, _unlimited(retention=Retention(0, 0)))
        world.advance(300)
        consumer = consuming.subscribe(world, client, topic, f"last-{number}", SHARED, 1000)
        world.advance(300)
        sent = len(topic.messages)
        producing.publish(world, client, topic, rng, 3)
        world.advance(8000)
        new = topic.messages[sent:]
        unreceipted = [message for message in new if not message.receipted and not message.refused]
        if unreceipted or consumer.closed or not consumer.open:
            raise Violation(
                "nothing goes on", f"{topic.name}: {unreceipted} without a receipt, consumer {consumer.open}"
            )
        missing = [
            message
            for message in new
            if message.receipted
            and not message.may_have_expired
            and message.number not in consumer.subscription.delivered
        ]
        if missing:
            raise Violation("nothing goes on", f"{topic.name}: {missing} not delivered")
        client.ended_consumer(consumer)
