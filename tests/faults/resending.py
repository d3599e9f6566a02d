"""Clients of a topic with deduplication: they send again what was not answered, and note what is stored."""

from __future__ import annotations

import asyncio
from collections import deque

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry

from tests.support.entries import make_entry
from tests.support.wire_client import WireError
from tests.support.wire_link import WireLink

WITHIN_S = 120.0


class Resender:
    """Publishes with a window of unanswered entries; on each connection it first sends again what was not answered."""

    def __init__(self, name: str, window: int, topic: str) -> None:
        self.name = name
        self._topic = topic
        self.receipted = 0
        self.repeated = 0
        self.going_on = True
        self._window = window
        self._next = 1
        self._unanswered: deque[int] = deque()
        self._link: WireLink | None = None
        self._producer_id = 0

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    async def connect(self, service_url: str) -> None:
        self._link = link = await WireLink.connect(service_url)
        link.on_receipt = self._receipt
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    self._producer_id = await link.producer(
                        self._topic, producer_name=self.name, user_provided_producer_name=True
                    )
                    break
                except WireError as error:
                    if error.code != wire.ProducerBusy:
                        raise
                    # The broker has not seen the last connection end yet.
                    await link.ping()
        for sequence_id in self._unanswered:
            self._send(sequence_id)
        self._fill()

    def _fill(self) -> None:
        while self.going_on and len(self._unanswered) < self._window:
            self._unanswered.append(self._next)
            self._send(self._next)
            self._next += 1

    def repeat_last_answered(self) -> None:
        """Send again what has its receipt already: the kills may have left nothing of that kind."""
        answered = self._unanswered[0] - 1
        assert answered > 0, "nothing was ever answered"
        self._unanswered.append(answered)
        # It is counted already.
        self.receipted -= 1
        self._send(answered)

    def _send(self, sequence_id: int) -> None:
        entry = make_entry(b"." * 200, producer_name=self.name, sequence_id=sequence_id)
        self.link.publish(self._producer_id, entry, sequence_id=sequence_id)

    def _receipt(self, receipt: wire.CommandSendReceipt) -> None:
        assert receipt.sequence_id == self._unanswered.popleft(), "receipts are not in order"
        self.receipted += 1
        if receipt.message_id.ledgerId == (1 << 64) - 1:
            self.repeated += 1
        self._fill()

    @property
    def idle(self) -> bool:
        return not self._unanswered


class Audit:
    """Notes where each sequence id is stored, and acknowledges, so that it is trimmed."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.stored: dict[tuple[str, int], set[tuple[int, int]]] = {}
        self._link: WireLink | None = None
        self._consumer_id = 0
        self._permits = 0

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    async def connect(self, service_url: str) -> None:
        self._link = link = await WireLink.connect(service_url)
        link.on_message = self._message
        self._consumer_id = await link.subscribe(self._topic, "audit", subType=wire.CommandSubscribe.Shared)
        self._permits = 0
        link.flow(self._consumer_id, 1000)

    def _message(self, message: wire.CommandMessage, entry: bytes) -> None:
        metadata = parse_entry(entry).metadata
        position = (message.message_id.ledgerId, message.message_id.entryId)
        self.stored.setdefault((metadata.producer_name, metadata.sequence_id), set()).add(position)
        self.link.ack(self._consumer_id, [message.message_id])
        self._permits += 1
        if self._permits == 500:
            self.link.flow(self._consumer_id, self._permits)
            self._permits = 0
