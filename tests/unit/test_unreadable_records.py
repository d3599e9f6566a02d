"""A metadata record that cannot be decoded: the start goes on, keeps it aside, and loses nothing by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import msgspec
import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.resources.role_state import ProvenIdentity, RoleSettings
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.storage.base import record_sum
from structlog.testing import capture_logs

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED

NAMESPACE = "acme/shop"
ORDERS = f"persistent://{NAMESPACE}/orders"
BESIDE = f"persistent://{NAMESPACE}/beside"
PARTS = f"persistent://{NAMESPACE}/parts"
KINDS = {
    "tenant": records.TENANT + b"acme",
    "namespace": records.NAMESPACE + NAMESPACE.encode(),
    "partitioned": records.PARTITIONED + PARTS.encode(),
    "topic": records.TOPIC + ORDERS.encode(),
    "cursor": records.cursor_key(ORDERS, "s"),
    "schema": records.SCHEMA + ORDERS.encode(),
    "deduplication": records.DEDUPLICATION + ORDERS.encode(),
    "role": records.ROLE + b"billing",
    "broker policies": records.BROKER_POLICIES,
    "broker settings": records.BROKER_SETTINGS,
    "broker set": records.BROKER_SET,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two topics with ten messages each, of which five are acknowledged and retained."""
    core = Core(tmp_path / "data")
    broker = core.broker
    broker.policies.set_broker(Policies(retention=Retention(-1, -1)), Policies())
    broker.policies.set_dynamic("maxTopicsPerNamespace", "100")
    broker.tenants.create("acme", TenantRecord())
    broker.namespaces.create(NAMESPACE, records.NamespaceRecord(Policies(deduplication=True)))
    broker.partitioned.create(TopicName.parse(PARTS), 3)
    broker.roles.put("billing", RoleSettings([ProvenIdentity("certificate", "CN=billing")]))
    broker.schemas.add(ORDERS, records.SchemaRecord("orders", 1, b"{}"))
    for name in (ORDERS, BESIDE):
        topic = core.topic(name)
        topic.create_subscription("s")
        producer = core.producer(topic, name=f"p-{topic.name.local}")
        for sequence_id in range(10):
            core.publish(producer, sequence_id=sequence_id)
        core.commit()
        topic.subscription("s").acks.acknowledge_up_to(4, lambda error: None)
        core.commit()
    core.restart()
    core.close()
    return tmp_path / "data"


def stored(directory: Path, prefix: bytes) -> dict[bytes, bytes]:
    with (
        lmdb.open(str(directory / "metadata.lmdb"), subdir=False, lock=False) as environment,
        environment.begin() as txn,
    ):
        return {bytes(key): bytes(value) for key, value in txn.cursor() if bytes(key).startswith(prefix)}


@contextmanager
def writable(directory: Path) -> Iterator[lmdb.Transaction]:
    path = str(directory / "metadata.lmdb")
    with (
        lmdb.open(path, subdir=False, lock=False, map_size=1 << 30) as environment,
        environment.begin(write=True) as txn,
    ):
        yield txn


def put(directory: Path, key: bytes, value: bytes) -> None:
    with writable(directory) as txn:
        txn.put(key, value)


def damage(directory: Path, key: bytes) -> bytes:
    """Change a byte of a record, as a disk may do; return what is there now."""
    (value,) = stored(directory, key).values()
    value = value[:2] + bytes([value[2] ^ 0x10]) + value[3:]
    put(directory, key, value)
    return value


def backlog(core: Core, name: str) -> list[int]:
    client = Client()
    core.consumer(core.topic(name).subscription("s"), SHARED, client, permits=100)
    core.commit()
    return [entry.offset for _, entry, _, _ in client.take()]


@pytest.fixture
def opened() -> Iterator[list[Core]]:
    cores: list[Core] = []
    yield cores
    for core in cores:
        core.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_goes_on_and_keeps_the_record(directory: Path, kind: str, opened: list[Core]) -> None:
    value = damage(directory, KINDS[kind])
    with capture_logs() as logs:
        core = Core(directory)
    opened.append(core)
    named = [entry["record"] for entry in logs if entry["event"].startswith("a record cannot be read")]
    assert KINDS[kind].replace(b"\0", b" ").decode() in named
    assert core.broker.metrics.unreadable_records == len(named)
    assert backlog(core, BESIDE) == list(range(5, 10))
    assert core.topic(BESIDE).log.first_offset == 0
    aside = [
        msgspec.msgpack.decode(kept, type=records.UnreadableRecord)
        for _, kept in core.store.metadata.scan(b"unreadable/")
    ]
    assert (KINDS[kind], value) in [(each.key, each.value) for each in aside]
    # Nothing is deleted for it, now or later, and the next start finds nothing more.
    for _ in range(50):
        core.advance(60_000)
    assert core.topic(BESIDE).log.first_offset == 0
    with capture_logs() as logs:
        core.restart()
    assert not [entry for entry in logs if entry["event"].startswith("a record cannot be read")]
    assert core.broker.metrics.unreadable_records == len(named)
    assert len(core.broker.directory.tenants) == 2


