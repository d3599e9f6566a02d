r"""The core's records in the metadata store: one MessagePack record a key.

Keys are ``kind/name`` in UTF-8; a cursor's key is ``cursor/<topic>\\0<subscription>`` (a topic name holds no NUL).
Field names are part of the data directory's format: a change of meaning needs a new format version.
"""

from __future__ import annotations

from typing import Any

import msgspec
from heliograph_api.policies.policies import Policies

TENANT = b"tenant/"
NAMESPACE = b"namespace/"
PARTITIONED = b"partitioned/"
TOPIC = b"topic/"
CURSOR = b"cursor/"
SCHEMA = b"schema/"
DEDUPLICATION = b"deduplication/"
DAMAGED = b"damaged/"
#: Records that could not be decoded are kept here, of any kind; see :mod:`.unreadable_records`.
UNREADABLE = b"unreadable/"
#: The :class:`.role_state.RoleSettings` of a role.
ROLE = b"role/"
BROKER_POLICIES = b"broker/policies"
BROKER_SETTINGS = b"broker/settings"
#: The version of the set of records that are the broker's own.
BROKER_SET = b"broker/records"


class TenantRecord(msgspec.Struct):
    """A tenant; ``limits`` caps the policies of everything below it."""

    admin_roles: list[str] = msgspec.field(default_factory=list)
    allowed_clusters: list[str] = msgspec.field(default_factory=list)
    limits: Policies = msgspec.field(default_factory=Policies)


class NamespaceRecord(msgspec.Struct):
    """A namespace: its policies, the number of equal bundles it began with, and where these were split since."""

    policies: Policies = msgspec.field(default_factory=Policies)
    bundles: int = 4
    #: Hashes at which a bundle begins beside those of the equal ones.
    splits: list[int] = msgspec.field(default_factory=list)
    replication_clusters: list[str] = msgspec.field(default_factory=list)
    properties: dict[str, str] = msgspec.field(default_factory=dict)


class PartitionedRecord(msgspec.Struct):
    """A partitioned topic: its parts are topics of their own, ``name-partition-0`` and on."""

    partitions: int
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    policies: Policies | None = None
    #: The partitions from this one on are being created, as far as they are not there; None: no more come.
    grows_from: int | None = None
    #: The first partition that was added last: those before it have the subscriptions that it needs, too.
    added_from: int = 0


class LedgerRecord(msgspec.Struct, array_like=True):
    """One ledger of a topic; ``entries`` and ``size`` are exact for closed ledgers, 0 for the open one."""

    ledger_id: int
    created_ms: int
    entries: int = 0
    #: Shift of the clock since its entries were stamped (ms).
    shift_ms: int = 0


class CompactionRecord(msgspec.Struct):
    """A topic's last compaction: the ledger it made (-1 if nothing stayed), which covers the offsets to ``horizon``.

    ``ledgers`` are (ledger id, base offset) of every ledger of the topic that an entry was kept of, trimmed since or
    not; the totals are the topic's up to the horizon.
    """

    ledger_id: int
    horizon: int
    entries: int
    size: int
    ledgers: list[tuple[int, int]]
    last_offset: int
    last_batch_index: int
    total_messages: int
    total_bytes: int


class TopicRecord(msgspec.Struct):
    """A topic: its ledgers, trimmed counts, and totals at the trim point (so counts survive an empty topic)."""

    created_ms: int
    first_offset: int = 0
    trimmed_messages: int = 0
    trimmed_bytes: int = 0
    base_offset: int = 0
    ledgers: list[LedgerRecord] = msgspec.field(default_factory=list)
    epoch: int = -1
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    policies: Policies | None = None
    #: Whether it ever held delayed entries or such with a TTL of their own: they are looked for at start.
    timed: bool = False
    terminated: bool = False
    compaction: CompactionRecord | None = None
    #: Whether it may hold chunks of messages; unknown of topics of older releases.
    chunked: bool = True
    #: The version of the topic's set of records when this one was written, as in each of them; 0: before there were
    #: sets.
    version: int = 0


class DamagedRange(msgspec.Struct, array_like=True):
    """Neighbouring entries that could not be read, why, and when that was found (wall-clock ms)."""

    offset: int
    last_offset: int
    ledger_id: int
    entry_id: int
    last_ledger_id: int
    last_entry_id: int
    reason: str
    found_ms: int


class DamagedRecord(msgspec.Struct):
    """Damaged entries of a topic: how many there ever were, and the newest ranges."""

    entries: int = 0
    ranges: list[DamagedRange] = msgspec.field(default_factory=list)
    version: int = 0


class BrokerPoliciesRecord(msgspec.Struct):
    """The policies of a BrokerCluster: ``defaults`` where no level sets anything, ``limits`` over all of them."""

    defaults: Policies = msgspec.field(default_factory=Policies)
    limits: Policies = msgspec.field(default_factory=Policies)


class BrokerSettingsRecord(msgspec.Struct):
    """Settings that were made at the broker at run time: values by name, as text, and resource groups by name.

    ``documents`` are kept for the tools of administrators and have no effect: JSON by name, by their kind.
    """

    dynamic: dict[str, str] = msgspec.field(default_factory=dict)
    resource_groups: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)


class BrokerSetRecord(msgspec.Struct):
    """The version of the broker's own set of records."""

    version: int


class CursorRecord(msgspec.Struct):
    """A durable subscription's position; offsets are dense entry indexes of the topic, ``acked`` a pyroaring bitmap."""

    mark_delete: int
    acked_messages: int
    acked_bytes: int
    acked: bytes = b""
    #: offset -> bits of the unacknowledged batch indexes, little-endian bytes (a batch may have more than 64)
    partial: dict[int, bytes] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    created_ms: int = 0
    #: Offset from which compacted and trimmed entries are still owed to it, -1: none.
    owed_from: int = -1
    version: int = 0


class DeduplicationRecord(msgspec.Struct):
    """Highest sequence id by producer name, of the entries below ``offset``."""

    offset: int
    sequence_ids: dict[str, int]
    version: int = 0
    #: Entries below this offset, were they durable or not, were published before deduplication was switched on.
    counted_from: int = 0


class SnapshotPosition(msgspec.Struct):
    """A :class:`DeduplicationRecord` without the ids."""

    offset: int
    version: int = 0
    counted_from: int = 0


class UnreadableRecord(msgspec.Struct):
    """A record that could not be decoded, verbatim, with its key, why, and when that was found (wall-clock ms)."""

    key: bytes
    value: bytes
    reason: str
    found_ms: int


class SchemaRecord(msgspec.Struct):
    """One stored version of a topic's schema; the version is its index in the list."""

    name: str
    type: int
    data: bytes
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    created_ms: int = 0


def cursor_key(topic: str, subscription: str) -> bytes:
    """Return the key of a durable subscription's record."""
    return CURSOR + topic.encode() + b"\0" + subscription.encode()


encode = msgspec.msgpack.Encoder().encode
