"""Questions about lists of topics and their watchers."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.wire_client import Type

from .place import Answers, Place, question

_Mode = wire.CommandGetTopicsOfNamespace


def _create(place: Place, *locals_: str) -> None:
    for local in locals_:
        place.rest("PUT", f"persistent/{place.namespace}/{local}")


@question
def lists(place: Place) -> Answers:
    """GET_TOPICS_OF_NAMESPACE right after topics were created through REST: modes, patterns, hashes, properties."""
    _create(place, "t-a", "t-b", "x")
    place.rest("PUT", f"persistent/{place.namespace}/t-parted/partitions", 2)
    place.wire.producer(place.look_up("t-n", "non-persistent"))

    def asked(**fields: Any) -> Answers:
        fields.setdefault("namespace", place.namespace)
        answer = place.ask(Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, **fields)
        if isinstance(answer, dict):
            answer["topics"] = sorted(answer.get("topics", []))
        return answer  # type: ignore[no-any-return]

    namespace = place.namespace
    answers = {f"mode {name}": asked(mode=mode)["topics"] for name, mode in _Mode.Mode.items()}
    for what, pattern in {
        "with its domain": f"persistent://{namespace}/t-.*",
        "without its domain": f"{namespace}/t-.*",
        "of another domain": f"non-persistent://{namespace}/t-.*",
        "without a namespace": "t-.*",
        "everything": ".*",
        "everything of the namespace": f"persistent://{namespace}/.*",
        "quoted": f"persistent://\\Q{namespace}\\E/t-[ab]",
        "an alternative": f"persistent://{namespace}/(t-a|x)",
        "part of a name": f"persistent://{namespace}/t-",
    }.items():
        answer = asked(topics_pattern=pattern)
        answers[f"pattern {what}"] = {key: answer.get(key) for key in ("topics", "filtered", "changed")}
    pattern = f"persistent://{namespace}/t-.*"
    known = asked(topics_pattern=pattern)["topics_hash"]
    for what, fields in {
        "known": {"topics_pattern": pattern, "topics_hash": known},
        "another": {"topics_pattern": pattern, "topics_hash": "00000000"},
        "empty": {"topics_pattern": pattern, "topics_hash": ""},
        "known, no pattern": {"topics_hash": asked()["topics_hash"]},
    }.items():
        answer = asked(**fields)
        answers[f"hash {what}"] = {key: answer.get(key) for key in ("topics", "filtered", "changed")}
    answers["properties"] = asked(properties=[wire.KeyValue(key="k", value="v")])["topics"]
    answers["bad pattern"] = asked(topics_pattern=f"persistent://{namespace}/(")
    answers["no such namespace"] = asked(namespace=f"public/no-{place.local_namespace}")
    return answers


@question
def watches(place: Place) -> Answers:
    """WATCH_TOPIC_LIST: the first list, a list that is known, news, and reconciliation under the same id."""
    _create(place, "t-a", "x")
    pattern = f"persistent://{place.namespace}/t-.*"
    watcher = place.next_id()

    def watch(watcher_id: int, **fields: Any) -> Any:
        fields = {"namespace": place.namespace, "topics_pattern": pattern, "watcher_id": watcher_id, **fields}
        return place.wire.request(Type.WATCH_TOPIC_LIST, Type.WATCH_TOPIC_LIST_SUCCESS, **fields)

    def news() -> Answers:
        update = place.wire.expect(Type.WATCH_TOPIC_UPDATE).body
        assert update.watcher_id == watcher
        hashes.append(update.topics_hash)
        return {key: value for key, value in place.shown(update).items() if key in ("new_topics", "deleted_topics")}

    def listed(success: Any) -> list[str]:
        return sorted(name.removeprefix(place.name("")) for name in success.topic)

    first = watch(watcher)
    hashes = [first.topics_hash]
    answers: Answers = {"first": listed(first)}
    answers["known"] = listed(watch(watcher, topics_hash=first.topics_hash))
    _create(place, "x-2", "t-b")
    answers["created"] = news()
    reconciled = watch(watcher, topics_hash=first.topics_hash)
    answers["reconciled"] = listed(reconciled)
    answers["reconciled again"] = listed(watch(watcher, topics_hash=reconciled.topics_hash))
    _create(place, "t-c")
    answers["created after that"] = news()
    place.rest("DELETE", f"persistent/{place.namespace}/t-c?force=true")
    answers["deleted"] = news()
    answers["hashes repeat"] = [hashes.index(each) for each in hashes]
    answers["hash of reconciled"] = hashes.index(reconciled.topics_hash)
    listing = place.wire.request(
        Type.GET_TOPICS_OF_NAMESPACE,
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE,
        namespace=place.namespace,
        topics_pattern=pattern,
    )
    answers["hash of the list"] = hashes.index(listing.topics_hash)
    answers["closed"] = place.ask(Type.WATCH_TOPIC_LIST_CLOSE, Type.SUCCESS, watcher_id=watcher)
    answers["closed again"] = place.ask(Type.WATCH_TOPIC_LIST_CLOSE, Type.SUCCESS, watcher_id=watcher)
    answers["bad pattern"] = place.ask(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        namespace=place.namespace,
        watcher_id=place.next_id(),
        topics_pattern=f"persistent://{place.namespace}/(",
    )
    return answers
