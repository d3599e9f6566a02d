"""Entries that could not be stored: their producers come back, and no later entry is stored before."""

from __future__ import annotations

import pytest
from heliograph_api.policies.policies import InactiveTopic, Policies
from heliograph_api.protocol.frames import peek_metadata
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.waiting_room import WaitingRoom
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.usecases.producers import OpenedProducer, ProducerRequest, open_producer

from tests.support.core import Client, Core

NAME = TopicName.parse("t")


def send(core: Core, producer: Producer, *sequence_ids: int) -> None:
    for sequence_id in sequence_ids:
        core.publish(producer, b"m%d" % sequence_id, sequence_id=sequence_id)


def stored(core: Core, topic: Topic) -> list[tuple[str, int]]:
    """Return the producer and sequence id of each entry, in order."""
    if topic.log.first_offset == topic.log.end_offset:
        return []
    found = [peek_metadata(memoryview(entry.frame)) for entry in core.read_all(topic)]
    return [(metadata.producer_name, metadata.sequence_id) for metadata in found]


def comes_back(core: Core, name: str = "p", epoch: int = 1) -> OpenedProducer | WaitingRoom:
    return open_producer(core.broker, Client(), ProducerRequest(NAME, 1, name, epoch=epoch))


def test_a_producer_is_closed_when_an_entry_of_its_could_not_be_stored(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer, other = core.producer(topic, client), core.producer(topic, name="other")
    send(core, producer, 0)
    core.commit()
    send(core, producer, 1, 2)
    with core.full_disk():
        core.commit()
    assert [(sequence_id, type(error)) for sequence_id, error in client.errors] == [
        (1, PersistenceError),
        (2, PersistenceError),
    ]
    assert client.closed_producers == [producer.producer_id]
    # The entry before has its receipt, and others go on.
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0]
    assert list(topic.producers) == ["other"]
    send(core, other, 5)
    send(core, core.producer(topic, client), 1, 2, 3)
    core.commit()
    assert stored(core, topic) == [("p", 0), ("other", 5), ("p", 1), ("p", 2), ("p", 3)]
    assert client.closed_producers == [producer.producer_id]


def test_each_producer_with_a_failed_entry_is_closed_once(core: Core) -> None:
    topic, clients = core.topic(), [Client() for _ in range(3)]
    producers = [core.producer(topic, client, f"p{number}") for number, client in enumerate(clients)]
    for producer in producers[:2]:
        send(core, producer, 0, 1, 2)
    with core.full_disk():
        core.commit()
    assert [len(client.closed_producers) for client in clients] == [1, 1, 0]
    assert list(topic.producers) == ["p2"]


def test_exclusive_access_passes_on_from_a_producer_with_a_failed_entry(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client, access_mode=AccessMode.EXCLUSIVE)
    core.producer(topic, client, "next", access_mode=AccessMode.WAIT_FOR_EXCLUSIVE)
    send(core, producer, 1)
    with core.full_disk():
        core.commit()
    assert list(topic.producers) == ["next"]
    assert len(client.ready_producers) == 1


def test_a_producer_that_never_registers_is_not_closed(core: Core) -> None:
    """As that of dead letters, which hears of each letter and sends it again by itself."""
    topic, client = core.topic(), Client()
    producer = Producer(topic, client, 1, "letters")
    send(core, producer, 1)
    with core.full_disk():
        core.commit()
    assert len(client.errors) == 1
    assert client.closed_producers == []


def test_a_producer_that_has_replaced_one_with_a_failed_entry_stays(core: Core) -> None:
    topic, client, again = core.topic(), Client(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 1)
    topic.producer_registry.remove(producer)
    replacing = core.producer(topic, again)
    with core.full_disk():
        core.commit()
    assert client.closed_producers == again.closed_producers == []
    assert topic.producers == {"p": replacing}