def test_a_topic_goes_aside_with_all_that_is_of_it(directory: Path, opened: list[Core]) -> None:
    ledgers = stored(directory, KINDS["topic"])
    damage(directory, KINDS["topic"])
    core = Core(directory)
    opened.append(core)
    assert ORDERS not in core.broker.directory.topics
    assert len(core.store.ledgers.quarantined) == 1, ledgers
    aside = {
        msgspec.msgpack.decode(kept, type=records.UnreadableRecord).key
        for _, kept in core.store.metadata.scan(b"unreadable/")
    }
    assert aside == {KINDS["topic"], KINDS["cursor"], KINDS["deduplication"]}
    # The name is free, and what comes under it begins at nothing.
    assert core.topic(ORDERS).subscriptions == {}
    core.restart()
    assert len(core.store.ledgers.quarantined) == 1


def test_a_directory_without_tombstones_loses_no_ledger_of_a_topic_that_cannot_be_read(
    directory: Path, opened: list[Core]
) -> None:
    damage(directory, KINDS["topic"])
    with writable(directory) as txn:
        assert txn.delete(b"store/has-tombstones")
    core = Core(directory)
    opened.append(core)
    assert len(core.store.ledgers.quarantined) == 1


def test_a_subscription_is_given_everything_that_is_stored(directory: Path, opened: list[Core]) -> None:
    damage(directory, KINDS["cursor"])
    core = Core(directory)
    opened.append(core)
    assert core.topic(ORDERS).subscription("s").acks.backlog_messages == 10
    assert backlog(core, ORDERS) == list(range(10))
    core.restart()
    assert core.topic(ORDERS).subscription("s").acks.backlog_messages == 10


def test_sequence_ids_are_read_from_the_entries(directory: Path, opened: list[Core]) -> None:
    damage(directory, KINDS["deduplication"])
    core = Core(directory)
    opened.append(core)
    client = Client()
    producer = core.producer(core.topic(ORDERS), client, "p-orders")
    for sequence_id in (9, 10):
        core.publish(producer, sequence_id=sequence_id)
    core.commit()
    assert core.topic(ORDERS).log.end_offset == 11


def test_a_partitioned_topic_keeps_its_partitions(directory: Path, opened: list[Core]) -> None:
    damage(directory, KINDS["partitioned"])
    core = Core(directory)
    opened.append(core)
    assert core.broker.directory.partitions_of(TopicName.parse(PARTS)) == 3


def test_ids_of_ledgers_whose_record_is_damaged_are_not_given_again(directory: Path, opened: list[Core]) -> None:
    damage(directory, b"next-ledger-id")
    core = Core(directory)
    opened.append(core)
    known = {ledger.ledger_id for name in (ORDERS, BESIDE) for ledger in core.topic(name).log.ledgers}
    assert core.store.ledger_ids.next() > max(known)
    assert backlog(core, ORDERS) == list(range(5, 10))


def test_a_damaged_tombstone_stops_no_start(directory: Path, opened: list[Core]) -> None:
    put(directory, b"store/tombstone/short", b"1")
    core = Core(directory)
    opened.append(core)
    assert core.broker.metrics.unreadable_records == 1
    assert backlog(core, ORDERS) == list(range(5, 10))


def test_any_change_of_a_record_is_noticed(directory: Path) -> None:
    (value,) = stored(directory, KINDS["cursor"]).values()
    content = record_sum.content_of(KINDS["cursor"], value)
    assert len(content) == len(value) - 5
    for at in range(len(value)):
        for bit in range(8):
            damaged = value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
            with pytest.raises(msgspec.MsgspecError):
                msgspec.msgpack.decode(record_sum.content_of(KINDS["cursor"], damaged), type=records.CursorRecord)
    # Under another key it is another record, and without a sum one of an older version.
    assert record_sum.content_of(records.cursor_key(BESIDE, "s"), value) == value
    assert record_sum.content_of(KINDS["cursor"], content) == content
