"""Lists of topics on the wire: GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import RunningBroker, rest
from tests.support.wire_client import Type, WireClient

Mode = wire.CommandGetTopicsOfNamespace


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


def full(local: str, domain: str = "persistent") -> str:
    return f"{domain}://public/default/{local}"


def topics_of(client: WireClient, **fields: Any) -> wire.CommandGetTopicsOfNamespaceResponse:
    answer: wire.CommandGetTopicsOfNamespaceResponse = client.request(
        Type.GET_TOPICS_OF_NAMESPACE,
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        namespace="public/default",
        **fields,
    )
    return answer


def test_topics_by_mode(wired: WireClient, topic: str) -> None:
    wired.producer(full(f"{topic}-p"))
    wired.producer(full(f"{topic}-n", "non-persistent"))
    both = {full(f"{topic}-p"), full(f"{topic}-n", "non-persistent")}
    found = {
        mode: {t for t in topics_of(wired, mode=mode).topics if topic in t}
        for mode in (Mode.PERSISTENT, Mode.NON_PERSISTENT, Mode.ALL)
    }
    assert found == {
        Mode.PERSISTENT: {full(f"{topic}-p")},
        Mode.NON_PERSISTENT: {full(f"{topic}-n", "non-persistent")},
        Mode.ALL: both,
    }


def test_pattern_filters_and_hash_says_whether_it_changed(wired: WireClient, topic: str) -> None:
    for local in (f"{topic}-a", f"{topic}-b", f"x-{topic}-a"):
        wired.producer(full(local))
    pattern = full(f"{topic}-.*")
    first = topics_of(wired, topics_pattern=pattern)
    assert first.filtered
    assert first.changed
    assert sorted(first.topics) == [full(f"{topic}-a"), full(f"{topic}-b")]
    assert first.topics_hash
    same = topics_of(wired, topics_pattern=pattern, topics_hash=first.topics_hash)
    assert not same.changed
    assert list(same.topics) == []
    assert same.topics_hash == first.topics_hash
    wired.producer(full(f"{topic}-c"))
    grown = topics_of(wired, topics_pattern=pattern, topics_hash=first.topics_hash)
    assert grown.changed
    assert len(grown.topics) == 3
    assert grown.topics_hash != first.topics_hash


def test_unknown_namespace(wired: WireClient) -> None:
    # A namespace that nobody created has no topics.
    answer = wired.request(
        Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, namespace="public/nowhere"
    )
    assert list(answer.topics) == []


def test_watch_tells_of_topics_that_come_and_go(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    wired.producer(full(f"{topic}-first"))
    started = wired.request(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        watcher_id=11,
        namespace="public/default",
        topics_pattern=full(f"{topic}-.*"),
    )
    assert started.watcher_id == 11
    assert list(started.topic) == [full(f"{topic}-first")]
    wired.producer(full(f"other-{topic}"))
    wired.producer(full(f"{topic}-second"))
    update = wired.expect(Type.WATCH_TOPIC_UPDATE).body
    assert (update.watcher_id, list(update.new_topics), list(update.deleted_topics)) == (
        11,
        [full(f"{topic}-second")],
        [],
    )
    assert update.topics_hash != started.topics_hash
    rest(broker, "DELETE", f"persistent/public/default/{topic}-second?force=true")
    update = wired.expect(Type.WATCH_TOPIC_UPDATE).body
    assert (list(update.new_topics), list(update.deleted_topics)) == ([], [full(f"{topic}-second")])
    assert update.topics_hash == started.topics_hash
    wired.request(Type.WATCH_TOPIC_LIST_CLOSE, Type.SUCCESS, watcher_id=11)
    wired.fence()
    wired.producer(full(f"{topic}-third"))
    assert [f for f in wired.fence() if f.command.type == Type.WATCH_TOPIC_UPDATE] == []


def test_watch_with_a_current_hash_answers_without_topics(wired: WireClient, topic: str) -> None:
    wired.producer(full(f"{topic}-first"))
    pattern = full(f"{topic}-.*")
    known = topics_of(wired, topics_pattern=pattern).topics_hash
    started = wired.request(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        watcher_id=1,
        namespace="public/default",
        topics_pattern=pattern,
        topics_hash=known,
    )
    assert started.topics_hash == known
    assert list(started.topic) == []
