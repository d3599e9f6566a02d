"""Expired messages on their way to the dead-letter topic, with headers that say what happened to them.

A copy is durable before its original is acknowledged, one by one, so a crash can double a dead letter and never lose
one, and a refusal doubles none. A letter that is refused by itself, as one that is larger than the target's backlog
quota, holds up no other; a topic that takes nothing is asked once in a run. Every message of a batch is a letter of its
own. A message that died in the target before is dropped: the loop ends there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog
from heliograph_api.protocol.frames import EntryError, parse_entry
from heliograph_api.values.names import InvalidName, TopicName

from heliograph_broker.messaging.acknowledgment.stored_topic import LetterBox
from heliograph_broker.messaging.base.containment import first_line
from heliograph_broker.messaging.base.errors import BrokerError, NotAllowed
from heliograph_broker.messaging.clients.client_info import ClientInfo
from heliograph_broker.messaging.clients.producer import Producer, PublishTarget, Receipt
from heliograph_broker.messaging.log.skipping import skip_entry
from heliograph_broker.messaging.messages.batches import (
    BatchError,
    build_frame,
    is_batch,
    open_batch_at_once,
    single_entry,
)
from heliograph_broker.messaging.messages.key_partition import partition_of
from heliograph_broker.messaging.messages.message_ttl import TTL_PROPERTY

if TYPE_CHECKING:
    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.messaging.log.subscribed_topic import LogSubscription
    from heliograph_broker.storage.base.entry import Entry

log = structlog.get_logger(__name__)

REASON = "x-death-reason"
TOPIC = "x-death-topic"
SUBSCRIPTION = "x-death-subscription"
TIME = "x-death-time"
COUNT = "x-death-count"
MESSAGE_ID = "x-death-message-id"
ORIGINAL_TTL = "x-original-message-ttl"
#: Every topic the message expired in, the first one first, as a JSON list.
TOPICS = "x-death-topics"
#: Properties that the broker sets; those of an earlier death are replaced.
HEADERS = (REASON, TOPIC, SUBSCRIPTION, TIME, COUNT, MESSAGE_ID, TOPICS, ORIGINAL_TTL, TTL_PROPERTY)

#: Told the entry and the messages of it (bits of batch indexes) that are done with.
Settle = Callable[["Entry", int], None]
#: Told, at the end, why not all could be stored, and whether the target takes nothing now.
Ended = Callable[[str | None, bool], None]
#: Answers to a publish that say something of the letter; any other says something of the topic.
_OF_ONE_LETTER = (NotAllowed,)


class _Letter(NamedTuple):
    """A message as it goes to the dead-letter topic, and what of which entry it stands for."""

    entry: Entry
    bits: int
    metadata: wire.MessageMetadata
    payload: bytes
    message_id: str


class LetterTopics:
    """The topics of the broker, as dead letters know them: where they go."""

    __slots__ = ()

    topics: Mapping[str, PublishTarget]

    def partitions_of(self, name: TopicName) -> int:
        """Return the number of partitions, 0 for a topic that is not partitioned or does not exist."""
        raise NotImplementedError


class DeadLetters(LetterBox):
    """Publishes letters as a producer of its own and hears of their receipts (a ``ProducerSink``)."""

    def __init__(self, name: str, topics: LetterTopics, create: Callable[[TopicName], PublishTarget]) -> None:
        """``name`` is the producer's; ``create`` creates a topic or raises :class:`BrokerError`."""
        self._name = name
        self._topics = topics
        self._create = create
        self._producers: dict[str, Producer] = {}
        #: by producer id: letters that wait for their receipts, in order
        self._waiting: dict[int, deque[tuple[_Flight, _Letter]]] = {}
        self._topic_names: dict[int, str] = {}
        self._sequence = 0
        self._publishing = False
        self._publishing_bytes = 0

    def forward(
        self,
        target: str,
        subscription: LogSubscription,
        expiring: list[tuple[Entry, int]],
        now_ms: int,
        settle: Settle,
        ended: Ended,
    ) -> None:
        """Publish the messages ``expiring`` names (entry, bits of batch indexes) as far as ``target`` takes them.

        ``settle`` is called for each one that is durable in ``target``, or must not go there again. ``ended`` follows
        when nothing is under way any more, with the reason if the others could not be stored.
        """
        flight = _Flight(self._topics, target, subscription, settle, ended)
        for entry, bits in expiring:
            try:
                letters = self._letters(target, subscription, entry, bits, now_ms)
            except EntryError as error:
                skip_entry(subscription, entry.offset, str(error))
                continue
            for letter in letters:
                self._send(target, flight, letter, now_ms)
                if flight.takes_nothing:
                    flight.published()
                    return
        flight.published()

    def _send(self, target: str, flight: _Flight, letter: _Letter, now_ms: int) -> None:
        if not _dies(letter.metadata, target, flight.subscription, letter.message_id, now_ms):
            flight.subscription.expiry.count_letters(loops=1)
            flight.settle(letter.entry, letter.bits)
            return
        self._publish(target, letter, now_ms, flight)

    def _letters(
        self, target: str, subscription: LogSubscription, entry: Entry, bits: int, now_ms: int
    ) -> list[_Letter]:
        """Return a letter for each message that ``bits`` names. Raises :class:`EntryError`."""
        parsed = parse_entry(entry.frame)
        metadata = parsed.metadata
        payload = entry.frame[parsed.payload_offset :]
        position = f"{entry.ledger_id}:{entry.entry_id}"
        if is_batch(metadata):
            try:
                return [
                    _Letter(entry, 1 << index, *single_entry(metadata, single), f"{position}:{index}")
                    for index, single in enumerate(open_batch_at_once(metadata, payload))
                    if bits >> index & 1
                ]
            except BatchError as error:
                # Encrypted, so that only its consumers can open it, or too large: the batch goes as it came.
                log.debug("batch is dead-lettered unopened", topic=str(subscription.topic.name), reason=str(error))
        return [_Letter(entry, bits, metadata, payload, position)]

    def _publish(self, target: str, letter: _Letter, now_ms: int, flight: _Flight) -> None:
        """Publish one letter, unless its topic has refused one before it as it would any other."""
        metadata = letter.metadata
        try:
            name = TopicName.parse(target)
            partitions = self._topics.partitions_of(name)
            if partitions:
                name = self._partition(name, metadata, partitions, flight)
            if str(name) in flight.closed:
                return
            topic = self._topics.topics.get(str(name))
            if topic is None:
                topic = self._create(name)
        except (BrokerError, InvalidName) as error:
            flight.refused(f"dead-letter topic {target}: {error}", target)
            return
        producer = self._producers.get(str(name))
        if producer is None or producer.topic is not topic:
            producer = Producer(topic, self, len(self._waiting), self._name, client=ClientInfo(connected_ms=now_ms))
            self._producers[str(name)] = producer
            self._waiting[producer.producer_id] = deque()
            self._topic_names[producer.producer_id] = str(name)
        self._sequence += 1
        metadata.producer_name = self._name
        metadata.publish_time = now_ms
        metadata.sequence_id = self._sequence
        frame = build_frame(metadata, letter.payload)
        never = topic.never_fits(len(frame))
        if never is not None:
            # Not asked: the quota would expect a client to come back with it.
            flight.refused(never)
            topic.wait_for_room(flight.subscription, flight.subscription.expiry.letters_have_room, len(frame))
            return
        self._publishing_bytes = len(frame)
        waiting = self._waiting[producer.producer_id]
        waiting.append((flight, letter))
        flight.under_way += 1
        self._publishing = True
        try:
            topic.publish(producer, self._sequence, 0, metadata, frame)
        except Exception as error:
            # The topic has taken nothing: no receipt will come.
            log.exception("a dead letter could not be published", topic=str(name), message=letter.message_id)
            waiting.pop()
            flight.under_way -= 1
            flight.refused(first_line(error))
        finally:
            self._publishing = False

    def _partition(
        self, name: TopicName, metadata: wire.MessageMetadata, partitions: int, flight: _Flight
    ) -> TopicName:
        """Return the partition for a letter; any that takes letters will do for one without a key."""
        chosen = name.with_partition(partition_of(metadata, partitions, self._sequence))
        if str(chosen) in flight.closed:
            for turn in range(self._sequence + 1, self._sequence + partitions):
                other = name.with_partition(partition_of(metadata, partitions, turn))
                if other == chosen:
                    break
                if str(other) not in flight.closed:
                    return other
        return chosen

    # -- producer's sink -------------------------------------------------------------------------------------

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        waiting = self._waiting[producer.producer_id]
        flights: dict[_Flight, None] = {}
        for _ in receipts:
            flight, letter = waiting.popleft()
            flight.stored(letter)
            flights[flight] = None
        for flight in flights:
            flight.settled()

    def send_publish_error(self, producer_id: int, sequence_id: int, error: BrokerError) -> None:
        waiting = self._waiting[producer_id]
        flight, _ = waiting.pop() if self._publishing else waiting.popleft()
        flight.under_way -= 1
        refused_by = None if isinstance(error, _OF_ONE_LETTER) else self._topic_names[producer_id]
        flight.refused(f"the dead-letter topic refused it: {error}", refused_by)
        flight.settled()

    def hold_publishing(self, reason: object, ms: int) -> None:
        """Letters count for a publish rate and are not held back by it: what expired must not wait."""

    def release_publishing(self, reason: object) -> None:
        """Nothing was held."""

    def send_producer_ready(self, producer: Producer) -> None:
        """Letters do not ask for exclusive access."""

    def send_close_producer(self, producer: Producer) -> None:
        """Refuse the letter under way: the topic is over its backlog quota; earlier letters still get receipts."""
        if self._publishing:
            flight, _ = self._waiting[producer.producer_id].pop()
            flight.under_way -= 1
            name = str(producer.topic.name)
            flight.refused(f"the dead-letter topic {name} is over its backlog quota", name)
            waiter = flight.subscription
            producer.topic.wait_for_room(waiter, waiter.expiry.letters_have_room, self._publishing_bytes)