def test_a_producer_that_cannot_be_closed_keeps_no_other_open(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, broken, client = core.topic(), Client(), Client()
    for each, name in ((broken, "broken"), (client, "p")):
        send(core, core.producer(topic, each, name), 1)

    def boom(producer: Producer) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(broken, "send_close_producer", boom)
    with core.full_disk():
        core.commit()
    assert len(client.closed_producers) == 1
    assert topic.producers == {}


# -- while the disk is full ------------------------------------------------------------------------------------------


def refused(core: Core) -> Topic:
    """Let the disk refuse an entry, and so know that it is full."""
    topic = core.topic()
    send(core, core.producer(topic, name="first"), 0)
    core.commit()
    return topic


def test_a_producer_that_comes_back_to_a_full_disk_waits_until_there_is_room(core: Core) -> None:
    with core.full_disk():
        topic = refused(core)
        room = comes_back(core)
        assert isinstance(room, WaitingRoom)
        asked: list[str] = []
        room.hold(lambda: asked.append("p"))
        core.advance(60_000)
        assert asked == []
        assert "p" not in topic.producers
    core.advance(1000)
    assert asked == ["p"]
    assert isinstance(comes_back(core), OpenedProducer)
    core.advance(1000)
    assert asked == ["p"]


def test_a_new_producer_is_taken_on_a_full_disk_and_its_first_entry_refused(core: Core) -> None:
    with core.full_disk():
        topic = refused(core)
        opened = comes_back(core, epoch=0)
        assert isinstance(opened, OpenedProducer)
        send(core, opened.producer, 0)
        core.commit()
        client = opened.producer.sink
        assert isinstance(client, Client)
        assert ["new messages are refused" in str(error) for _, error in client.errors] == [True]
        assert topic.producers == {}


def test_a_producer_waits_for_a_second_after_a_refusal_also_if_a_smaller_entry_fits(core: Core) -> None:
    topic = core.topic()
    other = core.producer(topic, name="other")
    with core.full_disk():
        refused(core)
    send(core, other, 0)
    core.commit()
    assert not core.store.space.full
    room = comes_back(core)
    assert isinstance(room, WaitingRoom)
    asked: list[int] = []
    room.hold(lambda: asked.append(core.clock.now_ms()))
    start = core.clock.now_ms()
    for _ in range(40):
        core.advance(50)
    assert [at - start for at in asked] == [1000]


def test_a_producer_that_gave_up_is_not_let_in(core: Core) -> None:
    asked: list[str] = []
    with core.full_disk():
        topic = refused(core)
        for name in ("a", "b"):
            room = comes_back(core, name)
            assert isinstance(room, WaitingRoom)
            resume = lambda name=name: asked.append(name)  # noqa: E731
            room.hold(resume)
            if name == "a":
                room.drop_held(resume)
        assert core.broker.disk_waits.held_producers(topic) == 1
    core.advance(2000)
    assert asked == ["b"]
    assert core.broker.disk_waits.held_producers(topic) == 0


def test_many_that_wait_ask_by_turns_and_one_that_raises_keeps_no_other_away(core: Core) -> None:
    asked: list[int] = []

    def ask(number: int) -> None:
        asked.append(number)
        if number == 3:
            raise RuntimeError("boom")

    with core.full_disk():
        refused(core)
        for number in range(450):
            room = comes_back(core, f"p{number}")
            assert isinstance(room, WaitingRoom)
            room.hold(lambda number=number: ask(number))  # type: ignore[misc]
    core.clock.advance_ms(1000)
    core.store.maintain()
    core.broker.ticks.run()
    assert asked == [0, 1, 2, 3]
    core.clock.advance_ms(1000)
    turns = []
    while len(asked) < 450:
        before = len(asked)
        assert core.broker.ticks.run() == (before + 200 < 450)
        turns.append(len(asked) - before)
    assert turns == [200, 200, 46]
    assert asked == list(range(450))


def test_those_that_wait_stay_when_the_disk_is_full_again(core: Core) -> None:
    topic = core.topic()
    asked: list[str] = []
    with core.full_disk():
        refused(core)
        for name in ("a", "b"):
            room = comes_back(core, name)
            assert isinstance(room, WaitingRoom)

            def ask(name: str = name) -> None:
                asked.append(name)
                with core.full_disk():
                    send(core, core.producer(topic, name=name), 0)
                    core.commit()

            room.hold(ask)
    core.advance(1000)
    assert asked == ["a"]
    core.advance(1000)
    assert asked == ["a", "b"]


def test_a_topic_is_in_use_while_a_producer_of_it_waits(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(inactive_topic=InactiveTopic(2000)))
    with core.full_disk():
        topic = core.topic()
        topic.create_subscription("s")
        core.commit()
        send(core, core.producer(topic), 0)
        core.commit()
        topic.delete_subscription("s")
        room = comes_back(core)
        assert isinstance(room, WaitingRoom)
        room.hold(lambda: None)
        core.advance(10_000)
        assert not topic.closed
    core.advance(2000)
    core.advance(10_000)
    assert topic.closed


def test_a_topic_keeps_no_room_once_nobody_waits_in_it(core: Core) -> None:
    """Each attempt may have created a topic of its own, which went again when it had to wait."""
    waits = core.broker.disk_waits
    with core.full_disk():
        refused(core)
        for number in range(3):
            name = TopicName.parse(f"gone-{number}")
            room = open_producer(core.broker, Client(), ProducerRequest(name, 1, "p", epoch=1))
            assert isinstance(room, WaitingRoom)
            assert len(waits._rooms) == 0
            resume = lambda: None  # noqa: E731
            room.hold(resume)
            assert len(waits._rooms) == 1
            room.drop_held(resume)
            assert len(waits._rooms) == 0
            room.drop_held(resume)


def test_a_producer_that_waits_counts_for_the_topic_that_is_created_again_under_the_name(core: Core) -> None:
    asked: list[str] = []
    with core.full_disk():
        topic = refused(core)
        first = comes_back(core, "a")
        assert isinstance(first, WaitingRoom)
        first.hold(lambda: asked.append("a"))
        core.broker.topics.delete(topic.name, force=True)
        core.commit()
        recreated = core.topic()
        assert recreated.statistics.held_producers == 1
        second = comes_back(core, "b")
        assert isinstance(second, WaitingRoom)
        second.hold(lambda: asked.append("b"))
        assert recreated.statistics.held_producers == 2
    core.advance(2000)
    assert asked == ["a", "b"]
    assert recreated.statistics.held_producers == 0


def test_a_producer_that_was_shown_its_room_before_the_last_one_left_it_is_asked(core: Core) -> None:
    asked: list[str] = []
    with core.full_disk():
        refused(core)
        first, second = comes_back(core, "a"), comes_back(core, "b")
        assert isinstance(first, WaitingRoom)
        assert isinstance(second, WaitingRoom)
        first.hold(lambda: asked.append("a"))
        second.hold(lambda: asked.append("b"))
    core.advance(2000)
    assert asked == ["a", "b"]


def test_a_producer_that_waits_creates_no_topic(core: Core) -> None:
    with core.full_disk():
        topic = refused(core)
        core.broker.topics.delete(topic.name, force=True)
        core.commit()
        assert isinstance(comes_back(core), WaitingRoom)
        assert str(NAME) not in core.broker.directory.topics


def test_no_producer_of_a_topic_that_stores_nothing_waits(core: Core) -> None:
    with core.full_disk():
        refused(core)
        request = ProducerRequest(TopicName.parse("non-persistent://public/default/t"), 1, "p", epoch=1)
        assert isinstance(open_producer(core.broker, Client(), request), OpenedProducer)
