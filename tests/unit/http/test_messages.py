"""Numbering of the entries of a backlog; and the answers for a stored entry."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import TopicName
from heliograph_broker.http.base.bundles import bundle_of, check_bundle, hash_of, in_bundle
from heliograph_broker.http.base.message_ids import PositionDocument
from heliograph_broker.http.topics import message_answers
from heliograph_broker.http.topics.admin_messages import unacked_offset
from heliograph_broker.http.topics.message_answers import message_answer
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord
from heliograph_broker.messaging.clients.consumer import AckId
from heliograph_broker.messaging.messages.batches import build_frame, open_payload
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.storage.base.entry import Entry
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core import Core


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    """A topic with twenty entries."""
    core = Core(tmp_path_factory.mktemp("core"))
    topic = core.topic()
    producer = core.producer(topic)
    topic.create_subscription("keeps", "earliest")
    core.publish_all(producer, count=20)
    yield topic
    core.close()


@given(acked=st.sets(st.integers(0, 19)), below=st.integers(0, 20))
def test_the_nth_entry_of_a_backlog_is_found_whatever_is_acknowledged(
    topic: Topic, acked: set[int], below: int
) -> None:
    everything = acked | set(range(below))
    subscription = topic.create_subscription("s", "earliest")
    try:
        subscription.acks.acknowledge(None, [AckId(*topic.log.position(offset)) for offset in sorted(everything)], None)
        left = [offset for offset in range(20) if offset not in everything]
        assert subscription.acks.backlog_messages == len(left)
        assert [unacked_offset(subscription, place) for place in range(1, len(left) + 2)] == [*left, 20]
    finally:
        topic.delete_subscription("s")


def stored(metadata: wire.MessageMetadata, payload: bytes) -> Entry:
    return Entry(7, 3, 0, 0, 0, -1, 1, 0, 1, 1, build_frame(metadata, payload))


async def test_a_time_that_is_none_is_answered_as_the_last_one_there_is() -> None:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=2**63, deliver_at_time=-5)
    headers = (await message_answer(stored(metadata, b"x"))).headers
    assert headers["X-Pulsar-publish-time"] == "9999-12-31T23:59:59.999Z"
    assert headers["X-Pulsar-deliver-at-time"] == "1970-01-01T00:00:00Z"


async def test_what_cannot_be_opened_is_answered_as_it_is_stored() -> None:
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uncompressed_size=100)
    metadata.compression = wire.ZLIB
    answer = await message_answer(stored(metadata, b"not zlib"))
    assert (answer.status, answer.body) == (200, b"not zlib")
    assert "does not decompress" in answer.headers["X-Heliograph-Payload"]
    metadata.ClearField("compression")
    metadata.encryption_keys.add(key="k", value=b"v")
    encrypted = await message_answer(stored(metadata, b"secret"))
    assert (encrypted.body, encrypted.headers["X-Pulsar-Is-Encrypted"]) == (b"secret", "true")


async def test_a_payload_is_opened_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noting(metadata: wire.MessageMetadata, payload: bytes) -> bytes | memoryview:
        threads.append(threading.current_thread())
        return open_payload(metadata, payload)

    monkeypatch.setattr(message_answers, "open_payload", noting)
    metadata = wire.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uncompressed_size=1000)
    metadata.compression = wire.ZLIB
    assert (await message_answer(stored(metadata, zlib.compress(bytes(1000))))).body == bytes(1000)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_no_name_or_property_breaks_a_header() -> None:
    metadata = wire.MessageMetadata(producer_name="a\r\nb: c", sequence_id=0, publish_time=1, partition_key="k\0")
    metadata.properties.add(key="naïve\n", value="😀")
    headers = (await message_answer(stored(metadata, b"x"))).headers
    assert headers["X-Pulsar-producer-name"] == "a  b: c"
    assert headers["X-Pulsar-partition-key"] == "k "
    assert headers["X-Pulsar-PROPERTY"].isascii()
    assert json.loads(headers["X-Pulsar-PROPERTY"]) == {"naïve\n": "😀"}


def test_a_topic_is_in_the_bundle_that_a_real_pulsar_puts_it_into() -> None:
    name = TopicName.parse("persistent://op/ns/__change_events")
    assert bundle_of(name, NamespaceRecord(bundles=4)) == "0x40000000_0x80000000"
    assert bundle_of(name, NamespaceRecord(bundles=1)) == "0x00000000_0xffffffff"


@given(
    bundles=st.integers(1, 4096),
    splits=st.lists(st.integers(1, 0xFFFFFFFE), max_size=4),
    number=st.integers(0, 10_000),
)
def test_every_topic_is_in_one_bundle_of_the_namespace(bundles: int, splits: list[int], number: int) -> None:
    name = TopicName.parse(f"persistent://a/b/t{number}")
    record = NamespaceRecord(bundles=bundles, splits=splits)
    bundle = bundle_of(name, record)
    check_bundle("a/b", bundle, record)
    assert in_bundle(name, bundle, record)
    assert in_bundle(name, "0x00000000_0xffffffff", record)
    low, high = (int(edge, 16) for edge in bundle.split("_"))
    assert low <= hash_of(name) <= high
    assert not any(low < each < high for each in splits)


def test_bundles_touch_and_their_edges_are_checked() -> None:
    edges = ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]
    for low, high in pairwise(edges):
        check_bundle("a/b", f"{low}_{high}", NamespaceRecord(bundles=3))
    for none in ("0x00000000_0xaaaaaaaa", "0xffffffff_0xffffffff", "0x55555555", "x_y"):
        with pytest.raises(PreconditionFailed):
            check_bundle("a/b", none, NamespaceRecord(bundles=3))


def test_a_position_behind_a_message_is_said_in_either_of_two_ways() -> None:
    assert PositionDocument(1, 1).entries_behind == 0
    assert PositionDocument(1, 1, excluded=True).entries_behind == 1
    assert PositionDocument(1, 1, is_excluded=True).entries_behind == 1


def test_an_empty_backlog_has_no_first_entry(tmp_path: Path) -> None:
    core = Core(tmp_path)
    assert unacked_offset(core.topic().create_subscription("s", "earliest"), 1) == 0
    core.close()
