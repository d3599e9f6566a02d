"""Refusals of publishes in their turn: clients take a receipt or an error only for the oldest message they wait for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.storage.base.entry import Entry

    from .producer import Producer


class Refusals:
    """The answer to send once everything a topic took before is durable, or has failed."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        #: The offset of the next entry then, producer, sequence id, error. None while there is none: a deque takes 760
        #: bytes, and most topics never refuse anything.
        self._waiting: deque[tuple[int, Producer, int, BrokerError]] | None = None

    def add(self, offset: int, producer: Producer, sequence_id: int, error: BrokerError) -> None:
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

    def tell(self, offset: int, send: Callable[[Producer, int, BrokerError], None]) -> None:
        """Have the refusals sent that were waiting for the entries before ``offset``."""
        while self._waiting and self._waiting[0][0] <= offset:
            _, producer, sequence_id, error = self._waiting.popleft()
            if not self._waiting:
                self._waiting = None
            send(producer, sequence_id, error)
