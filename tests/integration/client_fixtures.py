"""Fixtures of the client tests: an official client of the running broker, and a topic of one's own."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar
import pytest

from tests.support.clients import RunningBroker, connect, fresh_name


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    """The official Python client, closed after the test with everything it opened."""
    connected = connect(broker.service_url)
    yield connected
    connected.close()


@pytest.fixture
def topic() -> str:
    """The local name of a topic in public/default that nobody else uses."""
    return fresh_name()
