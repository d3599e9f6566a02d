"""The broker as its other clients see it."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import closing
from typing import Any

import msgspec
from heliograph_api.resources.broker_state import BrokerState, TopicState

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, publish, receive_many
from tests.support.rest import fetch


def admin(broker: BrokerProcess, method: str, path: str, body: Any = None) -> bytes:
    """Call the admin API. Raises :class:`AssertionError` for a refusal."""
    try:
        return fetch(f"{broker.http_url}{path}", method, body)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None


def publish_to(broker: BrokerProcess, topic: str, messages: int, size: int = 100) -> None:
    """Publish messages of ``size`` bytes; all are stored when it returns."""
    with closing(connect(broker.service_url)) as client:
        publish(client, topic, [b"x" * size] * messages, batching_enabled=False)


def consume(broker: BrokerProcess, topic: str, subscription: str, messages: int) -> None:
    """Receive and acknowledge messages. Raises what the client raises if they do not come in time."""
    with closing(connect(broker.service_url)) as client:
        consumer = client.subscribe(topic, subscription)
        receive_many(consumer, messages)
        consumer.close()


def broker_state(broker: BrokerProcess) -> BrokerState:
    return msgspec.json.decode(admin(broker, "GET", "/heliograph/v1/status"), type=BrokerState)


def topic_state(broker: BrokerProcess, name: str) -> TopicState:
    """Return what the broker says of a topic. Raises :class:`AssertionError` if it does not have it."""
    topics = broker_state(broker).topics
    assert name in topics, f"the broker has no {name}: {sorted(topics)}"
    return topics[name]
