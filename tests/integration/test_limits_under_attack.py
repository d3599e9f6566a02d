"""Clients that ask for too much are refused or held back and counted, and a client that behaves goes on meanwhile."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support import rest
from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.wire_client import Type, WireClient, WireError, encode, payload_of

MESSAGES = 50
#: Takes long to match, but not too long: its repetitions are just small enough.
COSTLY = ".*a(a|b|c){30}.*b(a|b|c){30}x"
TOO_COSTLY = "(.{0,100}){0,10}x"
LIMITS = {
    "HELIOGRAPH_MAX_NAMESPACES_PER_TENANT": "3",
    "HELIOGRAPH_MAX_TOPICS_PER_TENANT": "20",
    "HELIOGRAPH_MAX_SUBSCRIPTIONS_PER_TENANT": "20",
    "HELIOGRAPH_MAX_HANDLES_PER_CONNECTION": "100",
    "HELIOGRAPH_MAX_PENDING_PUBLISH_BYTES": "1000",
}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("limited") / "data", environment=LIMITS) as running:
        yield running


def sample(broker: BrokerProcess, name: str) -> float:
    """Return the value of a sample, which is named with its labels."""
    lines = rest.metrics(broker.http_url).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def reached(broker: BrokerProcess, limit: str) -> float:
    return sample(broker, f'heliograph_limits_reached_total{{limit="{limit}"}}')


@contextlib.contextmanager
def flood(broker: BrokerProcess, *frames: bytes) -> Iterator[Callable[[], int]]:
    """Send commands all the time, as two clients that read the answers; yields how often a client has sent them."""
    ended, rounds = threading.Event(), [0, 0]

    def attack(number: int) -> None:
        with WireClient(broker.service_url) as client:
            while not ended.is_set():
                client.send_raw(b"".join(frames))
                client.fence()
                rounds[number] += 1

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(len(rounds))]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: all(rounds), within_s=60)
        yield lambda: min(rounds)
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def behave(broker: BrokerProcess, topic: str) -> None:
    """Publish and receive messages on a topic that is there; each answer has a deadline."""
    with WireClient(broker.service_url) as client:
        consumer = client.subscribe(topic)
        client.flow(consumer, MESSAGES)
        producer = client.producer(topic)
        for number in range(MESSAGES):
            client.publish(producer, make_entry(b"%d" % number), sequence_id=number)
        found = [payload_of(client.expect(Type.MESSAGE)) for _ in range(MESSAGES)]
        assert found == [b"%d" % number for number in range(MESSAGES)]


@pytest.fixture
def topic(limited: BrokerProcess) -> str:
    """A topic of a tenant of its own."""
    tenant = fresh_name("good")
    rest.call(f"{limited.http_url}/admin/v2/tenants/{tenant}", "PUT", {"allowedClusters": ["standalone"]})
    rest.call(f"{limited.http_url}/admin/v2/namespaces/{tenant}/shop", "PUT")
    return f"persistent://{tenant}/shop/orders"


@pytest.fixture
def attacked(limited: BrokerProcess) -> str:
    """The namespace of a tenant that has all topics that it may have, of names that are hard to match."""
    tenant = fresh_name("bad")
    rest.call(f"{limited.http_url}/admin/v2/tenants/{tenant}", "PUT", {"allowedClusters": ["standalone"]})
    rest.call(f"{limited.http_url}/admin/v2/namespaces/{tenant}/shop", "PUT")
    with WireClient(limited.service_url) as client:
        for number in range(20):
            client.producer(f"persistent://{tenant}/shop/{'ab' * 90}{number}")
    return f"{tenant}/shop"


def lookups(namespace: str, count: int) -> list[bytes]:
    name = f"persistent://{namespace}/{'ab' * 90}1"
    return [encode(Type.LOOKUP, topic=name, request_id=number, authoritative=False) for number in range(count)]


def lists(namespace: str, pattern: str, count: int) -> list[bytes]:
    kind = Type.GET_TOPICS_OF_NAMESPACE
    return [encode(kind, request_id=number, namespace=namespace, topics_pattern=pattern) for number in range(count)]


def test_a_flood_of_lookups(limited: BrokerProcess, topic: str, attacked: str) -> None:
    answers = 'pulsar_broker_lookup_answers_total{cluster="standalone"}'
    answered = sample(limited, answers)
    with flood(limited, *lookups(attacked, 200)) as rounds:
        before = rounds()
        behave(limited, topic)
        eventually(lambda: rounds() > before, within_s=60)
        assert sample(limited, answers) >= answered + 2 * 200
        assert sample(limited, 'pulsar_broker_lookup_pending_requests{cluster="standalone"}') == 0


def test_a_flood_of_lookups_whose_answers_nobody_reads_is_held_back(
    limited: BrokerProcess, topic: str, attacked: str
) -> None:
    """The answers wait in the broker, up to twice what a connection may have unread; then no more lookups are read."""
    throttled = 'pulsar_broker_throttled_connections{cluster="standalone"}'
    data = encode(Type.CONNECT, client_version="flood", protocol_version=21) + b"".join(lookups(attacked, 200))
    url = urlsplit(limited.service_url)
    with socket.create_connection((url.hostname or "", url.port or 0)) as flooder:
        flooder.setblocking(False)

        def is_held_back() -> bool:
            with contextlib.suppress(BlockingIOError):
                # Pieces of commands will do: those that were sent in part are completed by the next ones.
                for _ in range(100):
                    del unsent[: flooder.send(unsent)]
                    if not unsent:
                        unsent.extend(b"".join(lookups(attacked, 200)))
            return sample(limited, throttled) >= 1

        unsent = bytearray(data)
        eventually(is_held_back, within_s=60)
        behave(limited, topic)
        assert sample(limited, throttled) >= 1
        assert sample(limited, "heliograph_connection_memory_bytes") < 8 * 1024 * 1024
    eventually(lambda: sample(limited, throttled) == 0, within_s=60)


@pytest.mark.parametrize(("pattern", "refused"), [(COSTLY, False), (TOO_COSTLY, True), ("x" * 100_000, True)])
def test_a_flood_of_patterns(limited: BrokerProcess, topic: str, attacked: str, pattern: str, refused: bool) -> None:
    before = reached(limited, "topics_pattern")
    with flood(limited, *lists(attacked, pattern, 20)) as rounds:
        went = rounds()
        behave(limited, topic)
        eventually(lambda: rounds() > went, within_s=60)
    assert (reached(limited, "topics_pattern") > before) == refused


def test_a_flood_of_messages_is_held_back(limited: BrokerProcess, topic: str, attacked: str) -> None:
    ended = threading.Event()

    def attack() -> None:
        with WireClient(limited.service_url) as client:
            producer = client.producer(f"persistent://{attacked}/{'ab' * 90}1")
            entry, number = make_entry(b"x" * 10_000), 0
            while not ended.is_set():
                client.send(Type.SEND, entry, producer_id=producer, sequence_id=number, num_messages=1)
                number += 1

    thread = threading.Thread(target=attack)
    thread.start()
    try:
        eventually(lambda: sample(limited, 'pulsar_broker_throttled_connections{cluster="standalone"}'), within_s=60)
        behave(limited, topic)
    finally:
        ended.set()
        thread.join(60)


def test_a_tenant_that_has_all_it_may_have_gets_no_more(limited: BrokerProcess, topic: str, attacked: str) -> None:
    names = ("max_topics_per_tenant", "max_subscriptions_per_tenant", "max_namespaces_per_tenant")
    before = {name: reached(limited, name) for name in names}
    tenant = attacked.partition("/")[0]
    with WireClient(limited.service_url) as client:
        for kind in ("persistent", "non-persistent"):
            with pytest.raises(WireError, match="max_topics_per_tenant") as over:
                client.producer(f"{kind}://{attacked}/one-more")
            assert over.value.code == wire.NotAllowedError
        there = f"persistent://{attacked}/{'ab' * 90}0"
        for number in range(20):
            client.subscribe(there, f"s{number}", durable=bool(number % 2))
        with pytest.raises(WireError, match="max_subscriptions_per_tenant"):
            client.subscribe(there, "one-more")
        with pytest.raises(WireError, match="max_subscriptions_per_tenant"):
            client.producer(there, initial_subscription_name="one-more")
    for number in (2, 3):
        rest.call(f"{limited.http_url}/admin/v2/namespaces/{tenant}/n{number}", "PUT")
    with pytest.raises(OSError, match="412"):
        rest.call(f"{limited.http_url}/admin/v2/namespaces/{tenant}/n4", "PUT")
    behave(limited, topic)
    assert all(reached(limited, name) > count for name, count in before.items())


def test_a_connection_with_all_the_handles_it_may_have_gets_no_more(limited: BrokerProcess, topic: str) -> None:
    before = reached(limited, "max_handles_per_connection")
    with WireClient(limited.service_url) as client:
        for _ in range(100):
            client.producer(topic)
        with pytest.raises(WireError, match="max_handles_per_connection"):
            client.producer(topic)
        behave(limited, topic)
    assert reached(limited, "max_handles_per_connection") == before + 1
