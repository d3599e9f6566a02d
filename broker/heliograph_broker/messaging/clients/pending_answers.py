"""Answers that the producers of a topic wait for.

Clients take a receipt or an error only for the oldest message they wait for, so a refusal has its turn after the
receipts of everything the topic took before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.storage.base.entry import Entry

    from .producer import Producer


class PendingAnswers:
    """Entries handed to the store and not durable yet, in order, and the refusals between them.

    ``in_flight`` has the producer, the sequence id and the highest sequence id of each entry.
    """

    __slots__ = ("_waiting", "in_flight")

    def __init__(self) -> None:
        self.in_flight: list[tuple[Producer, int, int]] = []
        #: The offset of the next entry then, producer, sequence id, error. None while there is none: a deque takes 760
        #: bytes, and most topics never refuse anything.
        self._waiting: deque[tuple[int, Producer, int, BrokerError]] | None = None

    def take(self, number: int) -> list[tuple[Producer, int, int]]:
        """Remove and return the first ``number`` entries in flight: the store has stored them, or could not."""
        taken = self.in_flight[:number]
        del self.in_flight[:number]
        return taken

    def refuse(self, offset: int, producer: Producer, sequence_id: int, error: BrokerError) -> None:
        """Tell ``producer`` after the entries before ``offset`` that an entry of its is not stored."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append((offset, producer, sequence_id, error))

    def before(self, entries: list[Entry]) -> list[Entry]:
        """Return those of ``entries``, durable now, that go before a refusal whose turn is among them; else none."""
        if not self._waiting or self._waiting[0][0] > entries[-1].offset:
            return []
        first = self._waiting[0][0]
        return [entry for entry in entries if entry.offset < first]

    def send_refusals(self, offset: int, send: Callable[[Producer, int, BrokerError], None]) -> None:
        """Call ``send`` for the refusals that waited for the entries before ``offset`` alone."""
        while self._waiting and self._waiting[0][0] <= offset:
            _, producer, sequence_id, error = self._waiting.popleft()
            if not self._waiting:
                self._waiting = None
            send(producer, sequence_id, error)
