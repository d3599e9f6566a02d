"""Subscriptions created and deleted on every partition or none, and topics that looking them up creates."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_api.policies.policies import AutoTopicCreation, Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import (
    Conflict,
    NamespaceNotFound,
    NotAllowed,
    PersistenceError,
    PreconditionFailed,
    TopicNotFound,
)
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.usecases.subscriptions import create_subscription, delete_subscription
from heliograph_broker.usecases.topics import partitions_for_client

from tests.support.core import Client, Core
from tests.support.subscription_types import SHARED

NAME = TopicName.parse("t")


def partitions(core: Core) -> list[Topic]:
    topics = [core.broker.directory.get_topic(name) for name in core.broker.directory.concrete_names(NAME)]
    assert all(isinstance(topic, Topic) for topic in topics)
    return [topic for topic in topics if isinstance(topic, Topic)]


def names(core: Core) -> list[list[str]]:
    return [list(topic.subscriptions) for topic in partitions(core)]


def test_a_subscription_is_created_on_every_partition_at_its_position(core: Core) -> None:
    core.broker.partitioned.create(NAME, 2)
    for topic in partitions(core):
        core.publish_all(topic, count=3)
    create_subscription(core.broker, NAME, "first", position="earliest")
    create_subscription(core.broker, NAME, "last", properties={"owner": "me"})
    create_subscription(core.broker, NAME, "middle", start_id=partitions(core)[0].log.position(1))
    core.restart()
    backlogs = [{sub.name: sub.acks.backlog_messages for sub in t.subscriptions.values()} for t in partitions(core)]
    assert backlogs[0] == {"first": 3, "last": 0, "middle": 2}
    assert [backlog["first"] for backlog in backlogs] == [3, 3]
    assert partitions(core)[1].subscriptions["last"].properties == {"owner": "me"}


def test_a_subscription_of_some_partitions_is_created_on_the_others(core: Core) -> None:
    core.broker.partitioned.create(NAME, 3)
    partitions(core)[2].create_subscription("s")
    for topic in partitions(core):
        core.publish_all(topic, count=3)
    create_subscription(core.broker, NAME, "s")
    assert names(core) == [["s"], ["s"], ["s"]]
    assert [topic.subscriptions["s"].acks.backlog_messages for topic in partitions(core)] == [0, 0, 3]
    with pytest.raises(Conflict):
        create_subscription(core.broker, NAME, "s")


def test_a_reader_on_one_partition_keeps_its_name_from_all_of_them(core: Core) -> None:
    core.broker.partitioned.create(NAME, 2)
    partitions(core)[1].create_subscription("s", durable=False)
    with pytest.raises(Conflict):
        create_subscription(core.broker, NAME, "s")
    assert names(core) == [[], ["s"]]


def test_new_partitions_have_the_subscriptions_of_all_the_others(core: Core) -> None:
    core.broker.partitioned.create(NAME, 2)
    partitions(core)[0].create_subscription("everywhere")
    partitions(core)[1].create_subscription("everywhere")
    partitions(core)[1].create_subscription("second")
    core.broker.partitioned.extend(NAME, 3)
    assert names(core) == [["everywhere"], ["everywhere", "second"], ["everywhere", "second"]]
    core.publish_all(partitions(core)[2], count=1)
    core.restart()
    assert [each.acks.backlog_messages for each in partitions(core)[2].subscriptions.values()] == [1, 1]


def test_one_partition_that_is_full_leaves_the_others_alone(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(max_subscriptions=1))
    core.broker.partitioned.create(NAME, 3)
    partitions(core)[2].create_subscription("other")
    with pytest.raises(NotAllowed):
        create_subscription(core.broker, NAME, "s")
    assert names(core) == [[], [], ["other"]]


def test_one_partition_that_cannot_be_read_leaves_the_others_as_they_were(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.partitioned.create(NAME, 3)
    real = Topic.create_subscription

    def unreadable(topic: Topic, *args: object, **kwargs: object) -> object:
        if topic.name.partition == 2:
            raise PersistenceError("cannot read")
        return real(topic, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Topic, "create_subscription", unreadable)
    with pytest.raises(PersistenceError):
        create_subscription(core.broker, NAME, "s")
    assert names(core) == [[], [], []]
    core.restart()
    assert names(core) == [[], [], []]


def test_a_missing_topic_is_created_with_its_subscription_by_the_rules_for_clients(tmp_path: Path) -> None:
    core = Core(tmp_path / "d", default_partitions=2)
    create_subscription(core.broker, NAME, "s")
    assert names(core) == [["s"], ["s"]]
    core.broker.namespaces.set_policies(
        "public/default", Policies(auto_topic_creation=AutoTopicCreation(allow=False), max_subscriptions=1)
    )
    with pytest.raises(TopicNotFound):
        create_subscription(core.broker, TopicName.parse("u"), "s")
    with pytest.raises(NamespaceNotFound):
        create_subscription(core.broker, TopicName.parse("persistent://public/none/u"), "s")
    core.broker.namespaces.set_policies("public/default", Policies(auto_topic_creation=AutoTopicCreation(True, 0)))
    create_subscription(core.broker, TopicName.parse("u"), "s")
    assert list(core.topic("u").subscriptions) == ["s"]
    core.close()


def test_a_subscription_with_consumers_is_deleted_on_every_partition_or_none(core: Core) -> None:
    core.broker.partitioned.create(NAME, 3)
    create_subscription(core.broker, NAME, "s")
    client = Client()
    core.consumer(partitions(core)[2].subscriptions["s"], SHARED, client)
    with pytest.raises(PreconditionFailed):
        delete_subscription(partitions(core), "s")
    assert names(core) == [["s"], ["s"], ["s"]]
    delete_subscription(partitions(core), "s", force=True)
    assert (names(core), client.closed_consumers) == ([[], [], []], [1])


def test_looking_up_a_topic_creates_only_what_is_to_be_partitioned(core: Core) -> None:
    created: list[tuple[TopicName, int]] = []

    def look_up(name: str) -> int:
        return partitions_for_client(core.broker, TopicName.parse(name), lambda *given: created.append(given))

    assert look_up("t") == 0
    core.broker.namespaces.set_policies("public/default", Policies(auto_topic_creation=AutoTopicCreation(True, 4)))
    core.broker.partitioned.create(TopicName.parse("old"), 2)
    assert (look_up("old"), look_up("old-partition-1")) == (2, 0)
    with pytest.raises(TopicNotFound):
        look_up("old-partition-2")
    assert created == []
    assert look_up("new") == 4
    assert created == [(TopicName.parse("new"), 4)]
