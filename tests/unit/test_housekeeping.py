"""When topics are looked at: on virtual time, with the real core."""

from __future__ import annotations

from heliograph_api.policies.policies import Policies, Retention
from heliograph_broker.messaging.log.record_set import FLUSH_MS
from heliograph_broker.messaging.topic.housekeeping import CHECK_INTERVAL_MS, TOPICS_PER_SLICE
from heliograph_broker.messaging.topic.topic import Topic

from tests.support.core import Core


def _watched(core: Core) -> list[tuple[Topic, int]]:
    checks: list[tuple[Topic, int]] = []

    def note(topic: Topic, now_ms: int) -> None:
        checks.append((topic, now_ms))

    core.broker.housekeeping._tasks.append(note)
    return checks


def test_many_topics_that_are_due_together_are_taken_a_few_at_a_time(core: Core) -> None:
    topics = [core.topic(f"t{index}") for index in range(3 * TOPICS_PER_SLICE)]
    core.commit()
    checks = _watched(core)
    assert core.broker.ticks.run() is True
    assert len(checks) == TOPICS_PER_SLICE
    while core.broker.ticks.run():
        pass
    assert {topic for topic, _ in checks} == set(topics)


def test_a_busy_topic_is_not_looked_at_more_often_than_the_interval(core: Core) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    core.advance(1000)
    checks = _watched(core)
    for _ in range(100):
        core.publish(producer)
        core.commit()
        core.advance(10)
    assert 3 <= len(checks) <= 1000 // CHECK_INTERVAL_MS + 1


def test_an_idle_topic_is_left_alone_until_something_is_due(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(3_600_000, -1)))
    core.publish(core.producer(topic))
    core.commit()
    core.advance(1000)
    checks = _watched(core)
    core.advance(3_598_000)
    assert checks == []
    core.advance(1000)
    assert len(checks) == 1
    assert topic.statistics.stored_messages == 0


def test_what_an_earlier_time_overtakes_does_not_pile_up(core: Core) -> None:
    topic = core.topic()
    core.broker.policies.set_topic(topic.name, Policies(retention=Retention(7 * 86_400_000, -1)))
    producer = core.producer(topic)
    for _ in range(1200):
        core.publish(producer)
        core.commit()
        core.advance(CHECK_INTERVAL_MS)
    assert len(core.broker.housekeeping._queue._heap) < 100


def test_what_is_trimmed_of_many_topics_is_recorded_together(core: Core) -> None:
    topics = [core.topic(f"t{index}") for index in range(3 * TOPICS_PER_SLICE)]
    for topic in topics:
        core.broker.policies.set_topic(topic.name, Policies(retention=Retention(3_600_000, -1)))
        core.publish(core.producer(topic))
    core.commit()
    core.advance(CHECK_INTERVAL_MS)
    groups = core.store.writer.stats.groups
    for topic in topics:
        topic.trim(topic.log.end_offset)
        core.commit()
    # The first one at once, all others with the flush.
    assert core.store.writer.stats.groups == groups + 1
    core.advance(FLUSH_MS)
    core.broker.ticks.run()
    core.commit()
    assert core.store.writer.stats.groups == groups + 2
    core.restart()
    assert [core.topic(str(topic.name)).log.first_offset for topic in topics] == [1] * len(topics)
    assert core.store.segments.live_bytes() == 0
