"""Records that cannot be decoded: each is kept aside, and a start goes on with something that deletes nothing.

The replacement depends on the kind of record. A topic's record has none: it is kept aside with the records that belong
to it, and its ledgers go to quarantine. A subscription begins at the first entry that is stored: messages may come
twice, none is missed. Sequence ids are read from the entries again. Where policies are lost (of tenants, namespaces,
partitioned topics, the broker), everything is kept from then on, until somebody sets them again. A role's record has
no replacement: clients that it gave the role have that of their own name, until somebody sets it again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
from heliograph_api.policies.policies import InactiveTopic, Policies, Retention
from heliograph_api.resources.role_state import RoleSettings
from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.storage.base.tombstones import Tombstone

from .cursor import Cursor

#: Deletes no message, no subscription and no topic.
KEEPS_ALL = Policies(
    retention=Retention(-1, -1),
    message_ttl_ms=-1,
    expires_ms=-1,
    subscription_expiration_ms=-1,
    inactive_topic=InactiveTopic(60_000, delete=False),
)
_ERRORS = (msgspec.MsgspecError, ValueError, IndexError, struct.error)
#: Records of a topic, beside the one that all others rest on.
_OF_TOPIC = (records.CURSOR, records.DEDUPLICATION, records.DAMAGED)


class Unreadable(NamedTuple):
    """A record that is kept aside, and why."""

    key: bytes
    value: bytes
    reason: str


def _decode_key(prefix: bytes, key: bytes) -> str:
    return key.removeprefix(prefix).decode()


def _topic_name(prefix: bytes, key: bytes) -> str:
    return str(TopicName.parse(_decode_key(prefix, key).partition("\0")[0]))


def _checks() -> dict[bytes, Callable[[bytes, bytes], object]]:
    """Return by prefix what raises if a record, by key and value, cannot be taken."""

    def of(
        prefix: bytes, kind: object, name: Callable[[bytes, bytes], str] = _decode_key
    ) -> Callable[[bytes, bytes], object]:
        decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)
        return lambda key, value: (name(prefix, key), decoder.decode(value))

    cursors = msgspec.msgpack.Decoder(records.CursorRecord)
    return {
        records.TENANT: of(records.TENANT, records.TenantRecord),
        records.NAMESPACE: of(records.NAMESPACE, records.NamespaceRecord),
        records.PARTITIONED: of(records.PARTITIONED, records.PartitionedRecord, _topic_name),
        records.TOPIC: of(records.TOPIC, records.TopicRecord, _topic_name),
        records.CURSOR: lambda key, value: (
            _decode_key(records.CURSOR, key),
            Cursor.from_record(cursors.decode(value)),
        ),
        records.SCHEMA: of(records.SCHEMA, list[records.SchemaRecord]),
        records.DEDUPLICATION: of(records.DEDUPLICATION, records.DeduplicationRecord),
        records.DAMAGED: of(records.DAMAGED, records.DamagedRecord),
        records.ROLE: of(records.ROLE, RoleSettings),
        records.BROKER_POLICIES: of(records.BROKER_POLICIES, records.BrokerPoliciesRecord),
        records.BROKER_SETTINGS: of(records.BROKER_SETTINGS, records.BrokerSettingsRecord),
        records.BROKER_SET: of(records.BROKER_SET, records.BrokerSetRecord),
        records.UNREADABLE: of(records.UNREADABLE, records.UnreadableRecord),
        Tombstone.PREFIX: lambda key, value: Tombstone.ledger_of(key),
    }


_CHECKS = _checks()
PREFIXES = tuple(_CHECKS)


def find(stored: Iterable[tuple[bytes, bytes]]) -> list[Unreadable]:
    """Return the records that cannot be decoded; unknown ones are nobody's business."""
    found = []
    for key, value in stored:
        for prefix, check in _CHECKS.items():
            if key.startswith(prefix):
                try:
                    check(key, value)
                except _ERRORS as error:
                    found.append(Unreadable(key, value, f"{type(error).__name__}: {error}"))
                break
    return found


