"""Topics and subscriptions that nobody uses, on a running broker with official clients and HTTP."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pulsar
import pytest

from tests.support.clients import RunningBroker, fresh_name, rest
from tests.support.polling import DEADLINE_S, eventually
from tests.support.rest import fetch

#: Long enough that a busy machine does not let it pass between two uses.
PERIOD_S = 4


@pytest.fixture
def namespace(broker: RunningBroker) -> str:
    name = f"public/{fresh_name('ns')}"
    rest(broker, "PUT", f"namespaces/{name}", {})
    return name


def topics(broker: RunningBroker, namespace: str) -> list[str]:
    found: list[str] = rest(broker, "GET", f"persistent/{namespace}")
    return found


def test_a_topic_expires_when_its_last_client_is_gone_for_the_period(
    client: pulsar.Client, broker: RunningBroker, namespace: str
) -> None:
    rest(broker, "POST", f"namespaces/{namespace}/expires", PERIOD_S)
    name = f"persistent://{namespace}/t"
    producer = client.create_producer(name)
    reader = client.create_reader(name, pulsar.MessageId.earliest)
    producer.send(b"x")
    producer.close()
    deadline = time.monotonic() + 1.25 * PERIOD_S
    while time.monotonic() < deadline:
        assert reader.read_next(1000).data() == b"x" if reader.has_message_available() else True
        assert topics(broker, namespace) == [name]
        time.sleep(0.1)
    left = time.monotonic()
    reader.close()
    eventually(lambda: topics(broker, namespace) == [], within_s=PERIOD_S + DEADLINE_S, what="the topic's end")
    # The broker counts whole milliseconds.
    assert time.monotonic() - left >= PERIOD_S - 0.01
    # A client that names it later gets a new one.
    late = client.create_reader(name, pulsar.MessageId.earliest)
    assert not late.has_message_available()


def test_creating_a_topic_again_and_looking_at_its_messages_keep_it(
    client: pulsar.Client, broker: RunningBroker, namespace: str
) -> None:
    name = f"persistent://{namespace}/t"
    client.subscribe(name, "s").close()
    producer = client.create_producer(name)
    producer.send(b"x")
    producer.close()
    rest(broker, "POST", f"namespaces/{namespace}/expires", PERIOD_S)
    path = f"persistent/{namespace}/t"
    deadline = time.monotonic() + 1.25 * PERIOD_S
    while time.monotonic() < deadline:
        with pytest.raises(urllib.error.HTTPError) as raised:
            rest(broker, "PUT", path)
        with raised.value as refusal:
            assert refusal.code == 409
        time.sleep(0.2)
    deadline = time.monotonic() + 1.25 * PERIOD_S
    used = 0.0
    while time.monotonic() < deadline:
        used = time.monotonic()
        assert fetch(f"{broker.http_url}/admin/v2/{path}/subscription/s/position/1") == b"x"
        time.sleep(0.2)
    eventually(lambda: topics(broker, namespace) == [], within_s=PERIOD_S + DEADLINE_S, what="the topic's end")
    assert time.monotonic() - used >= PERIOD_S - 0.01


def test_a_subscription_that_nobody_uses_expires_and_its_topic_stays(
    client: pulsar.Client, broker: RunningBroker, namespace: str
) -> None:
    name = f"persistent://{namespace}/t"
    used = client.subscribe(name, "used")
    client.subscribe(name, "idle").close()
    rest(broker, "POST", f"namespaces/{namespace}/subscriptionExpirationTime", 1)
    path = f"persistent/{namespace}/t/subscriptions"
    assert sorted(rest(broker, "GET", path)) == ["idle", "used"]
    rest(broker, "DELETE", f"namespaces/{namespace}/subscriptionExpirationTime")
    used.close()
    assert sorted(rest(broker, "GET", path)) == ["idle", "used"]
