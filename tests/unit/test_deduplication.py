"""Deduplication on the real core: what is stored, in which order it is answered, and what a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_api.policies.policies import Policies, Retention
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import peek_metadata
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import NotAllowed, PersistenceError
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.policies import deduplication
from heliograph_broker.messaging.policies.deduplication import PURGE_INTERVAL_MS, SNAPSHOT_ENTRIES
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.usecases import publishing

from tests.support.core import Client, Core
from tests.support.entries import make_frame

ON = Policies(deduplication=True, retention=Retention(-1, -1))
OFF = Policies(deduplication=False, retention=Retention(-1, -1))
HOUR_MS = 3_600_000


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"deduplication_inactivity_ms": HOUR_MS}


@pytest.fixture
def core(core: Core) -> Core:
    core.keep_nothing()
    core.broker.namespaces.set_policies("public/default", ON)
    core.commit()
    return core


def crash(core: Core) -> None:
    """Crash as kill -9 does: nothing that was not committed is there afterwards."""
    core.close()
    core._open()


def send(core: Core, producer: Producer, *sequence_ids: int, **options: object) -> None:
    for sequence_id in sequence_ids:
        core.publish(producer, b"m%d" % sequence_id, sequence_id=sequence_id, **options)


def stored(topic: Topic) -> int:
    return topic.log.end_offset - topic.log.first_offset


def last(topic: Topic, name: str = "p") -> int:
    assert topic.deduplication is not None
    return topic.deduplication.last_sequence_id(name)


def duplicates(client: Client) -> list[int]:
    return [sequence_id for sequence_id, ledger, entry in client.receipts if (ledger, entry) == (-1, -1)]


def test_what_is_sent_again_is_answered_and_not_stored_again(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 0, 1, 2)
    core.commit()
    send(core, producer, 1, 2, 3)
    core.commit()
    assert stored(topic) == 4
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0, 1, 2, 1, 2, 3]
    assert duplicates(client) == [1, 2]
    assert not client.errors
    assert last(topic) == 3
    assert topic.deduplication is not None
    assert topic.deduplication.duplicates == 2


def test_without_the_policy_everything_is_stored(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", OFF)
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0, 0, 0)
    core.commit()
    assert stored(topic) == 3


def test_producers_are_told_apart_by_name(core: Core) -> None:
    topic = core.topic()
    send(core, core.producer(topic, name="a"), 0, 1)
    send(core, core.producer(topic, name="b"), 0, 1)
    core.commit()
    assert stored(topic) == 4
    assert last(topic, "a") == last(topic, "b") == 1
    assert last(topic, "c") == -1


def test_a_repetition_of_what_is_still_being_written_is_answered_in_order(core: Core) -> None:
    topic, old, new = core.topic(), Client(), Client()
    producer = core.producer(topic, old)
    send(core, producer, 0, 1)
    topic.producer_registry.remove(producer)
    again = core.producer(topic, new)
    send(core, again, 0, 1, 2, 1, 3)
    assert new.receipts == []
    core.commit()
    assert stored(topic) == 4
    assert [sequence_id for sequence_id, _, _ in old.receipts] == [0, 1]
    assert [sequence_id for sequence_id, _, _ in new.receipts] == [0, 1, 2, 1, 3]
    assert duplicates(new) == [0, 1, 1]


def test_a_producer_that_comes_back_counts_on_after_what_is_still_being_written(core: Core) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0, 1)
    core.commit()
    send(core, producer, 2, 3)
    topic.producer_registry.remove(producer)
    # With 1 it would give its next messages the ids of those under way, and they would be dropped.
    assert last(topic) == 3
    again = core.producer(topic)
    send(core, again, 4)
    core.commit()
    assert (stored(topic), last(topic)) == (5, 4)


def test_a_repetition_of_what_could_not_be_stored_fails_too_and_can_be_sent_again(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 0)
    core.commit()
    send(core, producer, 1, 1, 0)
    with core.full_disk():
        core.commit()
    assert [(sequence_id, type(error)) for sequence_id, error in client.errors] == [
        (1, PersistenceError),
        (1, PersistenceError),
    ]
    assert duplicates(client) == [0]
    send(core, producer, 1)
    core.commit()
    assert stored(topic) == 2
    assert last(topic) == 1


def fail_to_store(core: Core) -> None:
    """Let the store refuse what is under way, and take what comes next."""
    with core.full_disk():
        core.commit()


def test_a_producer_is_closed_when_an_entry_could_not_be_stored_and_sends_all_again(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer, other = core.producer(topic, client), core.producer(topic, name="other")
    send(core, producer, 0)
    core.commit()
    send(core, producer, 1, 2)
    fail_to_store(core)
    # Its connection drops what was sent before the client knew of the errors. If that were stored, 1 and 2 would count
    # as stored, too.
    assert not topic.producer_registry.may_publish(producer)
    send(core, other, 5)
    core.commit()
    assert [sequence_id for sequence_id, _ in client.errors] == [1, 2]
    assert client.closed_producers == [producer.producer_id]
    assert (stored(topic), last(topic), last(topic, "other")) == (2, 0, 5)
    send(core, core.producer(topic, client), 1, 2, 3)
    core.commit()
    assert duplicates(client) == []
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [0, 1, 2, 3]
    assert (stored(topic), last(topic)) == (5, 3)


def test_a_producer_is_closed_before_it_stores_what_is_behind_an_entry_that_was_damaged(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)

    def send_damaged() -> None:
        _, frame = make_frame(b"m1", sequence_id=1)
        publishing.publish(producer, 1, 0, frame[:-1] + b"?", False, 5 << 20)

    send(core, producer, 0)
    core.commit()
    send_damaged()
    send(core, producer, 2)
    assert client.closed_producers == [producer.producer_id]
    producer = core.producer(topic, client)
    send(core, producer, 1, 2)
    core.commit()
    # A repetition of what is stored may be damaged: nothing is lost with it.
    send_damaged()
    send(core, producer, 3)
    core.commit()
    assert client.closed_producers == [producer.producer_id]
    assert [sequence_id for sequence_id, _ in client.errors] == [1, 1]
    assert duplicates(client) == []
    assert (stored(topic), last(topic)) == (4, 3)


@pytest.mark.parametrize("switched", ["on while it was written", "off after it failed", "off while it was written"])
def test_what_could_not_be_stored_is_not_overtaken_when_deduplication_is_switched(core: Core, switched: str) -> None:
    topic, client = core.topic(), Client()
    core.broker.namespaces.set_policies("public/default", OFF if "on" in switched.split() else ON)
    producer = core.producer(topic, client)
    send(core, producer, 1, 2)
    if "written" in switched:
        core.broker.namespaces.set_policies("public/default", ON if "on" in switched.split() else OFF)
    fail_to_store(core)
    core.broker.namespaces.set_policies("public/default", ON if "on" in switched.split() else OFF)
    assert client.closed_producers == [producer.producer_id]
    send(core, core.producer(topic, client), 1, 2, 3)
    core.commit()
    assert duplicates(client) == []
    assert stored(topic) == 3


def test_a_producer_that_took_the_name_over_is_closed_before_it_stores_what_is_behind_a_failed_entry(
    core: Core,
) -> None:
    topic, client = core.topic(), Client()
    send(core, core.producer(topic), 1, 2)
    topic.producer_registry.remove(next(iter(topic.producers.values())))
    again = core.producer(topic, client)
    fail_to_store(core)
    assert client.closed_producers == []
    send(core, again, 3)
    core.commit()
    assert client.closed_producers == [again.producer_id]
    assert stored(topic) == 0


def test_a_producer_that_never_registers_goes_on_behind_what_could_not_be_stored(core: Core) -> None:
    """As that of dead letters, which gives a letter that it sends again another sequence id."""
    topic = core.topic()
    producer = Producer(topic, Client(), 1, "letters")
    send(core, producer, 1)
    fail_to_store(core)
    send(core, producer, 2, 3)
    core.commit()
    assert (stored(topic), last(topic, "letters")) == (2, 3)


def test_a_producer_that_registers_again_need_not_send_what_could_not_be_stored(core: Core) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0, 1)
    fail_to_store(core)
    topic.producer_registry.remove(producer)
    again = core.producer(topic)
    # It gets this number when it registers.
    assert last(topic) == -1
    send(core, again, 4)
    core.commit()
    assert (stored(topic), last(topic)) == (1, 4)


def test_a_message_of_which_a_chunk_could_not_be_stored_is_not_ended_by_its_last_chunk(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)

    def send_chunks(*chunks: int) -> None:
        for chunk in chunks:
            send(core, producer, 7, uuid="u", chunk_id=chunk, num_chunks_from_msg=3, total_chunk_msg_size=6)

    send_chunks(0)
    core.commit()
    send_chunks(1)
    fail_to_store(core)
    assert client.closed_producers == [producer.producer_id]
    assert [sequence_id for sequence_id, _ in client.errors] == [7]
    assert (stored(topic), last(topic)) == (1, -1)
    producer = core.producer(topic, client)
    send_chunks(0, 1, 2)
    core.commit()
    assert duplicates(client) == []
    assert (stored(topic), last(topic)) == (4, 7)


def test_a_batch_counts_by_its_highest_sequence_id(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 0, messages=10, highest_sequence_id=9)
    core.commit()
    assert last(topic) == 9
    send(core, producer, 0, messages=10, highest_sequence_id=9)
    send(core, producer, 5)
    send(core, producer, 10, messages=5, highest_sequence_id=14)
    core.commit()
    assert duplicates(client) == [0, 5]
    assert topic.log.total_messages == 15
    assert last(topic) == 14


def test_a_batch_that_is_stored_in_part_is_refused_by_name(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 7)
    core.commit()
    send(core, producer, 5, messages=6, highest_sequence_id=10)
    core.commit()
    [(sequence_id, refusal)] = client.errors
    assert (sequence_id, type(refusal)) == (5, NotAllowed)
    assert "5 to 10, of which those up to 7 are stored" in str(refusal)
    assert stored(topic) == 1


def test_a_refusal_comes_after_the_receipts_of_what_was_sent_before(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 5)
    # A client takes an answer that is not the next one it waits for as a broken connection.
    core.publish(producer, sequence_id=4, highest_sequence_id=6, messages=3)
    assert client.errors == []
    core.commit()
    assert [sequence_id for sequence_id, _, _ in client.receipts] == [5]
    assert [sequence_id for sequence_id, _ in client.errors] == [4]


def test_the_last_chunk_decides_for_all_chunks_of_a_message(core: Core) -> None:
    topic, client = core.topic(), Client()
    producer = core.producer(topic, client)
    send(core, producer, 0)
    for chunk in range(3):
        send(core, producer, 1, chunk=(chunk, 3))
    core.commit()
    assert stored(topic) == 4
    assert last(topic) == 1
    for chunk in range(3):
        send(core, producer, 1, chunk=(chunk, 3))
    core.commit()
    assert stored(topic) == 4
    assert duplicates(client) == [1, 1, 1]


def test_a_message_whose_last_chunk_is_missing_is_not_taken_for_stored(core: Core) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, 0)
    send(core, producer, 1, chunk=(0, 2))
    core.commit()
    assert last(topic) == 0
    crash(core)
    topic = core.topic()
    assert last(topic) == 0
    client = Client()
    producer = core.producer(topic, client)
    send(core, producer, 1, chunk=(0, 2))
    send(core, producer, 1, chunk=(1, 2))
    core.commit()
    assert not duplicates(client)
    assert last(topic) == 1


def test_an_entry_that_names_another_producer_is_refused(core: Core) -> None:
    topic, client = core.topic(), Client()
    core.publish_entry(core.producer(topic, client), *make_frame(producer="somebody"))
    core.commit()
    assert stored(topic) == 0
    assert "'somebody', not 'p'" in str(client.errors[0][1])


# -- restarts ------------------------------------------------------------------------------------------------


def test_after_a_crash_nothing_receipted_is_stored_again_and_nothing_else_is_taken_for_stored(core: Core) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    send(core, producer, *range(10))
    core.commit()
    send(core, producer, 10, 11)
    crash(core)
    topic, client = core.topic(), Client()
    assert last(topic) == 9
    send(core, core.producer(topic, client), *range(5, 13))
    core.commit()
    assert stored(topic) == 13
    assert duplicates(client) == [5, 6, 7, 8, 9]


def test_what_was_trimmed_is_remembered_over_a_crash(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
    topic = core.topic()
    subscription = topic.create_subscription("s")
    send(core, core.producer(topic), *range(10))
    core.commit()
    subscription.acks.acknowledge_up_to(9, None)
    core.commit()
    core.advance(1000)
    assert topic.log.first_offset == 10
    crash(core)
    assert last(core.topic()) == 9


def test_what_is_trimmed_right_after_a_start_is_remembered_over_the_next_crash(core: Core) -> None:
    core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
    topic = core.topic()
    topic.create_subscription("s")
    send(core, core.producer(topic), *range(10))
    core.commit()
    crash(core)
    topic = core.topic()
    topic.subscriptions["s"].acks.acknowledge_up_to(9, None)
    core.commit()
    core.advance(1000)
    assert topic.log.first_offset == 10
    crash(core)
    assert last(core.topic()) == 9


def test_a_start_reads_only_the_entries_behind_the_last_snapshot(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = core.topic()
    producer = core.producer(topic)
    for at in range(0, 5 * SNAPSHOT_ENTRIES, 100):
        send(core, producer, *range(at, at + 100))
        core.commit()
    crash(core)
    topic = core.topic()
    read = 0

    def counting(frame: memoryview) -> wire.MessageMetadata:
        nonlocal read
        read += 1
        return peek_metadata(frame)

    monkeypatch.setattr(deduplication, "peek_metadata", counting)
    assert last(topic) == 5 * SNAPSHOT_ENTRIES - 1
    assert read <= SNAPSHOT_ENTRIES + 100
    last(topic)
    assert read <= SNAPSHOT_ENTRIES + 100


def test_ids_survive_a_restart_in_good_order_and_a_topic_of_many_ledgers(tmp_path: Path) -> None:
    core = Core(tmp_path / "d", ledger_max_entries=7)
    core.broker.namespaces.set_policies("public/default", ON)
    send(core, core.producer(core.topic()), *range(50))
    core.commit()
    core.restart()
    assert last(core.topic()) == 49
    core.close()


def test_a_topic_made_again_under_its_name_knows_nothing_of_the_old_one(core: Core) -> None:
    send(core, core.producer(core.topic()), 0, 1)
    core.commit()
    core.broker.topics.delete(TopicName.parse("t"), force=True)
    assert last(core.topic()) == -1
    core.commit()
    crash(core)
    assert last(core.topic()) == -1


# -- forgetting ----------------------------------------------------------------------------------------------


def test_producers_are_forgotten_when_they_were_away_for_long(core: Core) -> None:
    topic = core.topic()
    gone, stays = core.producer(topic, name="gone"), core.producer(topic, name="stays")
    send(core, gone, 5)
    send(core, stays, 6)
    core.commit()
    core.advance(10 * HOUR_MS)
    assert last(topic, "gone") == 5
    topic.producer_registry.remove(gone)
    core.advance(HOUR_MS - 1)
    assert topic.deduplication is not None
    assert topic.deduplication._durable == {"gone": 5, "stays": 6}
    core.advance(2 * PURGE_INTERVAL_MS)
    assert topic.deduplication._durable == {"stays": 6}
    crash(core)
    assert last(core.topic(), "gone") == -1
    assert last(core.topic(), "stays") == 6


def test_what_could_not_be_stored_is_forgotten_with_its_producer(core: Core) -> None:
    topic = core.topic()
    core.commit()
    send(core, core.producer(topic, name="gone"), 5)
    fail_to_store(core)
    core.producer(topic, name="stays")
    ids = topic.deduplication
    assert ids is not None
    ids.damaged("stays", 6)
    core.producer(topic, name="keeps the topic in use")
    core.advance(HOUR_MS - 1)
    assert set(ids._failed) == {"gone", "stays"}
    core.advance(2 * PURGE_INTERVAL_MS)
    core.advance(HOUR_MS)
    core.advance(2 * PURGE_INTERVAL_MS)
    assert set(ids._failed) == {"stays"}
    # One that comes back after all need not send it, and leaves nothing behind.
    assert last(topic, "stays") == -1
    topic.producer_registry.remove(topic.producers["stays"])
    core.advance(2 * HOUR_MS)
    core.advance(2 * PURGE_INTERVAL_MS)
    assert not ids._failed
    assert not ids._active_ms
