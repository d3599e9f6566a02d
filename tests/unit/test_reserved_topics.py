"""Topics that nobody may create: Pulsar's system topics, and non-persistent ones where they are switched off."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import NotAllowed, PreconditionFailed, ReservedName
from heliograph_broker.messaging.base.records import PartitionedRecord
from heliograph_broker.usecases.topics import partitions_for_client

from tests.support.core import Core


@pytest.mark.parametrize("name", ["non-persistent://public/default/t", "non-persistent://public/default/p"])
def test_non_persistent_topics_that_are_switched_off_are_refused(tmp_path: Path, name: str) -> None:
    switched_on = Core(tmp_path / "d")
    switched_on.broker.partitioned.create(TopicName.parse("non-persistent://public/default/p"), 2)
    switched_on.commit()
    switched_on.close()
    core = Core(tmp_path / "d", enable_non_persistent_topics=False)
    topic = TopicName.parse(name)
    refused = pytest.raises(
        PreconditionFailed, match=r"non-persistent topic .*: enable_non_persistent_topics is false$"
    )
    with refused:
        core.broker.topics.get_or_create(topic.with_partition(0) if name.endswith("p") else topic)
    with refused:
        partitions_for_client(core.broker, topic, core.broker.partitioned.create)
    if core.broker.directory.exists(topic):
        core.broker.partitioned.delete(topic)
    with refused:
        core.broker.topics.create(topic)
    with refused:
        core.broker.partitioned.create(topic, 2)
    assert core.broker.directory.list_topics("public/default", "ALL") == []
    assert core.topic().persistent
    core.close()


SYSTEM_TOPICS = [
    "__change_events",
    "__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
    "orders-billing__transaction_pending_ack",
]


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
@pytest.mark.parametrize("local", SYSTEM_TOPICS)
def test_nobody_creates_a_system_topic(core: Core, local: str, domain: str) -> None:
    name = TopicName.parse(f"{domain}://public/default/{local}")
    refused = pytest.raises(ReservedName, match=rf"^Cannot create topic in system topic format! {name} is")
    for create in (
        core.broker.topics.get_or_create,
        core.broker.topics.create,
        lambda one: core.broker.partitioned.create(one, 2),
        lambda one: partitions_for_client(core.broker, one, core.broker.partitioned.create),
    ):
        with refused:
            create(name)
    assert not core.broker.directory.exists(name)


@pytest.mark.parametrize(
    ("name", "is_system"),
    [
        ("__change_events-partition-1", True),
        ("pulsar/system/transaction_coordinator_assign", True),
        ("pulsar/system/__transaction_log_3", True),
        ("pulsar/localhost:8080/healthcheck", True),
        ("pulsar/default/healthcheck", False),
        ("acme/system/orders", False),
        ("__change_events_of_mine", False),
        ("__compaction", False),
        ("__transaction_pending_ack_of_mine", False),
    ],
)
def test_names_of_system_topics(name: str, is_system: bool) -> None:
    assert TopicName.parse(name).is_system == is_system


def test_a_topic_of_such_a_name_from_an_older_version_can_be_used_and_deleted(core: Core) -> None:
    name = TopicName.parse("__change_events")
    split = TopicName.parse("__transaction_buffer_snapshot")
    core.broker.topics.add(name, {})
    core.broker.records.put(records.PARTITIONED + str(split).encode(), records.encode(PartitionedRecord(2)))
    core.broker.topics.add(split.with_partition(0), {})
    core.broker.topics.add(split.with_partition(1), {})
    core.commit()
    core.restart()
    directory = core.broker.directory
    topic = core.topic("__change_events")
    topic.create_subscription("s")
    core.publish_all(topic, "a")
    assert topic.subscription("s").acks.backlog_messages == 1
    assert partitions_for_client(core.broker, split, core.broker.partitioned.create) == 2
    assert (directory.list_topics("public/default"), directory.list_partitioned("persistent://public/")) == ([], [])
    assert len(directory.list_topics("public/default", system=True)) == 3
    assert directory.list_partitioned("persistent://public/", system=True) == [str(split)]
    with pytest.raises(NotAllowed, match=r"^Cannot delete non empty namespace: it has the system topics .*__change"):
        core.broker.namespaces.delete("public/default")
    core.broker.topics.delete(name, force=True)
    core.broker.partitioned.delete(split)
    assert directory.list_topics("public/default", system=True) == []
