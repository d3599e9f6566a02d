"""Expired messages on their way to the dead-letter topic, with headers that say what happened to them.

A copy is durable before the original is acknowledged, so a crash can double a dead letter and never lose one. Every
message of a batch is a letter of its own. A message that died in the target before is dropped: the loop ends there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import parse_entry
from heliograph_broker.resources.names import InvalidName, TopicName

from .batches import BatchError, build_frame, is_batch, open_batch, single_entry
from .errors import BrokerError
from .expiry import TTL_PROPERTY
from .key_selector import sticky_hash
from .producer import Producer, Receipt

if TYPE_CHECKING:
    from heliograph_broker.storage.entry import Entry

    from .broker import Broker
    from .subscription import Subscription

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
#: What the broker says of a message; what an earlier death said is replaced.
HEADERS = (REASON, TOPIC, SUBSCRIPTION, TIME, COUNT, MESSAGE_ID, TOPICS, ORIGINAL_TTL, TTL_PROPERTY)

Forwarded = Callable[[str | None], None]


class DeadLetters:
    """Publishes letters as a producer of its own and hears of their receipts (a ``ProducerSink``)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._producers: dict[str, Producer] = {}
        #: by producer id: what waits for its receipt, in order
        self._waiting: dict[int, deque[_Flight]] = {}
        self._name = f"{broker.config.cluster_name}-dead-letters-{broker.rng.getrandbits(32):08x}"
        self._sequence = 0
        self._publishing = False

    def forward(
        self,
        target: str,
        subscription: Subscription,
        expiring: list[tuple[Entry, int]],
        now_ms: int,
        forwarded: Forwarded,
    ) -> None:
        """Publish the messages ``expiring`` names (entry, bits of batch indexes); call back when all are durable.

        ``forwarded`` gets None, or why a letter could not be stored; some of the others may be by then.
        """
        letters: list[tuple[wire.MessageMetadata, bytes]] = []
        for entry, bits in expiring:
            letters += self._letters(target, subscription, entry, bits, now_ms)
        if not letters:
            forwarded(None)
            return
        flight = _Flight(len(letters), subscription, forwarded)
        for metadata, payload in letters:
            error = self._publish(target, metadata, payload, now_ms, flight)
            if error is not None:
                flight.failed(error)

    def _letters(
        self, target: str, subscription: Subscription, entry: Entry, bits: int, now_ms: int
    ) -> list[tuple[wire.MessageMetadata, bytes]]:
        parsed = parse_entry(entry.frame)
        metadata = parsed.metadata
        payload = entry.frame[parsed.payload_offset :]
        position = f"{entry.ledger_id}:{entry.entry_id}"
        singles: list[tuple[wire.MessageMetadata, bytes, str]] = []
        if is_batch(metadata):
            try:
                for index, single in enumerate(open_batch(metadata, payload)):
                    if bits >> index & 1:
                        singles.append((*single_entry(metadata, single), f"{position}:{index}"))
            except BatchError as error:
                # Encrypted: only its consumers can open it, so the batch goes as it came.
                log.debug("batch is dead-lettered unopened", topic=str(subscription.topic.name), reason=str(error))
                singles = [(metadata, payload, position)]
        else:
            singles = [(metadata, payload, position)]
        letters = []
        for single_metadata, single_payload, message_id in singles:
            if _dies(single_metadata, target, subscription, message_id, now_ms):
                letters.append((single_metadata, single_payload))
            else:
                subscription.dead_letter_loops += 1
        return letters

    def _publish(
        self, target: str, metadata: wire.MessageMetadata, payload: bytes, now_ms: int, flight: _Flight
    ) -> str | None:
        try:
            name = TopicName.parse(target)
            partitions = self._broker.partitions_of(name)
            if partitions:
                spread = sticky_hash(metadata) or self._sequence
                name = name.with_partition(spread % partitions)
            topic = self._broker.topics.get(str(name))
            if topic is None:
                topic = self._broker.create_topic(name)
        except (BrokerError, InvalidName) as error:
            return f"dead-letter topic {target}: {error}"
        producer = self._producers.get(str(name))
        if producer is None or producer.topic is not topic:
            producer = Producer(topic, self, len(self._waiting), self._name, connected_ms=now_ms)
            self._producers[str(name)] = producer
            self._waiting[producer.producer_id] = deque()
        self._sequence += 1
        metadata.producer_name = self._name
        metadata.publish_time = now_ms
        metadata.sequence_id = self._sequence
        self._waiting[producer.producer_id].append(flight)
        self._publishing = True
        topic.publish(
            producer, self._sequence, 0, metadata.num_messages_in_batch, metadata, build_frame(metadata, payload)
        )
        self._publishing = False
        return None

    # -- producer's sink -------------------------------------------------------------------------------------

    def send_receipts(self, producer: Producer, receipts: list[Receipt]) -> None:
        waiting = self._waiting[producer.producer_id]
        for _ in receipts:
            waiting.popleft().stored()

    def send_publish_error(self, producer_id: int, sequence_id: int, server_error: int, message: str) -> None:
        waiting = self._waiting[producer_id]
        flight = waiting.pop() if self._publishing else waiting.popleft()
        flight.failed(f"the dead-letter topic refused it: {message}")

    def hold_publishing(self, reason: object, ms: int) -> None:
        """Letters count for a publish rate and are not held back by it: what expired must not wait."""

    def release_publishing(self, reason: object) -> None:
        """Nothing was held."""

    def send_producer_ready(self, producer: Producer) -> None:
        """Letters do not ask for exclusive access."""

    def send_close_producer(self, producer: Producer) -> None:
        """Over its backlog quota the dead-letter topic closes who publishes; what it took before is still receipted."""
        if self._publishing:
            flight = self._waiting[producer.producer_id].pop()
            flight.failed(f"the dead-letter topic {producer.topic.name} is over its backlog quota")


class _Flight:
    """Letters of one run that are not durable yet."""

    __slots__ = ("_error", "_forwarded", "_left", "_letters", "_subscription")

    def __init__(self, letters: int, subscription: Subscription, forwarded: Forwarded) -> None:
        self._left = letters
        self._letters = letters
        self._subscription = subscription
        self._forwarded = forwarded
        self._error: str | None = None

    def stored(self) -> None:
        self._subscription.dead_lettered += 1
        self._settle()

    def failed(self, error: str) -> None:
        self._subscription.dead_letter_failures += 1
        self._error = error
        self._settle()

    def _settle(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._forwarded(self._error)


def _dies(
    metadata: wire.MessageMetadata, target: str, subscription: Subscription, message_id: str, now_ms: int
) -> bool:
    """Turn a message's metadata into its letter's; False if it was in ``target`` before and must not go again."""
    said: dict[str, str] = {}
    kept: list[tuple[str, str]] = []
    for pair in metadata.properties:
        if pair.key in HEADERS:
            said[pair.key] = pair.value
        else:
            kept.append((pair.key, pair.value))
    if TTL_PROPERTY in said:
        # In the dead-letter topic it would let the letter expire at once; an earlier one tells nothing any more.
        said[ORIGINAL_TTL] = said[TTL_PROPERTY]
    if ORIGINAL_TTL in said:
        kept.append((ORIGINAL_TTL, said[ORIGINAL_TTL]))
    here = str(subscription.topic.name.base)
    passed = _topics_in(said.get(TOPICS, "[]"))
    if here not in passed:
        passed.append(here)
    if str(TopicName.parse(target).base) in passed:
        return False
    count = said.get(COUNT, "")
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
        # A client wrote the property: what it says is no history of ours.
        return []
