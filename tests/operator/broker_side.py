"""The broker as its other clients see it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import msgspec
import pulsar
from heliograph_api.resources.broker_state import BrokerState, TopicState

from tests.support.broker_process import BrokerProcess


def admin(broker: BrokerProcess, method: str, path: str, body: Any = None) -> bytes:
    """Call the admin API. Raises :class:`AssertionError` for a refusal."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(f"{broker.http_url}{path}", method=method, data=data)
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None


def publish(broker: BrokerProcess, topic: str, messages: int, size: int = 100) -> None:
    """Publish messages of ``size`` bytes; all are stored when it returns."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        producer = client.create_producer(topic, batching_enabled=False)
        for _ in range(messages):
            producer.send(b"x" * size)
    finally:
        client.close()


def consume(broker: BrokerProcess, topic: str, subscription: str, messages: int) -> None:
    """Receive and acknowledge messages. Raises what the client raises if they do not come in ten seconds."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe(topic, subscription)
        for _ in range(messages):
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
        consumer.close()
    finally:
        client.close()


def broker_state(broker: BrokerProcess) -> BrokerState:
    return msgspec.json.decode(admin(broker, "GET", "/heliograph/v1/status"), type=BrokerState)


def topic_state(broker: BrokerProcess, name: str) -> TopicState:
    """Return what the broker says of a topic. Raises :class:`AssertionError` if it does not have it."""
    topics = broker_state(broker).topics
    assert name in topics, f"the broker has no {name}: {sorted(topics)}"
    return topics[name]
