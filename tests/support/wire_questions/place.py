"""A broker that is asked, in a namespace of its own, and the list of all questions."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pulsar
from google.protobuf.json_format import MessageToDict
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import connect
from tests.support.polling import eventually
from tests.support.rest import call
from tests.support.wire_client import ConnectionEndedError, Type, WireClient, WireError

#: Named parts of an answer, as JSON.
Answers = dict[str, Any]
Question = Callable[["Place"], Answers]
#: By name, in the order in which they are asked.
QUESTIONS: dict[str, Question] = {}
#: Fields of answers that differ from one broker, or one moment, to the next.
_PASSING = frozenset({"request_id", "producer_name", "message", "error_message", "producer_id", "consumer_id"})


def question(ask: Question) -> Question:
    """Add a question to the list, by the name of its function."""
    QUESTIONS[ask.__name__] = ask
    return ask


class Place:
    """A broker, and a fresh namespace of it. Answers call the namespace ``public/here``."""

    def __init__(self, service_url: str, http_url: str) -> None:
        self.service_url = service_url
        self.http_url = http_url
        self._ids = itertools.count(1000)
        self.local_namespace = f"asked-{time.monotonic_ns():x}"
        self.namespace = f"public/{self.local_namespace}"
        self.rest("PUT", f"namespaces/{self.namespace}")
        everything = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.rest("POST", f"namespaces/{self.namespace}/retention", everything)
        self.wire = WireClient(service_url)

    def close(self) -> None:
        self.wire.close()

    @contextmanager
    def client(self) -> Iterator[pulsar.Client]:
        """An official client."""
        connected = connect(self.service_url)
        try:
            yield connected
        finally:
            connected.close()

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """Call the admin REST API under ``/admin/v2/``."""
        return call(f"{self.http_url}/admin/v2/{path}", method, body)

    def name(self, local: str, domain: str = "persistent") -> str:
        """Return the full name of a topic."""
        return f"{domain}://{self.namespace}/{local}"

    def next_id(self) -> int:
        """Return an id for a producer, a consumer or a watcher."""
        return next(self._ids)

    def ask(self, kind: int, answer: int, client: WireClient | None = None, **fields: Any) -> Any:
        """Send a request and return what is answered: its lasting fields, or the name of the error."""
        try:
            return self.shown((client or self.wire).request(kind, answer, **fields))
        except WireError as error:
            return wire.ServerError.Name(error.code)  # type: ignore[arg-type]
        except ConnectionEndedError:
            if client is None:
                self.wire.close()
                self.wire = WireClient(self.service_url)
            return "the connection ends"

    def shown(self, body: Any) -> Answers:
        """Return the fields of an answer that last, with the namespace's common name."""
        fields = MessageToDict(body, preserving_proto_field_name=True)
        text = json.dumps({name: value for name, value in fields.items() if name not in _PASSING})
        shown: Answers = json.loads(text.replace(self.namespace, "public/here").replace(self.service_url, "SERVICE"))
        return shown

    def topics(self, domain: str = "persistent") -> list[str]:
        """Return the local names of the namespace's topics, by REST."""
        prefix = self.name("", domain)
        return sorted(name.removeprefix(prefix) for name in self.rest("GET", f"{domain}/{self.namespace}"))

    def look_up(self, local: str, domain: str = "persistent") -> str:
        """Look a topic up, which Pulsar wants before a producer or a consumer; return its full name."""
        name = self.name(local, domain)
        self.wire.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=name)
        return name

    def await_policy(self, before: object) -> None:
        """Wait until a changed policy holds: until missing topics do not have the partitions of ``before``."""
        probes = (self.name(f"probe-{number}") for number in self._ids)
        eventually(lambda: self.partitions(next(probes), auto_create=True) != before, what="the policy to hold")

    def partitions(self, name: str, *, auto_create: bool | None = None) -> Any:
        """Ask for the number of a topic's partitions; return it, or the name of the error."""
        fields = {} if auto_create is None else {"metadata_auto_creation_enabled": auto_create}
        answer = self.wire.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=name, **fields)
        failed = wire.CommandPartitionedTopicMetadataResponse.Failed
        return wire.ServerError.Name(answer.error) if answer.response == failed else answer.partitions


def answers_of(service_url: str, http_url: str, name: str) -> Answers:
    """Ask a broker one question, in a namespace of its own."""
    place = Place(service_url, http_url)
    try:
        return QUESTIONS[name](place)
    finally:
        place.close()
