"""Reads from a store's records, without a broker, the owner of each ledger and its wanted entries.

Also how a ledger that no record speaks of becomes a topic, so that its messages can be read by any client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from heliograph_api.policies.policies import InactiveTopic, Policies, Retention

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.log import unreadable_records
from heliograph_broker.storage.base.entry import EntryHeader
from heliograph_broker.storage.base.tombstones import Tombstone

from .compacted_ledger import is_compacted

#: The namespace of topics that were made of ledgers.
SALVAGED = "public/salvaged"
_NEVER = InactiveTopic(60_000, delete=False)


class Claim(NamedTuple):
    """A topic's claim on a ledger: the entries from ``first`` on, to ``last`` if that is known."""

    topic: str
    #: The offset of the ledger's entry 0.
    base: int
    first: int
    last: int | None
    #: Whether it holds the result of the topic's last compaction.
    compacted: bool


class Claims:
    """The records of topics and cursors, decoded, and what follows for the ledgers."""

    def __init__(self, stored: Mapping[bytes, bytes]) -> None:
        self.topics: dict[str, records.TopicRecord] = {}
        #: By topic and subscription.
        self.cursors: dict[tuple[str, str], records.CursorRecord] = {}
        self.snapshots: dict[str, records.SnapshotPosition] = {}
        self.ledgers: dict[int, Claim] = {}
        #: Ledgers that more than one topic claims: the topics.
        self.disputed: dict[int, tuple[str, str]] = {}
        self.tombstones: set[int] = set()
        #: Records that cannot be read, and why.
        self.unreadable: dict[bytes, str] = {}
        #: Records that could not be read when a broker started, or when they were salvaged, and are kept aside.
        self.kept_aside: list[records.UnreadableRecord] = []
        for each in unreadable_records.find(stored.items()):
            self.unreadable[each.key] = each.reason
        for key, value in stored.items():
            if key not in self.unreadable:
                self._take(key, value)
        for name, topic in self.topics.items():
            self._claim(name, topic)

    def _take(self, key: bytes, value: bytes) -> None:
        decode = msgspec.msgpack.decode
        if key.startswith(records.TOPIC):
            self.topics[key.removeprefix(records.TOPIC).decode()] = decode(value, type=records.TopicRecord)
        elif key.startswith(records.CURSOR):
            topic, _, subscription = key.removeprefix(records.CURSOR).decode().partition("\0")
            self.cursors[topic, subscription] = decode(value, type=records.CursorRecord)
        elif key.startswith(records.DEDUPLICATION):
            topic = key.removeprefix(records.DEDUPLICATION).decode()
            self.snapshots[topic] = decode(value, type=records.SnapshotPosition)
        elif key.startswith(Tombstone.PREFIX):
            self.tombstones.add(Tombstone.ledger_of(key))
        elif key.startswith(records.UNREADABLE):
            self.kept_aside.append(decode(value, type=records.UnreadableRecord))

    def _claim(self, name: str, topic: records.TopicRecord) -> None:
        base = topic.base_offset
        for number, ledger in enumerate(topic.ledgers):
            is_open = number == len(topic.ledgers) - 1
            first = max(0, topic.first_offset - base)
            last = None if is_open else ledger.entries - 1
            self._add(ledger.ledger_id, Claim(name, base, first, last, compacted=False))
            base += ledger.entries
        compaction = topic.compaction
        if compaction is not None and compaction.ledger_id >= 0:
            self._add(compaction.ledger_id, Claim(name, 0, 0, compaction.entries - 1, compacted=True))

    def _add(self, ledger_id: int, claim: Claim) -> None:
        other = self.ledgers.setdefault(ledger_id, claim)
        if other is not claim:
            self.disputed[ledger_id] = (other.topic, claim.topic)


def topic_of(ledger_id: int) -> str:
    """Return the full name of the topic that a ledger without one becomes."""
    return f"persistent://{SALVAGED}/ledger-{ledger_id}"


def adoption(
    ledger_id: int, first: EntryHeader, opening: bytes, existing: Mapping[bytes, bytes], now_ms: int
) -> dict[bytes, bytes] | None:
    """Return the records that make a ledger of the entries from ``first`` on a topic that keeps them without limit.

    ``opening`` is the start of the first frame. None for the result of a compaction: its entries are not
    messages as clients read them.
    """
    if is_compacted(first, opening):
        return None
    topic = records.TopicRecord(
        created_ms=now_ms,
        first_offset=first.entry_id,
        trimmed_messages=first.total_messages - first.messages,
        trimmed_bytes=first.total_bytes - first.size,
        ledgers=[records.LedgerRecord(ledger_id, first.receive_ms)],
        timed=True,
    )
    added = {records.TOPIC + topic_of(ledger_id).encode(): records.encode(topic)}
    namespace = records.NAMESPACE + SALVAGED.encode()
    if namespace not in existing:
        keeps_all = Policies(retention=Retention(-1, -1))
        added[namespace] = records.encode(records.NamespaceRecord(policies=keeps_all))
    return added


def keep_everything(stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return records of metadata that was read in part, with topics that delete nothing.

    Subscriptions may be missing among them: without these, retention and expiry would delete unread messages.
    """
    kept = dict(stored)
    for name, topic in Claims(stored).topics.items():
        policies = topic.policies or Policies()
        topic.policies = msgspec.structs.replace(
            policies, retention=Retention(-1, -1), expires_ms=-1, inactive_topic=_NEVER
        )
        kept[records.TOPIC + name.encode()] = records.encode(topic)
    return kept
