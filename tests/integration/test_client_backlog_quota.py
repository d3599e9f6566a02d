"""Backlog quotas as official clients meet them: refused, held until there is room, or the oldest evicted."""

from __future__ import annotations

import threading
import time
from typing import Any

import pulsar
import pytest

from tests.integration.policies import PolicyNamespace
from tests.support.clients import DEADLINE_MS, RunningBroker, receive_many, rest
from tests.support.polling import eventually

_MESSAGE = b"m" * 1000


def _stats(broker: RunningBroker, namespace: PolicyNamespace) -> dict[str, Any]:
    answer: dict[str, Any] = rest(broker, "GET", f"persistent/{namespace.name}/t/stats")
    return answer


def _fill(producer: pulsar.Producer, most: int = 100) -> int:
    """Publish until a message is refused; return how many were not."""
    for sent in range(most):
        try:
            producer.send(_MESSAGE)
        except pulsar.ProducerBlockedQuotaExceededException:
            return sent
    raise AssertionError(f"{most} messages went through")


def _sends(
    producer: pulsar.Producer,
    payload: bytes,
    *,
    otherwise: type[Exception] = pulsar.ProducerBlockedQuotaExceededException,
) -> bool:
    """Publish a message; return False if it was refused with the error ``otherwise``."""
    try:
        producer.send(payload)
    except otherwise:
        return False
    return True


@pytest.fixture
def refusing(broker: RunningBroker) -> PolicyNamespace:
    quota = {"destinationStorage": {"limit": 10_000, "policy": "producer_exception"}}
    return PolicyNamespace(broker, backlogQuota=quota)


def test_a_full_backlog_refuses_publishes_by_name(
    broker: RunningBroker, client: pulsar.Client, refusing: PolicyNamespace
) -> None:
    client.subscribe(refusing.topic(), "slow")
    producer = client.create_producer(refusing.topic())
    assert 8 <= _fill(producer) <= 9
    assert _stats(broker, refusing)["backlogSize"] <= 10_000


def test_a_full_backlog_refuses_new_producers_by_name(client: pulsar.Client, refusing: PolicyNamespace) -> None:
    client.subscribe(refusing.topic(), "slow")
    _fill(client.create_producer(refusing.topic()))
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        client.create_producer(refusing.topic())


def test_a_refused_producer_publishes_again_when_there_is_room(
    client: pulsar.Client, refusing: PolicyNamespace
) -> None:
    consumer = client.subscribe(refusing.topic(), "slow")
    producer = client.create_producer(refusing.topic())
    sent = _fill(producer)
    receive_many(consumer, sent)

    eventually(lambda: _sends(producer, b"again"), what="the producer publishing again")
    assert consumer.receive(DEADLINE_MS).data() == b"again"


def test_a_topic_nobody_subscribed_to_has_no_backlog_to_limit(client: pulsar.Client, refusing: PolicyNamespace) -> None:
    producer = client.create_producer(refusing.topic())
    for _ in range(30):
        producer.send(_MESSAGE)


def test_a_message_larger_than_the_quota_is_refused_and_others_go_through(
    client: pulsar.Client, refusing: PolicyNamespace
) -> None:
    consumer = client.subscribe(refusing.topic(), "s")
    producer = client.create_producer(refusing.topic())
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededException):
        producer.send(b"x" * 20_000)
    eventually(lambda: _sends(producer, b"small"), what="a small message going through")
    assert consumer.receive(DEADLINE_MS).data() == b"small"


def test_a_held_producer_goes_on_by_itself_and_in_order(broker: RunningBroker, client: pulsar.Client) -> None:
    quota = {"destinationStorage": {"limit": 10_000, "policy": "producer_request_hold"}}
    namespace = PolicyNamespace(broker, backlogQuota=quota)
    consumer = client.subscribe(namespace.topic(), "slow", receiver_queue_size=1)
    producer = client.create_producer(namespace.topic(), send_timeout_millis=0)
    failures: list[Exception] = []

    def publish() -> None:
        try:
            for number in range(30):
                producer.send(b"%03d" % number + _MESSAGE)
        except Exception as error:
            failures.append(error)

    publisher = threading.Thread(target=publish)
    publisher.start()
    # Eight or nine messages fit; what does not takes the producer off until there is room.
    eventually(
        lambda: _stats(broker, namespace)["msgInCounter"] >= 8 and not _stats(broker, namespace)["publishers"],
        what="the producer being held",
    )
    with pytest.raises(pulsar.ProducerBlockedQuotaExceededError):
        client.create_producer(namespace.topic())
    assert _stats(broker, namespace)["backlogSize"] <= 10_000
    received = [bytes(message.data()[:3]) for message in receive_many(consumer, 30)]
    publisher.join(timeout=DEADLINE_MS / 1000)
    assert not publisher.is_alive()
    assert failures == []
    assert received == [b"%03d" % number for number in range(30)]


