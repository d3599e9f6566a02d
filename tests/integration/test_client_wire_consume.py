"""SUBSCRIBE, FLOW, MESSAGE, ACK and what belongs to them, on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import RunningBroker, backlog, numbers, rest, stats
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Frame, Type, WireClient, WireError, payload_of

Sub = wire.CommandSubscribe
CUMULATIVE = wire.CommandAck.Cumulative


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


def payloads(frames: list[Frame]) -> list[bytes]:
    return [payload_of(frame) for frame in frames]


def position(message_id: Any) -> tuple[int, int]:
    return message_id.ledgerId, message_id.entryId


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Shared, Sub.Failover, Sub.Key_Shared], ids=Sub.SubType.Name)
def test_permits_are_kept_to(wired: WireClient, topic: str, kind: int) -> None:
    consumer = wired.subscribe(topic, subType=kind)
    wired.publish_numbers(topic, 5)
    assert [f for f in wired.fence() if f.command.type == Type.MESSAGE] == []
    wired.flow(consumer, 2)
    assert payloads(wired.messages(2)) == numbers(0, 1)
    assert [f for f in wired.fence() if f.command.type == Type.MESSAGE] == []
    wired.flow(consumer, 1)
    assert payloads(wired.messages(1)) == numbers(2, 2)
    wired.flow(consumer, 100)
    assert payloads(wired.messages(2)) == numbers(3, 4)


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Shared], ids=Sub.SubType.Name)
def test_batch_uses_as_many_permits_as_it_has_messages(wired: WireClient, topic: str, kind: int) -> None:
    consumer = wired.subscribe(topic, subType=kind)
    wired.flow(consumer, 5)
    producer = wired.producer(topic)
    for i in range(3):
        wired.publish(producer, make_entry([b"x"] * 5), sequence_id=i, num_messages=5)
    wired.messages(1)
    assert wired.fence() == []
    wired.flow(consumer, 10)
    wired.messages(2)


def test_ack_with_many_ids_is_confirmed(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    ids = wired.publish_numbers(topic, 6)
    wired.flow(consumer, 100)
    wired.messages(6)
    answer = wired.ack(consumer, ids[0], ids[2], ids[5])
    assert not answer.HasField("error")
    assert answer.consumer_id == consumer
    assert backlog(broker, topic, "s") == 3
    assert not wired.ack(consumer, ids[0]).HasField("error"), "acknowledging again is harmless"
    assert backlog(broker, topic, "s") == 3


@pytest.mark.parametrize("kind", [Sub.Exclusive, Sub.Failover], ids=Sub.SubType.Name)
def test_cumulative_ack(wired: WireClient, broker: RunningBroker, topic: str, kind: int) -> None:
    consumer = wired.subscribe(topic, subType=kind)
    ids = wired.publish_numbers(topic, 6)
    wired.flow(consumer, 100)
    wired.messages(6)
    assert not wired.ack(consumer, ids[3], ack_type=CUMULATIVE).HasField("error")
    assert backlog(broker, topic, "s") == 2


def test_cumulative_ack_before_the_first_entry_of_a_ledger_is_of_what_is_before_the_ledger(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    consumer = wired.subscribe(topic)
    ids = wired.publish_numbers(topic, 3)
    before = wire.MessageIdData(ledgerId=ids[0].ledgerId, entryId=0xFFFFFFFFFFFFFFFF)
    assert not wired.ack(consumer, before, ack_type=CUMULATIVE).HasField("error")
    assert backlog(broker, topic, "s") == 3


def test_cumulative_ack_of_what_was_never_stored_is_refused(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    consumer = wired.subscribe(topic)
    *_, last = wired.publish_numbers(topic, 3)
    for ledger, entry in ((last.ledgerId, last.entryId + 1), (last.ledgerId + 1, 0), (2**63 - 1, 2**63 - 1)):
        beyond = wire.MessageIdData(ledgerId=ledger, entryId=entry)
        answer = wired.ack(consumer, beyond, ack_type=CUMULATIVE)
        assert f"{ledger}:{entry} is not the id of a message" in answer.message
    assert backlog(broker, topic, "s") == 3


@pytest.mark.parametrize("kind", [Sub.Shared, Sub.Key_Shared], ids=Sub.SubType.Name)
def test_cumulative_ack_is_refused_on_shared_types(
    wired: WireClient, broker: RunningBroker, topic: str, kind: int
) -> None:
    consumer = wired.subscribe(topic, subType=kind)
    ids = wired.publish_numbers(topic, 3)
    wired.flow(consumer, 100)
    wired.messages(3)
    assert wired.ack(consumer, ids[1], ack_type=CUMULATIVE).error == wire.NotAllowedError
    assert backlog(broker, topic, "s") == 3


def test_ack_of_a_message_that_was_never_published_changes_nothing(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    ids = wired.publish_numbers(topic, 3)
    future = wire.MessageIdData(ledgerId=ids[0].ledgerId, entryId=10_000)
    elsewhere = wire.MessageIdData(ledgerId=ids[0].ledgerId + 1000, entryId=0)
    wired.ack(consumer, future, elsewhere)
    assert backlog(broker, topic, "s") == 3
    wired.flow(consumer, 10)
    assert payloads(wired.messages(3)) == numbers(0, 2)


def test_ack_set_marks_batch_indexes_and_comes_back_on_redelivery(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    producer = wired.producer(topic)
    batch = make_entry(numbers(0, 7))
    message_id = wired.publish(producer, batch, num_messages=8)
    wired.flow(consumer, 100)
    wired.messages(1)

    def ack_leaving(bits: int) -> None:
        answer = wired.ack(
            consumer,
            wire.MessageIdData(ledgerId=message_id.ledgerId, entryId=message_id.entryId, batch_size=8, ack_set=[bits]),
        )
        assert not answer.HasField("error")

    # A set bit is a message that is still to be acknowledged.
    ack_leaving(0b11110000)
    assert backlog(broker, topic, "s") == 4
    ack_leaving(0b11101111)
    assert backlog(broker, topic, "s") == 3
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer)
    again = wired.expect(Type.MESSAGE)
    assert again.entry == batch
    assert list(again.body.ack_set) == [0b11100000]
    assert again.body.redelivery_count == 1
    ack_leaving(0b00011111)
    assert backlog(broker, topic, "s") == 0


def test_redeliver_by_id(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    ids = wired.publish_numbers(topic, 4)
    wired.flow(consumer, 100)
    wired.messages(4)
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer, message_ids=[ids[1], ids[3]])
    again = wired.messages(2)
    assert payloads(again) == [b"1", b"3"]
    assert [f.body.redelivery_count for f in again] == [1, 1]
    assert wired.fence() == []


def test_redeliver_of_an_acked_message_brings_nothing(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    ids = wired.publish_numbers(topic, 2)
    wired.flow(consumer, 100)
    wired.messages(2)
    wired.ack(consumer, ids[0])
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer, message_ids=[ids[0]])
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer)
    assert payloads(wired.messages(1)) == [b"1"]
    assert wired.fence() == []


def test_redeliver_all_on_exclusive(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic)
    ids = wired.publish_numbers(topic, 4)
    wired.flow(consumer, 100)
    wired.messages(4)
    wired.ack(consumer, ids[0])
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer)
    assert payloads(wired.messages(3)) == numbers(1, 3)


def test_messages_of_an_ended_connection_go_to_the_others(broker: RunningBroker, topic: str) -> None:
    leaving = WireClient(broker.service_url)
    gone = leaving.subscribe(topic, subType=Sub.Shared)
    leaving.publish_numbers(topic, 4)
    leaving.flow(gone, 100)
    leaving.messages(4)
    with WireClient(broker.service_url) as staying:
        consumer = staying.subscribe(topic, subType=Sub.Shared)
        staying.flow(consumer, 100)
        leaving.close()
        again = staying.messages(4)
        assert payloads(again) == numbers(0, 3)
        assert {f.body.redelivery_count for f in again} <= {0, 1}


def test_get_last_message_id_with_mark_delete_position(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic)

    def last() -> Any:
        return wired.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=consumer)

    empty = last()
    assert wire.MessageIdData.FromString(empty.last_message_id.SerializeToString()).entryId in (2**64 - 1,)
    ids = wired.publish_numbers(topic, 5)
    answer = last()
    assert position(answer.last_message_id) == position(ids[4])
    assert answer.last_message_id.batch_index == -1
    wired.flow(consumer, 10)
    wired.messages(5)
    wired.ack(consumer, ids[2], ack_type=CUMULATIVE)
    assert position(last().consumer_mark_delete_position) == position(ids[2])
    batch = wired.publish(wired.producer(topic), make_entry([b"a", b"b", b"c"]), num_messages=3)
    answer = last()
    assert position(answer.last_message_id) == position(batch)
    assert answer.last_message_id.batch_index == 2


def test_consumer_stats(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared, consumer_name="counted")
    ids = wired.publish_numbers(topic, 5)
    wired.flow(consumer, 3)
    wired.messages(3)
    wired.ack(consumer, ids[0])
    answer = wired.request(Type.CONSUMER_STATS, Type.CONSUMER_STATS_RESPONSE, consumer_id=consumer)
    assert not answer.HasField("error_code")
    assert answer.consumerName == "counted"
    assert answer.type == "Shared"
    assert answer.msgBacklog == 4
    assert answer.unackedMessages == 2
    assert answer.availablePermits == 0
    assert answer.address
    assert answer.connectedSince


def test_active_consumer_change(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as one, WireClient(broker.service_url) as two:
        first = one.subscribe(topic, subType=Sub.Failover, consumer_name="a")
        change = one.expect(Type.ACTIVE_CONSUMER_CHANGE).body
        assert (change.consumer_id, change.is_active) == (first, True)
        second = two.subscribe(topic, subType=Sub.Failover, consumer_name="b")
        change = two.expect(Type.ACTIVE_CONSUMER_CHANGE).body
        assert (change.consumer_id, change.is_active) == (second, False)
        one.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=first)
        change = two.expect(Type.ACTIVE_CONSUMER_CHANGE).body
        assert (change.consumer_id, change.is_active) == (second, True)


def test_higher_priority_takes_over_failover(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as one, WireClient(broker.service_url) as two:
        one.subscribe(topic, subType=Sub.Failover, consumer_name="a", priority_level=1)
        assert one.expect(Type.ACTIVE_CONSUMER_CHANGE).body.is_active
        two.subscribe(topic, subType=Sub.Failover, consumer_name="b", priority_level=0)
        assert two.expect(Type.ACTIVE_CONSUMER_CHANGE).body.is_active
        assert not one.expect(Type.ACTIVE_CONSUMER_CHANGE).body.is_active


def test_shared_priority_is_served_first(wired: WireClient, topic: str) -> None:
    low = wired.subscribe(topic, subType=Sub.Shared, priority_level=1)
    high = wired.subscribe(topic, subType=Sub.Shared, priority_level=0)
    wired.flow(low, 10)
    wired.flow(high, 3)
    wired.publish_numbers(topic, 5)
    receivers = [f.body.consumer_id for f in wired.messages(5)]
    assert receivers == [high, high, high, low, low]


def test_force_topic_creation_false_on_a_missing_topic(wired: WireClient, topic: str) -> None:
    with pytest.raises(WireError) as refused:
        wired.subscribe(topic, force_topic_creation=False)
    assert refused.value.code == wire.TopicNotFound
    wired.producer(topic)
    wired.subscribe(topic, force_topic_creation=False)


def test_start_from_now_rollback(wired: WireClient, topic: str) -> None:
    keeper = wired.subscribe(topic, "keeper")
    producer = wired.producer(topic)
    wired.publish_numbers(topic, 3)
    for rollback, expected in ((3600, numbers(0, 2)), (0, [])):
        reader = wired.subscribe(
            topic,
            f"reader-{rollback}",
            durable=False,
            initialPosition=Sub.Latest,
            start_message_rollback_duration_sec=rollback,
        )
        wired.flow(reader, 100)
        marker = b"marker-%d" % rollback
        wired.publish(producer, make_entry(marker))
        got = []
        while marker not in got:
            got.append(payload_of(wired.expect(Type.MESSAGE)))
        assert got == [*expected, marker]
        wired.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=reader)
        expected.append(marker)
    wired.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=keeper)


def test_non_durable_subscription_starts_at_an_id_and_leaves_nothing(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    wired.subscribe(topic, "keeper")
    ids = wired.publish_numbers(topic, 5)
    # The broker starts at the given message itself; skipping it is the client's business.
    reader = wired.subscribe(topic, "reader", durable=False, start_message_id=ids[2])
    wired.flow(reader, 100)
    assert payloads(wired.messages(3)) == numbers(2, 4)
    wired.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=reader)
    path = f"persistent/public/default/{topic}/subscriptions"
    eventually(lambda: rest(broker, "GET", path) == ["keeper"], what="the reader's subscription to be gone")


def test_seek_by_id_and_time_closes_then_serves_again(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    wired.subscribe(topic, "keeper")  # or what is acknowledged would be trimmed
    consumer = wired.subscribe(topic)
    producer = wired.producer(topic)
    base = int(time.time() * 1000) - 1_000_000
    ids = [
        wired.publish(producer, make_entry(b"%d" % i, publish_time=base + i * 1000), sequence_id=i) for i in range(6)
    ]
    wired.flow(consumer, 100)
    wired.messages(6)
    wired.ack(consumer, ids[5], ack_type=CUMULATIVE)

    def seek_and_resubscribe(**where: Any) -> list[bytes]:
        # After a seek a broker disconnects the consumers, which subscribe again; one that stays connected goes on.
        nonlocal consumer
        wired.request(Type.SEEK, Type.SUCCESS, consumer_id=consumer, **where)
        if any(f.command.type == Type.CLOSE_CONSUMER for f in wired.fence()):
            consumer = wired.subscribe(topic)
        wired.flow(consumer, 100)
        left = backlog(broker, topic, "s")
        return payloads(wired.messages(left))

    assert seek_and_resubscribe(message_id=ids[2]) == numbers(2, 5)
    assert seek_and_resubscribe(message_publish_time=base + 3000) == numbers(3, 5)
    assert seek_and_resubscribe(message_publish_time=base + 3001) == numbers(4, 5)
    assert seek_and_resubscribe(message_publish_time=0) == numbers(0, 5)
    assert seek_and_resubscribe(message_publish_time=base + 10_000_000) == []


def test_unsubscribe(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    consumer = wired.subscribe(topic)
    wired.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=consumer)
    assert rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions") == []
    with pytest.raises(WireError):
        wired.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=consumer)


def test_subscription_properties_and_consumer_metadata_are_shown(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    wired.subscribe(
        topic,
        subscription_properties=[wire.KeyValue(key="team", value="ops")],
        metadata=[wire.KeyValue(key="host", value="a")],
        consumer_name="me",
    )
    shown = stats(broker, topic)["subscriptions"]["s"]
    assert shown["subscriptionProperties"] == {"team": "ops"}
    assert shown["consumers"][0]["metadata"] == {"host": "a"}
    assert shown["consumers"][0]["consumerName"] == "me"
    assert shown["type"] == "Exclusive"


def test_redelivery_with_old_consumer_epoch_is_ignored(wired: WireClient, topic: str) -> None:
    consumer = wired.subscribe(topic, consumer_epoch=5)
    wired.publish_numbers(topic, 2)
    wired.flow(consumer, 100)
    wired.messages(2)
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer, consumer_epoch=6)
    again = wired.messages(2)
    assert [f.body.consumer_epoch for f in again] == [6, 6]


def test_cumulative_ack_inside_a_batch_comes_back_as_ack_set(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    consumer = wired.subscribe(topic)
    first = wired.producer(topic)
    ids = wired.publish_numbers(topic, 2)
    batch = wired.publish(first, make_entry(numbers(0, 4)), num_messages=5)
    wired.flow(consumer, 100)
    wired.messages(3)
    within = wire.MessageIdData(
        ledgerId=batch.ledgerId, entryId=batch.entryId, batch_size=5, batch_index=1, ack_set=[0b11100]
    )
    assert not wired.ack(consumer, within, ack_type=CUMULATIVE).HasField("error")
    assert backlog(broker, topic, "s") == 3
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer)
    again = wired.expect(Type.MESSAGE)
    assert position(again.body.message_id) == position(batch) > position(ids[1])
    assert list(again.body.ack_set) == [0b11100]
    assert not wired.ack(consumer, batch, ack_type=CUMULATIVE).HasField("error")
    assert backlog(broker, topic, "s") == 0


def test_batch_of_more_than_64_messages_keeps_every_index(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    consumer = wired.subscribe(topic, subType=Sub.Shared)
    message_id = wired.publish(wired.producer(topic), make_entry([b"x"] * 130), num_messages=130)
    wired.flow(consumer, 1000)
    wired.messages(1)
    every = (1 << 130) - 1
    left = every & ~(1 << 0) & ~(1 << 64) & ~(1 << 129)
    # Words of 64 bits, lowest first, as Java's BitSet writes them: signed, trailing zero words left out.
    words = [(left >> shift) & (2**64 - 1) for shift in (0, 64, 128)]
    signed = [word - 2**64 if word >= 2**63 else word for word in words]
    wired.ack(
        consumer,
        wire.MessageIdData(ledgerId=message_id.ledgerId, entryId=message_id.entryId, batch_size=130, ack_set=signed),
    )
    assert backlog(broker, topic, "s") == 127
    wired.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=consumer)
    assert list(wired.expect(Type.MESSAGE).body.ack_set) == signed


def test_unsubscribe_by_force_ends_the_other_consumers(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as one, WireClient(broker.service_url) as two:
        first = one.subscribe(topic, subType=Sub.Shared)
        second = two.subscribe(topic, subType=Sub.Shared)
        with pytest.raises(WireError):
            one.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=first)
        one.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=first, force=True)
        assert two.expect(Type.CLOSE_CONSUMER).body.consumer_id == second
        assert rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions") == []


def test_closing_a_consumer_returns_its_messages_and_its_permits(broker: RunningBroker, topic: str) -> None:
    with WireClient(broker.service_url) as client:
        leaving = client.subscribe(topic, subType=Sub.Shared)
        staying = client.subscribe(topic, subType=Sub.Shared)
        client.flow(leaving, 10)
        client.publish_numbers(topic, 4)
        assert {f.body.consumer_id for f in client.messages(4)} == {leaving}
        client.flow(staying, 2)
        client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=leaving)
        again = client.messages(2)
        assert payloads(again) == numbers(0, 1)
        assert [f for f in client.fence() if f.command.type == Type.MESSAGE] == []
        client.flow(staying, 10)
        assert payloads(client.messages(2)) == numbers(2, 3)


def test_receipted_ack_survives_a_kill(broker_factory: Callable[..., BrokerProcess], topic: str) -> None:
    own = broker_factory()
    own.start()
    with WireClient(own.service_url) as client:
        consumer = client.subscribe(topic, subType=Sub.Shared)
        ids = client.publish_numbers(topic, 5)
        client.flow(consumer, 100)
        client.messages(5)
        assert not client.ack(consumer, ids[0], ids[3]).HasField("error")
        own.kill9()
    own.restart()
    with WireClient(own.service_url) as client:
        consumer = client.subscribe(topic, subType=Sub.Shared)
        client.flow(consumer, 100)
        assert payloads(client.messages(3)) == [b"1", b"2", b"4"]
        assert backlog(own, topic, "s") == 3