class _Flight:
    """The letters of one run, some of them on their way to the disk."""

    __slots__ = ("_ended", "_published", "_target", "_topics", "closed", "error", "settle", "subscription", "under_way")

    def __init__(
        self, topics: LetterTopics, target: str, subscription: LogSubscription, settle: Settle, ended: Ended
    ) -> None:
        self._topics = topics
        self._target = target
        #: Topics (the target or partitions of it) that refused a letter as they would any other.
        self.closed: set[str] = set()
        self.subscription = subscription
        self.settle = settle
        self._ended = ended
        #: Why the first letter that was refused was refused.
        self.error: str | None = None
        #: Letters whose receipts have not come yet, and whether there will be more.
        self.under_way = 0
        self._published = False

    def stored(self, letter: _Letter) -> None:
        """A letter is durable: its original is settled. :meth:`settled` follows."""
        self.under_way -= 1
        self.subscription.expiry.count_letters(stored=1)
        try:
            self.settle(letter.entry, letter.bits)
        except Exception as error:
            self.refused(first_line(error))

    def refused(self, error: str, topic: str | None = None) -> None:
        """A letter is not stored. With ``topic``, that topic takes no others either."""
        self.subscription.expiry.count_letters(refused=1)
        if self.error is None:
            self.error = error
        if topic is not None:
            self.closed.add(topic)

    @property
    def takes_nothing(self) -> bool:
        """Whether the target, or each partition of it, has refused all letters."""
        if not self.closed:
            return False
        try:
            name = TopicName.parse(self._target)
            partitions = self._topics.partitions_of(name)
        except InvalidName:
            return True
        return not partitions or self._target in self.closed or len(self.closed) >= partitions

    def published(self) -> None:
        """No more letters come."""
        self._published = True
        self.settled()

    def settled(self) -> None:
        """Check whether all letters are stored or refused."""
        if self._published and not self.under_way:
            self._published = False
            self._ended(self.error, self.takes_nothing)
        elif not self.subscription.closed:
            self.subscription.topic.cursor_moved(self.subscription, None)


