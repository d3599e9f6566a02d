"""A request while the disk takes nothing is refused, and may be repeated on the same connection."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.core import Core
from tests.support.failing_metadata import failing_metadata
from tests.support.virtual_connection import VirtualServer
from tests.support.wire_client import Type

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
SUBSCRIBE: dict[str, Any] = {"topic": "t", "subscription": "s", "subType": wire.CommandSubscribe.Exclusive}
PRODUCER: dict[str, Any] = {"topic": "t", "producer_name": "p"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VirtualServer]:
    core = Core(tmp_path / "data")
    core.topic()
    core.commit()
    yield VirtualServer(core)
    core.close()


@pytest.mark.parametrize("consumer_id", [1, 2])
def test_a_subscribe_that_was_not_stored_leaves_nothing_and_can_be_repeated(
    server: VirtualServer, consumer_id: int
) -> None:
    client = server.connect()
    with failing_metadata(NO_SPACE):
        refused = client.request(Type.SUBSCRIBE, consumer_id=1, **SUBSCRIBE)
        assert refused.error == wire.PersistenceError
        assert server.core.topic().subscriptions == {}
        again = client.request(Type.SUBSCRIBE, consumer_id=1, **SUBSCRIBE)
        assert again.error == wire.PersistenceError
    assert isinstance(client.request(Type.SUBSCRIBE, consumer_id=consumer_id, **SUBSCRIBE), wire.CommandSuccess)
    server.core.crash()
    assert "s" in server.core.topic().subscriptions


def test_a_subscribe_said_twice_is_confirmed_once_it_is_durable(server: VirtualServer) -> None:
    client = server.connect()
    client.send(Type.SUBSCRIBE, request_id=1, consumer_id=1, **SUBSCRIBE)
    client.send(Type.SUBSCRIBE, request_id=2, consumer_id=1, **SUBSCRIBE)
    assert client.take() == []
    server.core.commit()
    assert [frame.body.request_id for frame in client.take()] == [1, 2]


@pytest.mark.parametrize("producer_id", [1, 2])
def test_a_producer_that_was_not_stored_leaves_nothing_and_can_be_repeated(
    server: VirtualServer, producer_id: int
) -> None:
    client = server.connect()
    fields = PRODUCER | {"producer_access_mode": wire.ProducerAccessMode.Exclusive}
    with failing_metadata(NO_SPACE):
        refused = client.request(Type.PRODUCER, producer_id=1, **fields)
        assert refused.error == wire.PersistenceError
        assert server.core.topic().producers == {}
        again = client.request(Type.PRODUCER, producer_id=1, **fields)
        assert again.error == wire.PersistenceError
    created = client.request(Type.PRODUCER, producer_id=producer_id, **fields)
    assert isinstance(created, wire.CommandProducerSuccess)
    assert created.producer_ready


def test_a_producer_said_twice_is_confirmed_once_it_is_durable(server: VirtualServer) -> None:
    client = server.connect()
    client.send(Type.PRODUCER, request_id=1, producer_id=1, **PRODUCER)
    client.send(Type.PRODUCER, request_id=2, producer_id=1, **PRODUCER)
    assert client.take() == []
    server.core.commit()
    assert [frame.body.request_id for frame in client.take()] == [1, 2]


def test_a_producer_that_waited_for_exclusive_access_is_answered_once_the_disk_has_taken_it(
    server: VirtualServer,
) -> None:
    owner, successor = server.connect(), server.connect()
    modes = wire.ProducerAccessMode
    owner.request(Type.PRODUCER, producer_id=1, **PRODUCER, producer_access_mode=modes.Exclusive)
    waiting = {"topic": "t", "producer_name": "next", "producer_access_mode": modes.WaitForExclusive}
    assert not successor.request(Type.PRODUCER, producer_id=1, **waiting).producer_ready
    with failing_metadata(NO_SPACE) as asked:
        owner.send(Type.CLOSE_PRODUCER, request_id=2, producer_id=1)
        for _ in range(3):
            server.core.commit()
            server.core.store.writer.retry()
        assert len(asked) > 2
        assert successor.take() == []
    server.core.store.writer.retry()
    server.advance(200)
    [answer] = successor.take()
    assert (answer.body.producer_ready, answer.body.topic_epoch) == (True, 1)
    server.core.crash()
    assert server.core.topic().producer_registry.topic_epoch == 1


def test_a_producer_that_has_left_before_its_exclusive_access_is_durable_gets_no_answer(
    server: VirtualServer,
) -> None:
    owner, successor = server.connect(), server.connect()
    modes = wire.ProducerAccessMode
    owner.request(Type.PRODUCER, producer_id=1, **PRODUCER, producer_access_mode=modes.Exclusive)
    waiting = {"topic": "t", "producer_name": "next", "producer_access_mode": modes.WaitForExclusive}
    successor.request(Type.PRODUCER, producer_id=1, **waiting)
    with failing_metadata(NO_SPACE):
        owner.send(Type.CLOSE_PRODUCER, request_id=2, producer_id=1)
        server.core.commit()
        successor.send(Type.CLOSE_PRODUCER, request_id=2, producer_id=1)
        server.core.commit()
    server.core.store.writer.retry()
    server.advance(200)
    assert [frame.command.type for frame in successor.take()] == [Type.SUCCESS]
    assert server.core.topic().producers == {}


def test_exclusive_access_to_a_topic_that_stores_nothing_waits_for_no_disk(server: VirtualServer) -> None:
    owner, successor = server.connect(), server.connect()
    modes = wire.ProducerAccessMode
    topic = {"topic": "non-persistent://public/default/n"}
    owner.request(Type.PRODUCER, producer_id=1, producer_access_mode=modes.Exclusive, **topic)
    successor.request(Type.PRODUCER, producer_id=1, producer_access_mode=modes.WaitForExclusive, **topic)
    with failing_metadata(NO_SPACE):
        owner.send(Type.CLOSE_PRODUCER, request_id=2, producer_id=1)
        # What another topic could not write fails the group.
        server.core.topic().persist()
        server.core.commit()
        [answer] = successor.take()
    assert answer.body.producer_ready
