"""The load under which a broker is killed, and the recount of what it has afterwards."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry

from tests.support.entries import make_entry
from tests.support.rest import topic_stats
from tests.support.wire_link import AckAnswer, WireLink

from .promises import Delivered, PromiseBroken, Promises, Published, SubscriptionPromises, all_bits, position

_UINT64 = (1 << 64) - 1
RECOUNT_WITHIN_S = 120.0


class LoadProducer:
    """Publishes entries (single messages, or batches of varying size) with a window of unanswered ones."""

    def __init__(
        self, name: str, promises: Promises, rng: Random, *, batches: bool, window: int = 100, keys: int = 0
    ) -> None:
        self.name = name
        self._promises = promises
        self._rng = rng
        self._batches = batches
        self._window = window
        self._keys = keys
        self._sequence_id = 0
        self._link: WireLink | None = None
        self._producer_id = 0
        self._unanswered: deque[int] = deque()

    async def open(self, service_url: str, topic: str) -> None:
        self._link = await WireLink.connect(service_url)
        self._link.on_receipt = self._receipted
        self._unanswered.clear()
        self._producer_id = await self._link.producer(topic, producer_name=self.name, user_provided_producer_name=True)

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    def start(self) -> None:
        """Fill the window; every receipt makes room for the next entry."""
        while len(self._unanswered) < self._window:
            self._publish()

    def _publish(self) -> None:
        self._sequence_id += 1
        messages = self._rng.randint(2, 20) if self._batches else 1
        body = b"%s:%d " % (self.name.encode(), self._sequence_id) + b"." * self._rng.randrange(400)
        if self._batches:
            entry = make_entry([body] * messages, sequence_id=self._sequence_id, producer_name=self.name)
        else:
            key = {"partition_key": f"key-{self._rng.randrange(self._keys)}"} if self._keys else {}
            entry = make_entry(body, producer_name=self.name, sequence_id=self._sequence_id, **key)
        self._unanswered.append(len(entry))
        self.link.publish(self._producer_id, entry, sequence_id=self._sequence_id, messages=messages)

    def _receipted(self, receipt: wire.CommandSendReceipt) -> None:
        at = receipt.message_id
        size = self._unanswered.popleft()
        self._promises.receipted(Published(self.name, receipt.sequence_id), at.ledgerId, at.entryId, size)
        self._publish()


class LoadConsumer:
    """Reads one subscription; acknowledges part of it once told to, with receipts or as clients do by default.

    ``kind`` is the subscription's type; cumulative acknowledgments are for Exclusive and Failover.
    """

    def __init__(
        self,
        promises: SubscriptionPromises,
        rng: Random,
        *,
        cumulative: bool,
        kind: int | None = None,
        receipts: bool = True,
        may_be_refused: bool = False,
    ) -> None:
        self.promises = promises
        self.acks_answered = 0
        #: Acknowledgments that were refused, where they may be: they may have happened or not.
        self.acks_refused = 0
        #: Entries whose acknowledgment, in part at least, was sent.
        self.acknowledged = 0
        self._rng = rng
        self._cumulative = cumulative
        self._receipts = receipts
        self._may_be_refused = may_be_refused
        if kind is None:
            kind = wire.CommandSubscribe.Exclusive if cumulative else wire.CommandSubscribe.Shared
        self._kind = kind
        self._link: WireLink | None = None
        self._consumer_id = 0
        self._acknowledging = False
        self._received: list[Delivered] = []
        self._asked: dict[int, list[Delivered]] = {}
        self._asked_in_part: dict[int, tuple[int, int]] = {}

    async def open(self, service_url: str, topic: str, *, subscription: str = "") -> None:
        """Connect and subscribe: by the name of the promises unless another is given."""
        link = self._link = await WireLink.connect(service_url)
        link.on_message = self._on_message
        link.on_ack = self._on_ack
        self._acknowledging = False
        self._received = []
        self._asked = {}
        self._asked_in_part = {}
        self._consumer_id = await link.subscribe(topic, subscription or self.promises.name, subType=self._kind)

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    async def recount(self, sentinel: str) -> list[Delivered]:
        """Read everything up to the message of the producer ``sentinel``, acknowledging nothing."""
        self.link.flow(self._consumer_id, 1 << 30)
        async with asyncio.timeout(RECOUNT_WITHIN_S):
            while not self._received or self._received[-1].published.producer != sentinel:
                self.link.check()
                if self.link.ended.is_set():
                    raise AssertionError("the connection ended during the recount")
                await asyncio.sleep(0.005)
        return list(self._received)

    async def recount_owed(self) -> list[Delivered]:
        """Read until all that is owed has come, acknowledging nothing; what came beside it is there, too."""
        self.link.flow(self._consumer_id, 1 << 30)
        async with asyncio.timeout(RECOUNT_WITHIN_S):
            while not self.promises.owed.keys() <= {entry.position for entry in self._received}:
                self.link.check()
                if self.link.ended.is_set():
                    raise AssertionError("the connection ended during the recount")
                await asyncio.sleep(0.02)
            # Whatever else there is follows what is owed; an answered ping says that it has come.
            before = -1
            while before != len(self._received):
                before = len(self._received)
                for _ in range(10):
                    await self.link.ping()
                    await asyncio.sleep(0.01)
        return list(self._received)

    async def acknowledge_share(self, share: float) -> None:
        """Acknowledge the oldest ``share`` of what was delivered, and wait for the receipts."""
        count = int(len(self._received) * share)
        older, self._received = self._received[:count], self._received[count:]
        for entry in older:
            self.promises.ack_sent(entry.position, entry.published)
        for first in range(0, count, 500):
            part = older[first : first + 500]
            self._ask([part[-1]] if self._cumulative else part, part)
        async with asyncio.timeout(RECOUNT_WITHIN_S):
            while self._asked:
                self.link.check()
                await self.link.ping()

    def join(self) -> None:
        """Be one more consumer, which takes its share of what comes from now on."""
        self._acknowledging = True
        self.link.flow(self._consumer_id, 1 << 30)

    def acknowledge_everything(self) -> None:
        """Acknowledge all that was delivered and is still unacknowledged, and what comes from now on."""
        received, self._received = self._received, []
        if received:
            for entry in received:
                self.promises.ack_sent(entry.position, entry.published)
            self._ask([received[-1]] if self._cumulative else received, received)

    def start_acknowledging(self) -> None:
        """Acknowledge what is here except the newest fifth, so that it can be trimmed; then most of what comes."""
        self._acknowledging = True
        older = self._received[: len(self._received) * 4 // 5]
        self._received = self._received[len(older) :]
        if older and not self._cumulative:
            self._acknowledge_all(older)
        else:
            self._received = older + self._received
        self._acknowledge()

    def _on_message(self, command: wire.CommandMessage, entry: bytes) -> None:
        metadata = parse_entry(entry).metadata
        messages = metadata.num_messages_in_batch
        remaining = all_bits(messages)
        if command.ack_set:
            remaining = sum((word & _UINT64) << (64 * index) for index, word in enumerate(command.ack_set))
        at = command.message_id
        self._received.append(
            Delivered(
                position(at.ledgerId, at.entryId),
                Published(metadata.producer_name, metadata.sequence_id),
                len(entry),
                messages,
                remaining,
            )
        )
        if self._acknowledging and len(self._received) >= 50:
            self._acknowledge()

    def _acknowledge(self) -> None:
        received, self._received = self._received, []
        if not received:
            return
        if self._cumulative:
            self._acknowledge_up_to(received)
            return
        chosen: list[Delivered] = []
        for entry in received:
            dice = self._rng.random()
            full = entry.remaining == all_bits(entry.messages)
            if dice < 0.1 and entry.messages > 1 and full:
                self._acknowledge_in_part(entry)
            elif dice < 0.9:
                chosen.append(entry)
        if chosen:
            self._acknowledge_all(chosen)

    def _acknowledge_all(self, chosen: list[Delivered]) -> None:
        for entry in chosen:
            self.promises.ack_sent(entry.position, entry.published)
        self._ask(chosen, chosen)

    def _acknowledge_up_to(self, received: list[Delivered]) -> None:
        count = max(1, int(len(received) * self._rng.uniform(0.7, 1.0)))
        chosen, self._received = received[:count], received[count:]
        for entry in chosen:
            self.promises.ack_sent(entry.position, entry.published)
        self._ask([chosen[-1]], chosen)

    def _ask(self, named: list[Delivered], acknowledged: list[Delivered]) -> None:
        """Send an acknowledgment that names some entries and means all those acknowledged."""
        request_id = self.link.ack(
            self._consumer_id,
            [_id(entry.position) for entry in named],
            cumulative=self._cumulative,
            receipt=self._receipts,
        )
        self.acknowledged += len(acknowledged)
        if self._receipts:
            self._asked[request_id] = acknowledged

    def _acknowledge_in_part(self, entry: Delivered) -> None:
        acknowledged = self._rng.getrandbits(entry.messages - 1) or 1
        remaining = all_bits(entry.messages) & ~acknowledged
        message_id = _id(entry.position)
        message_id.ack_set.append(remaining)
        self.promises.partial_ack_sent(entry.position, remaining)
        request_id = self.link.ack(self._consumer_id, [message_id], receipt=self._receipts)
        self.acknowledged += 1
        if self._receipts:
            self._asked_in_part[request_id] = (entry.position, acknowledged)

    def _on_ack(self, answer: AckAnswer) -> None:
        if answer.error and self._may_be_refused:
            self.acks_refused += 1
            self._asked.pop(answer.request_id, None)
            self._asked_in_part.pop(answer.request_id, None)
            return
        if answer.error:
            raise PromiseBroken(f"{self.promises.name}: an acknowledgment was refused: {answer.error}")
        self.acks_answered += 1
        partly = self._asked_in_part.pop(answer.request_id, None)
        if partly is not None:
            self.promises.partial_ack_answered(*partly)
            return
        for entry in self._asked.pop(answer.request_id):
            self.promises.ack_answered(entry.position)


def _id(at: int) -> wire.MessageIdData:
    return wire.MessageIdData(ledgerId=at >> 32, entryId=at & 0xFFFFFFFF)


def check_backlog(
    http_url: str, topic: str, subscription: str, delivered: list[Delivered], *, namespace: str = "public/default"
) -> None:
    """Compare the counts of the admin REST with a recount. Raises :class:`PromiseBroken`."""
    stats = topic_stats(http_url, f"{namespace}/{topic}")["subscriptions"][subscription]
    messages = sum(entry.remaining.bit_count() for entry in delivered)
    size = sum(entry.size for entry in delivered)
    if (stats["msgBacklog"], stats["backlogSize"]) != (messages, size):
        raise PromiseBroken(
            f"{subscription}: stats say {stats['msgBacklog']} messages, {stats['backlogSize']} bytes; "
            f"a recount finds {messages} messages, {size} bytes in {len(delivered)} entries"
        )
