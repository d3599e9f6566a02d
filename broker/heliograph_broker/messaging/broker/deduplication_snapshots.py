"""The snapshots of deduplication that a start finds, and when topics forget producers that are not there any more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.policies.deduplication import PURGE_INTERVAL_MS

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.log.sound_records import SoundRecords
    from heliograph_broker.messaging.topic.directory import Directory


class Snapshots:
    """The snapshots found at start, until their topics take them, and the round of looks at inactive producers."""

    __slots__ = ("_broker", "_found", "_next_check_ms")

    def __init__(self, broker: Directory) -> None:
        self._broker = broker
        self._found: dict[str, bytes] = {}
        self._next_check_ms = 0

    def load(self, stored: SoundRecords) -> None:
        prefix = records.DEDUPLICATION
        self._found = {key[len(prefix) :].decode(): value for key, value in stored.scan(prefix)}

    def take(self, topic: TopicName) -> bytes | None:
        """Return the snapshot of a topic, once."""
        return self._found.pop(str(topic), None) if self._found else None

    def loaded(self) -> None:
        """Drop what no topic took: deduplication is off there, or the topic is gone."""
        for name in self._found:
            self._broker.records.delete(records.DEDUPLICATION + name.encode())
        self._found.clear()

    def run(self) -> None:
        """Now and then let topics forget inactive producers."""
        now_ms = monotonic_ms(self._broker.clock)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + PURGE_INTERVAL_MS
            for topic in self._broker.topics.values():
                if topic.deduplication is not None:
                    # Tried again with the next round.
                    self._broker.containment.attempt(
                        topic, "deduplication", partial(topic.deduplication.forget_inactive, now_ms, topic.producers)
                    )
