"""Questions about schemas: which types have a version, and which follow each other."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.wire_client import Type

from .place import Answers, Place, question

_S = wire.Schema
_BYTES = _S.Type.Value("None")
_RECORD = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}'
#: Reads what the first wrote, but not the other way round.
_LESS = b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
_OTHER = b'{"type":"record","name":"R","fields":[{"name":"c","type":"string"}]}'
#: Types whose definition is JSON.
_DEFINED = frozenset({_S.Avro, _S.Json, _S.Protobuf})
#: Types that need definitions of their own: the tests of official clients have them.
_ELSEWHERE = frozenset({_S.KeyValue, _S.ProtobufNative})


def _schema(kind: int, definition: bytes = _RECORD) -> wire.Schema:
    return wire.Schema(name="s", type=kind, schema_data=definition if kind in _DEFINED else b"")  # type: ignore[arg-type]


class _Topic:
    """A topic that producers and consumers with schemas come to."""

    def __init__(self, place: Place, local: str) -> None:
        self._place = place
        self.name = place.look_up(local)

    def produce(self, kind: int | None, definition: bytes = _RECORD) -> Any:
        """Open a producer; return the version of its schema, or the name of the error."""
        fields: dict[str, Any] = {} if kind is None else {"schema": _schema(kind, definition)}
        answer = self._place.ask(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=self.name, producer_id=self._place.next_id(), **fields
        )
        return answer if isinstance(answer, str) else answer.get("schema_version", "")

    def consume(self, kind: int | None, definition: bytes = _RECORD) -> Any:
        """Subscribe; return what is answered."""
        fields: dict[str, Any] = {} if kind is None else {"schema": _schema(kind, definition)}
        consumer_id = self._place.next_id()
        return self._place.ask(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=self.name,
            subscription=f"s-{consumer_id}",
            subType=wire.CommandSubscribe.Shared,
            consumer_id=consumer_id,
            **fields,
        )

    def stored(self, **fields: Any) -> Any:
        return self._place.ask(Type.GET_SCHEMA, Type.GET_SCHEMA_RESPONSE, topic=self.name, **fields)

    def learn(self, kind: int, definition: bytes = _RECORD) -> Any:
        """Add a schema as a producer does that learns it while it runs."""
        return self._place.ask(
            Type.GET_OR_CREATE_SCHEMA,
            Type.GET_OR_CREATE_SCHEMA_RESPONSE,
            topic=self.name,
            schema=_schema(kind, definition),
        )


@question
def schema_types(place: Place) -> Answers:
    """For each type: the version for producers, and what the topic has then."""
    answers: Answers = {}
    for name, kind in _S.Type.items():
        if kind in _ELSEWHERE:
            continue
        topic = _Topic(place, f"by-producer-{name}")
        versions = [topic.produce(kind), topic.produce(kind), topic.produce(None)]
        consumers = [topic.consume(kind), topic.consume(None)]
        answers[name] = {"producers": versions, "consumers": consumers, "stored": topic.stored()}
        first = _Topic(place, f"by-consumer-{name}")
        answers[f"{name}, consumer first"] = {"consumer": first.consume(kind), "stored": first.stored()}
    return answers


@question
def schemas_after_another(place: Place) -> Answers:
    """Producers and consumers with schemas of one type after those of another."""
    answers: Answers = {}
    for first, then in (
        (_S.String, _BYTES),
        (_BYTES, _S.String),
        (_S.Avro, _BYTES),
        (_S.Json, _BYTES),
        (_BYTES, _S.Json),
        (_S.Json, _S.Avro),
        (_S.Json, _S.AutoConsume),
        (_S.Json, _S.External),
        (_S.External, _S.Json),
        (_S.String, _S.Int32),
    ):
        label = f"{_S.Type.Name(first)}, {_S.Type.Name(then)}"
        topic = _Topic(place, f"after-{first}-{then}")
        answers[label] = [topic.produce(first), topic.produce(then), topic.consume(then)]
    return answers


@question
def schemas_that_differ(place: Place) -> Answers:
    """Versions of a record: a producer is held to the strategy, a consumer has to be able to read."""
    topic = _Topic(place, "records")
    answers: Answers = {
        "producer": topic.produce(_S.Json),
        "producer of less": topic.produce(_S.Json, _LESS),
        "consumer of less": topic.consume(_S.Json, _LESS),
        "consumer of another": topic.consume(_S.Json, _OTHER),
        "stored": topic.stored(),
        "no such version": topic.stored(schema_version=(7).to_bytes(8, "big")),
    }
    return answers


@question
def schemas_learned(place: Place) -> Answers:
    """GET_OR_CREATE_SCHEMA while a producer without a schema is open."""
    topic = _Topic(place, "learned")
    return {
        "producer": topic.produce(None),
        "none stored": topic.stored(),
        "json": topic.learn(_S.Json),
        "json again": topic.learn(_S.Json),
        "another": topic.learn(_S.Json, _OTHER),
        "bytes": topic.learn(_BYTES),
        "auto consume": topic.learn(_S.AutoConsume),
        "external": topic.learn(_S.External),
        "stored": topic.stored(),
    }
