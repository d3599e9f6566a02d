"""Facts sent and promised: messages, subscriptions and deliveries as somebody outside the broker knows them.

Everything is recorded in the order in which the broker writes to its connections. A promise counts from the moment the
broker wrote it (a receipt, SUCCESS, a confirmed change); what a client asked for may have happened from the moment it
was sent. Anything in between is unknown, and nothing is claimed of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from heliograph_api.protocol import wire_pb2 as wire

EXCLUSIVE = wire.CommandSubscribe.Exclusive
SHARED = wire.CommandSubscribe.Shared
FAILOVER = wire.CommandSubscribe.Failover
KEY_SHARED = wire.CommandSubscribe.Key_Shared
TYPES = (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)

Position = tuple[int, int]
#: A ledger or entry id that stands for none.
NOWHERE = (1 << 64) - 1
DEAD_LETTERS = "persistent://public/default/dead-letters"


class Violation(Exception):
    """A promise is broken. ``kind`` names which, the same for every run that breaks it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class ChunkedMessage:
    """A message that a client sent in chunks, each an entry of its own; it is there once the last of them is."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.chunks: list[Message] = []

    def completed_by(self, message: Message) -> bool:
        """Whether it is the last chunk."""
        return len(self.chunks) == self.count and self.chunks[-1] is message


class Message:
    """One entry: a message, or a batch of ``count``. Bits of a batch are counted from its first message."""

    def __init__(
        self,
        number: int,
        topic: TopicModel,
        frame: bytes,
        sequence_id: int,
        *,
        count: int = 1,
        batched: bool = False,
        key: str | None = None,
        deliver_at_ms: int = 0,
        ttl_ms: int = -1,
        hostile: bool = False,
        chunked: ChunkedMessage | None = None,
    ) -> None:
        self.number = number
        self.topic = topic
        self.frame = frame
        self.sequence_id = sequence_id
        self.count = count
        self.batched = batched
        self.key = key
        self.deliver_at_ms = deliver_at_ms
        self.ttl_ms = ttl_ms
        #: Whether a broker may refuse it, set it aside, or find that it cannot be read.
        self.hostile = hostile
        #: The message that it is a chunk of.
        self.chunked = chunked
        if chunked is not None:
            chunked.chunks.append(self)
        self.times_sent = 0
        self.wall_ms = self.passed_ms = 0
        #: The earliest time that the broker may have taken it for when the message came.
        self.earliest_ms = 0
        self.receipted = False
        self.refused = False
        self.positions: set[Position] = set()
        #: Whether its time to live may have passed at some moment, or somebody let it expire or evicted it.
        self.may_have_expired = False
        #: Whether a damage of the disk may have hit it.
        self.damaged = False

    @property
    def whole(self) -> int:
        return (1 << self.count) - 1

    @property
    def position(self) -> Position | None:
        return min(self.positions, default=None)

    def __repr__(self) -> str:
        where = ",".join(f"{ledger & 0xFFFFFF}:{entry}" for ledger, entry in sorted(self.positions)) or "?"
        output = [f"x{self.count}"] if self.count > 1 else []
        output += ["delayed"] if self.deliver_at_ms else []
        if self.chunked is not None:
            output.append(f"chunk {self.chunked.chunks.index(self)} of {self.chunked.count}")
        output += [f"ttl {self.ttl_ms}"] if self.ttl_ms >= 0 else []
        return " ".join([f"#{self.number}@{where}", *output])


class TopicModel:
    """One topic from its creation to its deletion."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.confirmed = False
        #: Nothing is claimed of it any more: nobody knows whether its deletion happened.
        self.unknown = False
        self.messages: list[Message] = []
        self.subscriptions: dict[str, SubscriptionModel] = {}
        #: The settings that may apply now, newest last; the first one is confirmed.
        self.policies: list[object] = [None]
        self.ttl_ms = -1
        #: Whether a quota may acknowledge its oldest messages.
        self.evicts = False
        #: Whether deduplication was on before the first message and ever since.
        self.deduplicated = False
        self.dead_letters = False

    def owed(self) -> Iterator[SubscriptionModel]:
        """Yield the subscriptions that are promised to be there."""
        for subscription in self.subscriptions.values():
            if subscription.confirmed and not subscription.unknown:
                yield subscription