def _dies(
    metadata: wire.MessageMetadata, target: str, subscription: LogSubscription, message_id: str, now_ms: int
) -> bool:
    """Turn a message's metadata into its letter's; False if it was in ``target`` before and must not go again."""
    properties: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    for pair in metadata.properties:
        if pair.key in HEADERS:
            properties[pair.key] = pair.value
        else:
            kept.append((pair.key, pair.value))
    if TTL_PROPERTY in properties:
        # In the dead-letter topic it would let the letter expire at once; an earlier one tells nothing any more.
        properties[ORIGINAL_TTL] = properties[TTL_PROPERTY]
    if ORIGINAL_TTL in properties:
        kept.append((ORIGINAL_TTL, properties[ORIGINAL_TTL]))
    here = str(subscription.topic.name.base)
    passed = _topics_in(properties.get(TOPICS, "[]"))
    if here not in passed:
        passed.append(here)
    if str(TopicName.parse(target).base) in passed:
        return False
    count = properties.get(COUNT, "")
    died = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
    kept += [
        (REASON, "expired"),
        (TOPIC, str(subscription.topic.name)),
        (SUBSCRIPTION, subscription.name),
        (TIME, str(now_ms)),
        (COUNT, str(died + 1)),
        (MESSAGE_ID, message_id),
        (TOPICS, msgspec.json.encode(passed).decode()),
    ]
    del metadata.properties[:]
    for key, value in kept:
        metadata.properties.add(key=key, value=value)
    metadata.ClearField("deliver_at_time")
    metadata.ClearField("highest_sequence_id")
    return True


def _topics_in(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        # A client wrote the property: it is no history of ours.
        return []
