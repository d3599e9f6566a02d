"""A subscription that was created is there after a crash, at its position, whatever else was being written."""

from __future__ import annotations

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import NotAllowed
from heliograph_broker.usecases.subscriptions import create_subscription

from tests.support.core import Core


def test_each_of_several_created_within_a_moment_is_durable_with_its_own_commit(core: Core) -> None:
    topic = core.topic()
    for name in ("first", "second", "third"):
        topic.create_subscription(name, properties={"of": name})
        core.commit()
    core.crash()
    found = core.topic().subscriptions
    assert {name: found[name].properties for name in found} == {
        "first": {"of": "first"},
        "second": {"of": "second"},
        "third": {"of": "third"},
    }


@pytest.mark.parametrize("start", range(7))
def test_one_that_begins_anywhere_begins_there_after_a_crash(core: Core, start: int) -> None:
    topic = core.topic()
    topic.create_subscription("keeps")
    producer = core.producer(topic)
    for number in range(5):
        core.publish(producer, b"%d" % number, messages=number + 1)
        core.commit()
    created = topic.create_subscription("s", start_offset=start)
    core.commit()
    expected = sum(number + 1 for number in range(start, 5))
    assert (created.acks.backlog_messages, created.acks.messages_acked) == (expected, 0)
    core.crash()
    restored = core.topic().subscription("s")
    assert (restored.acks.backlog_messages, restored.acks.cursor.mark_delete) == (expected, min(start, 5) - 1)


def test_nobody_creates_the_brokers_own_one(core: Core) -> None:
    core.topic()
    with pytest.raises(NotAllowed):
        create_subscription(core.broker, TopicName.parse("t"), "__compaction")
    assert not core.topic().subscriptions