class SubscriptionModel:
    """A durable subscription, or a reader's own."""

    def __init__(self, topic: TopicModel, name: str, *, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.durable = durable
        self.confirmed = False
        self.unknown = False
        #: Messages with a number above this are owed to it.
        self.since = 1 << 60
        #: Grows when the cursor is moved by hand.
        self.generation = 0
        self.consumers: list[ConsumerModel] = []
        self.excused: set[int] = set()
        #: Message -> bits that somebody acknowledged, and those of them that are confirmed.
        self.maybe_acked: dict[int, int] = {}
        self.surely_acked: dict[int, int] = {}
        self.maybe_up_to: Position = (-1, -1)
        self.surely_up_to: Position = (-1, -1)
        self.delivered: set[int] = set()

    def owes(self, message: Message) -> bool:
        """Whether the subscription must still deliver something of this message."""
        return self.owed_bits(message) != 0

    def owed_bits(self, message: Message) -> int:
        """Return the bits that must still be delivered."""
        if (
            not self.durable
            or message.number <= self.since
            or not message.receipted
            or message.hostile
            or message.damaged
            or message.may_have_expired
            or message.number in self.excused
        ):
            return 0
        if any(position <= self.maybe_up_to for position in message.positions):
            return 0
        return message.whole & ~self.maybe_acked.get(message.number, 0)

    def settled_bits(self, message: Message) -> int:
        """Return the bits that must not be delivered any more."""
        if any(position <= self.surely_up_to for position in message.positions):
            return message.whole
        if not self.durable:
            # A reader whose place was trimmed away forgets what it acknowledged out of order.
            return 0
        return self.surely_acked.get(message.number, 0)

    def excuse_all(self) -> None:
        """Claim nothing of what was sent so far."""
        self.excused.update(message.number for message in self.topic.messages)

    def moved_by_hand(self) -> None:
        """A seek: what was acknowledged may come again, what was not may never come."""
        self.generation += 1
        self.excuse_all()
        self.surely_acked.clear()
        self.surely_up_to = (-1, -1)
        for consumer in self.consumers:
            consumer.reset()

    def __repr__(self) -> str:
        return f"{self.topic.name}/{self.name}"


class ConsumerModel:
    """A consumer as its client knows it."""

    def __init__(self, number: int, client: int, subscription: SubscriptionModel, kind: int) -> None:
        self.number = number
        self.client = client
        self.subscription = subscription
        self.kind = kind
        self.open = False
        self.closed = False
        self.epoch = 0
        #: Delivered and neither acknowledged nor given back: message -> the bits that came.
        self.hand: dict[int, int] = {}
        #: The part of it that the client has read, in order.
        self.inbox: list[tuple[Message, Position, int]] = []
        self.given_back: set[int] = set()
        self.last: Position = (-1, -1)
        self.last_released: tuple[int, Position] = (-1, (-1, -1))
        self.compacted = False
        self.active = True
        #: For dead-letter topics: what it read.
        self.letters: list[dict[str, str]] = []
        self.unacknowledged: list[Position] = []

    def reset(self) -> None:
        """Delivered messages count as not delivered."""
        self.hand.clear()
        self.inbox.clear()
        self.given_back.clear()
        self.last = (-1, -1)
        self.last_released = (-1, (-1, -1))

    def end(self) -> None:
        """It is closed, or its connection is gone."""
        self.reset()
        self.closed = True
        if self in self.subscription.consumers:
            self.subscription.consumers.remove(self)


class Ledger:
    """Everything that was published, by number, by its bytes, and by its place."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.by_frame: dict[bytes, Message] = {}
        self.by_position: dict[Position, Message] = {}
        self.by_sequence: dict[tuple[int, str, int], Position] = {}

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self.by_frame[message.frame] = message
        message.topic.messages.append(message)

    def stored_at(self, message: Message, position: Position, producer: str) -> None:
        """A message was found at a place. Raises :class:`Violation` if that cannot be."""
        other = self.by_position.setdefault(position, message)
        if other is not message:
            raise Violation("place taken twice", f"{position} is {other!r} and {message!r}")
        message.positions.add(position)
        # A chunked message is known by the sequence id of its last chunk.
        once = message.topic.deduplicated and (message.chunked is None or message.chunked.completed_by(message))
        if len(message.positions) > (1 if once else max(1, message.times_sent)):
            raise Violation("duplicate", f"{message!r} was sent {message.times_sent} times, in {message.topic.name}")
