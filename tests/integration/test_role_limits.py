"""Limits of a role, set at run time, with the official client: others are not held back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, connect, fresh_name
from tests.support.polling import eventually
from tests.support.tokens import Signer, ask

LIMITED, OTHER = "shop/limited", "shop/other"


class Closed:
    """A broker with tokens, on which two roles may do everything in a namespace."""

    def __init__(self, broker: BrokerProcess, signer: Signer) -> None:
        self.broker = broker
        self._signer = signer
        for role in (LIMITED, OTHER):
            path = f"/admin/v2/namespaces/public/default/permissions/{quote(role, safe='')}"
            assert self.ask("POST", path, ["produce", "consume"]) == 204

    def ask(self, method: str, path: str, body: object = None) -> int:
        return ask(f"{self.broker.http_url}{path}", self._signer.token("admin"), method, body).status

    def limit(self, **limits: object) -> None:
        assert self.ask("PUT", f"/heliograph/v1/roles/{quote(LIMITED, safe='')}", {"limits": limits}) == 204

    def client(self, role: str = LIMITED, **options: int) -> pulsar.Client:
        authentication = pulsar.AuthenticationToken(self._signer.token(role))
        return connect(self.broker.service_url, authentication=authentication, **options)

    def connections(self) -> int:
        state = ask(f"{self.broker.http_url}/heliograph/v1/status", self._signer.token("admin")).body
        return int(state["roles"][LIMITED].get("connections", 0))

    def reached(self, limit: str) -> float:
        return self._sample(f'role_limits_reached_total{{limit="{limit}"}}')

    def refused_connections(self) -> float:
        return self._sample('connections_refused_total{port="binary",limit="role"}')

    def _sample(self, name: str) -> float:
        text = ask(f"{self.broker.http_url}/metrics", self._signer.token("admin")).body
        line = next(each for each in text.splitlines() if name in each)
        return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    directory = tmp_path_factory.mktemp("limits")
    signer = Signer(directory / "secret.key")
    with BrokerProcess(directory / "data", environment=signer.settings(superusers="admin")) as broker:
        yield Closed(broker, signer)


@pytest.fixture
def closed(running: Closed) -> Closed:
    running.limit()
    # A connection that ends shares the limits that it began with.
    eventually(lambda: running.connections() == 0, what="the clients of the test before have left")
    return running


def test_one_more_producer_or_consumer_is_refused_and_others_go_on(closed: Closed) -> None:
    closed.limit(producers=1, consumers=1)
    client, other, topic = closed.client(), closed.client(OTHER), fresh_name()
    producer, consumer = client.create_producer(topic), client.subscribe(topic, "a")
    with pytest.raises(pulsar.NotAllowedError):
        client.create_producer(topic)
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "b")
    assert (closed.reached("producers"), closed.reached("consumers")) == (1, 1)
    other.create_producer(topic).send(b"x")
    producer.send(b"y")
    consumer.acknowledge(consumer.receive(DEADLINE_MS))
    # What has ended makes room, and so does another limit.
    producer.close()
    client.create_producer(topic)
    closed.limit(producers=2, consumers=2)
    client.create_producer(topic)
    client.subscribe(topic, "b")
    for each in (client, other):
        each.close()


def test_one_more_connection_is_refused_and_others_go_on(closed: Closed) -> None:
    closed.limit(connections=1)
    first, topic = closed.client(), fresh_name()
    producer = first.create_producer(topic)
    before = closed.refused_connections()
    # It tries again and again.
    second = closed.client(operation_timeout_seconds=5)
    with pytest.raises(pulsar.PulsarException):
        second.create_producer(topic)
    second.close()
    # The client tries again until it gives up.
    assert closed.refused_connections() > before
    producer.send(b"x")
    other = closed.client(OTHER)
    other.create_producer(topic).send(b"y")
    closed.limit(connections=2)
    third = closed.client()
    third.create_producer(topic).send(b"z")
    for each in (first, other, third):
        each.close()


def test_a_publish_rate_slows_the_role_down_and_loses_nothing(closed: Closed) -> None:
    closed.limit(publishRate={"messages": 20})
    client, topic = closed.client(), fresh_name()
    consumer = closed.client(OTHER).subscribe(topic, "all")
    producers = [client.create_producer(topic, batching_enabled=False) for _ in range(2)]
    sent = 0
    began = time.monotonic()
    while sent < 60:
        producers[sent % 2].send(b"slow")
        sent += 1
    # At the rate of 20 messages a second, these take two seconds at least, whatever the machine does.
    assert time.monotonic() - began >= 2.0
    assert sum(1 for _ in range(60) if consumer.receive(DEADLINE_MS).data()) == 60
    closed.limit()
    producers[0].send(b"fast")
    client.close()


def test_a_dispatch_rate_slows_the_role_down_and_others_get_theirs(closed: Closed) -> None:
    closed.limit(dispatchRate={"messages": 20})
    limited, other, topic = closed.client(), closed.client(OTHER), fresh_name()
    consumers = [each.subscribe(topic, name) for each, name in ((limited, "limited"), (other, "other"))]
    producer = other.create_producer(topic, batching_enabled=False)
    began = time.monotonic()
    for _ in range(60):
        producer.send_async(b"x", lambda result, message_id: None)
    producer.flush()
    for _ in range(60):
        consumers[1].receive(DEADLINE_MS)
    for _ in range(60):
        consumers[0].receive(DEADLINE_MS)
    # As above: what was sent before all are published counts, too.
    assert time.monotonic() - began >= 2.0
    assert closed.reached("dispatchRate") >= 2
    # Without the limit, whatever waits is sent at once.
    for _ in range(60):
        producer.send_async(b"x", lambda result, message_id: None)
    producer.flush()
    closed.limit()
    for _ in range(60):
        consumers[0].receive(DEADLINE_MS)
    for each in (limited, other):
        each.close()