def contain(
    stored: Mapping[bytes, bytes], now_ms: int
) -> tuple[list[Unreadable], dict[bytes, bytes], dict[bytes, bytes | None]]:
    """Return records that cannot be decoded, the records that set them aside, and their replacements (None: none).

    ``stored`` are the records of a whole store.
    """
    found = find(stored.items())
    topics = {each.key.removeprefix(records.TOPIC): each for each in found if each.key.startswith(records.TOPIC)}
    there = {each.key for each in found}
    for key, value in stored.items() if topics else ():
        kind = next((prefix for prefix in _OF_TOPIC if key.startswith(prefix)), None)
        if kind is not None and key not in there:
            topic = topics.get(key.removeprefix(kind).partition(b"\0")[0])
            if topic is not None:
                found.append(Unreadable(key, value, "the record of its topic cannot be read"))
    changes: dict[bytes, bytes | None] = {each.key: _replacement(each, stored, topics, now_ms) for each in found}
    return found, {_aside_key(each): _aside_value(each, now_ms) for each in found}, changes


def _replacement(
    unreadable: Unreadable, stored: Mapping[bytes, bytes], topics: Mapping[bytes, Unreadable], now_ms: int
) -> bytes | None:
    """Return the record that takes a place, None if there is none."""
    key = unreadable.key
    if key.startswith(records.TENANT):
        return records.encode(records.TenantRecord())
    if key.startswith(records.NAMESPACE):
        return records.encode(records.NamespaceRecord(policies=KEEPS_ALL))
    if key == records.BROKER_POLICIES:
        return records.encode(records.BrokerPoliciesRecord(defaults=KEEPS_ALL))
    if key == records.BROKER_SETTINGS:
        return records.encode(records.BrokerSettingsRecord(dynamic={"brokerDeleteInactiveTopicsEnabled": "false"}))
    if key.startswith(records.PARTITIONED):
        return _partitioned(key.removeprefix(records.PARTITIONED), stored)
    kind = next((prefix for prefix in (records.CURSOR, records.DEDUPLICATION) if key.startswith(prefix)), None)
    if kind is None:
        return None
    name = key.removeprefix(kind).partition(b"\0")[0]
    value = stored.get(records.TOPIC + name)
    if value is None or name in topics:
        return None
    topic = msgspec.msgpack.decode(value, type=records.TopicRecord)
    if kind == records.DEDUPLICATION:
        return records.encode(records.DeduplicationRecord(topic.first_offset, {}, topic.version))
    try:
        key.decode()
    except UnicodeDecodeError:
        # Nobody can tell its owner.
        return None
    return records.encode(
        records.CursorRecord(
            topic.first_offset - 1,
            topic.trimmed_messages,
            topic.trimmed_bytes,
            created_ms=now_ms,
            version=topic.version,
        )
    )


def _partitioned(name: bytes, stored: Mapping[bytes, bytes]) -> bytes | None:
    """Return a record with as many partitions as there are topics of that name, None without any."""
    prefix = records.TOPIC + name + b"-partition-"
    numbers = [key.removeprefix(prefix) for key in stored if key.startswith(prefix)]
    partitions = max((int(number) + 1 for number in numbers if number.isdigit()), default=0)
    if not partitions:
        return None
    return records.encode(records.PartitionedRecord(partitions, policies=KEEPS_ALL))


def _aside_key(unreadable: Unreadable) -> bytes:
    """Return a key for any record: one of the same name that was damaged at another time has another."""
    digest = hashlib.blake2b(unreadable.key + b"\0" + unreadable.value, digest_size=16)
    return records.UNREADABLE + digest.hexdigest().encode()


def _aside_value(unreadable: Unreadable, now_ms: int) -> bytes:
    return records.encode(records.UnreadableRecord(unreadable.key, unreadable.value, unreadable.reason, now_ms))


def readable_key(key: bytes) -> str:
    """Return a record's key as printable text."""
    return key.replace(b"\0", b" ").decode(errors="backslashreplace")