def test_a_message_of_a_held_producer_that_times_out_fails_and_is_never_stored(
    broker: RunningBroker, client: pulsar.Client
) -> None:
    quota = {"destinationStorage": {"limit": 10_000, "policy": "producer_request_hold"}}
    namespace = PolicyNamespace(broker, backlogQuota=quota)
    consumer = client.subscribe(namespace.topic(), "slow")
    # Eight fit; a ninth may. Only what comes then can have to wait, and so be given up.
    first = client.create_producer(namespace.topic())
    for number in range(8):
        first.send(b"%03d" % number + _MESSAGE)
    first.close()
    producer = client.create_producer(namespace.topic(), send_timeout_millis=4000)
    sent = 8

    def fill() -> None:
        nonlocal sent
        for number in range(8, 30):
            producer.send(b"%03d" % number + _MESSAGE)
            sent += 1

    with pytest.raises(pulsar.Timeout):
        fill()
    assert 8 <= sent <= 9
    received = [bytes(message.data()[:3]) for message in receive_many(consumer, sent)]
    assert received == [b"%03d" % number for number in range(sent)]

    # There is room again: the producer goes on by itself.
    eventually(lambda: _sends(producer, b"after", otherwise=pulsar.Timeout), what="the producer going on")
    assert consumer.receive(DEADLINE_MS).data() == b"after"


def test_eviction_takes_the_oldest_and_redelivers_nothing(broker: RunningBroker, client: pulsar.Client) -> None:
    quota = {"destinationStorage": {"limit": 10_000, "policy": "consumer_backlog_eviction"}}
    namespace = PolicyNamespace(broker, backlogQuota=quota)
    fast = client.subscribe(namespace.topic(), "fast")
    slow = client.subscribe(namespace.topic(), "slow")
    producer = client.create_producer(namespace.topic())
    for number in range(40):
        producer.send(b"%03d" % number + _MESSAGE)
    assert len(receive_many(fast, 40)) == 40
    eventually(lambda: _stats(broker, namespace)["backlogSize"] <= 10_000, what="the backlog evicted")
    left = _stats(broker, namespace)["subscriptions"]["slow"]["msgBacklog"]
    assert 8 <= left <= 9
    # All forty were in flight to the slow consumer: nothing of them comes a second time.
    assert len(receive_many(slow, 40)) == 40
    with pytest.raises(pulsar.Timeout):
        slow.receive(300)
    eventually(lambda: _stats(broker, namespace)["subscriptions"]["slow"]["msgBacklog"] == 0, what="all acknowledged")


def test_a_backlog_that_is_too_old_refuses_and_recovers(broker: RunningBroker, client: pulsar.Client) -> None:
    quota = {"messageAge": {"limit": "1s", "policy": "producer_exception"}}
    namespace = PolicyNamespace(broker, backlogQuota=quota)
    consumer = client.subscribe(namespace.topic(), "slow")
    producer = client.create_producer(namespace.topic())
    began = time.monotonic()
    producer.send(b"old")
    eventually(lambda: not _sends(producer, b"more"), what="the age quota refusing")
    # Times of messages have whole milliseconds.
    assert time.monotonic() - began >= 0.99

    def again() -> bool:
        while (message := _next(consumer)) is not None:
            consumer.acknowledge(message)
        return _sends(producer, b"again")

    eventually(again, what="publishing again")


def _next(consumer: pulsar.Consumer) -> pulsar.Message | None:
    try:
        return consumer.receive(500)
    except pulsar.Timeout:
        return None


def test_eviction_by_age_takes_what_is_too_old_only(broker: RunningBroker, client: pulsar.Client) -> None:
    quota = {"messageAge": {"limit": "1s", "policy": "consumer_backlog_eviction"}}
    namespace = PolicyNamespace(broker, backlogQuota=quota)
    client.subscribe(namespace.topic(), "slow")
    producer = client.create_producer(namespace.topic())
    for _ in range(5):
        producer.send(b"x")

    def backlog() -> int:
        return int(_stats(broker, namespace)["subscriptions"]["slow"]["msgBacklog"])

    eventually(lambda: backlog() == 0, what="the old messages evicted")
