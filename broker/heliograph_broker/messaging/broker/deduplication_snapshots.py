"""The snapshots of deduplication that a start finds, and when topics forget producers that are not there any more."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.policies.deduplication import PURGE_INTERVAL_MS

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.messaging.base.containment import Containment
    from heliograph_broker.messaging.log.record_set import BrokerRecords
    from heliograph_broker.messaging.log.sound_records import SoundRecords
    from heliograph_broker.messaging.topic.directory import Directory


class Snapshots:
    """The snapshots found at start, until their topics take them, and the round of looks at inactive producers."""

    __slots__ = ("_containment", "_directory", "_found", "_next_check_ms", "_records")

    def __init__(self, directory: Directory, broker_records: BrokerRecords, containment: Containment) -> None:
        self._directory = directory
        self._records = broker_records
        self._containment = containment
        self._found: dict[str, bytes] = {}
        self._next_check_ms = 0

    def load(self, stored: SoundRecords) -> None:
        prefix = records.DEDUPLICATION
        self._found = {key[len(prefix) :].decode(): value for key, value in stored.scan(prefix)}

    def take(self, topic: TopicName) -> bytes | None:
        """Return the snapshot of a topic, once."""
        return self._found.pop(str(topic), None) if self._found else None

    def loaded(self) -> None:
        """Drop snapshots that no topic took: deduplication is off there, or the topic is gone."""
        for name in self._found:
            self._records.delete(records.DEDUPLICATION + name.encode())
        self._found.clear()

    def run(self, now_ms: int) -> None:
        """Now and then let topics forget inactive producers; ``now_ms`` is monotonic."""
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + PURGE_INTERVAL_MS
            for topic in self._directory.topics.values():
                if topic.deduplication is not None:
                    # Tried again with the next round.
                    self._containment.attempt(
                        topic, "deduplication", partial(topic.deduplication.forget_inactive, now_ms, topic.producers)
                    )
