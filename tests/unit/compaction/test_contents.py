"""Compaction leaves the last message of each key, whether it is single, in a batch or in chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.compaction import (
    FOREVER,
    Seen,
    compact,
    contents,
    publish,
    publish_batch,
    reader,
    seen,
    set_policies,
    view,
)
from tests.support.core import Core

SECRET = wire.EncryptionKeys(key="k", value=b"v")


def test_last_value_of_each_key_stays_in_the_topics_order(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b"2"))
    compact(core, topic)
    publish(core, topic, ("a", b"3"))
    assert view(core, topic) == [("a", b"2"), ("c", b"1"), ("b", b"2"), ("a", b"3")]


def test_without_read_compacted_everything_is_seen(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("a", b"2"), ("a", b""))
    compact(core, topic)
    assert contents(reader(core, topic, compacted=False)[2]) == [("a", b"1"), ("a", b"2"), ("a", b"")]


def test_before_any_compaction_read_compacted_sees_everything(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("a", b"2"))
    assert view(core, topic) == [("a", b"1"), ("a", b"2")]


@pytest.mark.parametrize("tombstone", [{}, {"null_value": True}])
def test_null_payload_deletes_its_key(core: Core, tombstone: dict[str, object]) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    publish(core, topic, ("a", b"1"), ("b", b"1"))
    publish(core, topic, ("a", b""), **tombstone)
    compact(core, topic)
    assert view(core, topic) == [("b", b"1")]
    publish(core, topic, ("b", b""))
    compact(core, topic)
    assert view(core, topic) == []
    publish(core, topic, ("b", b"2"))
    compact(core, topic)
    assert view(core, topic) == [("b", b"2")]


def test_messages_without_key_go_unless_they_are_to_stay(tmp_path: Path) -> None:
    for retain in (False, True):
        core = Core(tmp_path / str(retain), compaction_retain_null_key=retain)
        topic = core.topic()
        set_policies(core, topic, FOREVER)
        publish(core, topic, (None, b"1"), ("a", b"1"), (None, b"2"))
        publish_batch(core, topic, (None, b"3"), ("a", b"2"))
        compact(core, topic)
        kept = [(None, b"1"), (None, b"2"), (None, b"3"), ("a", b"2")]
        assert view(core, topic) == (kept if retain else [("a", b"2")])
        core.close()


@pytest.mark.parametrize("codec", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_batches_are_taken_message_by_message_and_keep_their_indexes(core: Core, codec: str) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    filler = b"x" * 300
    publish_batch(core, topic, ("a", b"1"), ("b", filler), ("c", b"1"), ("a", b"2"), codec=codec)
    publish_batch(core, topic, ("b", b"2"), ("d", filler), ("d", b""), codec=codec)
    ledger, entry = topic.log.position(0)
    compact(core, topic)
    client = reader(core, topic)[2]
    assert seen(client) == [
        Seen("c", b"1", (ledger, entry, 2)),
        Seen("a", b"2", (ledger, entry, 3)),
        Seen("b", b"2", (ledger, entry + 1, 0)),
    ]


def test_what_cannot_be_opened_stays_whole(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    core.publish_all(topic, b"sealed", messages=2, encryption_keys=[SECRET])
    core.publish_all(topic, b"no batch", messages=2)
    publish(core, topic, ("a", b"1"))
    frames = [entry.frame for _, entry, _, _ in reader(core, topic, compacted=False)[2].take()]
    compact(core, topic)
    compact(core, topic)
    assert [entry.frame for _, entry, _, _ in reader(core, topic, "again")[2].take()] == frames


def test_single_encrypted_messages_take_part_by_their_key(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)
    core.publish_all(topic, b"sealed one", b"sealed two", key="a", encryption_keys=[SECRET])
    compact(core, topic)
    assert view(core, topic) == [("a", b"sealed two")]


def test_chunks_of_a_message_share_its_fate(core: Core) -> None:
    topic = core.topic()
    set_policies(core, topic, FOREVER)

    def chunk(uuid: str, number: int, of: int = 2) -> None:
        publish(
            core,
            topic,
            ("a", f"{uuid}{number}".encode()),
            uuid=uuid,
            chunk_id=number,
            num_chunks_from_msg=of,
            total_chunk_msg_size=10,
        )

    chunk("x", 0)
    chunk("y", 0)
    chunk("x", 1)
    chunk("y", 1)
    chunk("z", 0)
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"y0", b"y1", b"z0"]
    chunk("z", 1)
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"z0", b"z1"]
    publish(core, topic, ("a", b"small"))
    compact(core, topic)
    assert [payload for _, payload in view(core, topic)] == [b"small"]
