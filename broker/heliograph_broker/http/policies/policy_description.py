"""What one policy of the admin REST API is: its document, its paths, and the way to the core and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.policies import Policies

from heliograph_broker.http.base.operations import JSON, Media
from heliograph_broker.messaging.base.errors import PreconditionFailed

from . import policy_documents as documents
from .policy_documents import Count

NAMESPACE: Final = "namespace"
TOPIC: Final = "topic"
POST: Final = "POST"
PUT: Final = "PUT"


class Level(msgspec.Struct, frozen=True):
    """Where a policy is being set: NAMESPACE or TOPIC, and the settings of the broker it is set in."""

    name: str
    config: BrokerConfig


Read = Callable[[Policies], Any]
Write = Callable[[Policies, Any, Level], None]


class PolicyPath(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of the admin REST API.

    ``read`` returns what a level sets as a document (None: nothing), ``write`` puts a document into a level's policies
    or refuses it. A namespace has the path ``namespace``, a topic the paths ``topic``; a topic's figure may come as the
    query parameter ``topic_query``, as Pulsar's clients send it.
    """

    title: str
    document: Any
    example: str
    fields: tuple[str, ...]
    read: Read
    write: Write
    #: what ``applied=true`` shows where no level says anything; None: 204
    otherwise: Callable[[BrokerConfig], Any]
    namespace: str | None = None
    topic: tuple[str, ...] = ()
    verbs: tuple[str, str] = (POST, POST)
    #: what a GET at a namespace or a topic shows where it sets nothing; None: 204
    unset: tuple[Any, Any] = (None, None)
    topic_query: str = ""
    #: its name in the namespace's own document; ``per_cluster``: there it is a map by the cluster's name
    key: str = ""
    per_cluster: bool = False
    #: of no meaning where nothing is stored
    for_stored: bool = False
    #: one that retention and backlog quota have to agree on
    guards_backlog: bool = False

    @property
    def sample(self) -> str:
        """The example as JSON, without the unit that may follow it in parentheses."""
        return self.example.partition(" (")[0]

    @property
    def answer(self) -> Any:
        """The type of what a GET answers, for the API's description."""
        # There a bare text would be one that is not JSON.
        return (
            Media((JSON,), self.document)
            if msgspec.json.schema(self.document).get("type") == "string"
            else self.document
        )


def _simple(
    field: str,
    to_core: Callable[[Any], Any],
    to_document: Callable[[Any], Any],
) -> tuple[tuple[str, ...], Read, Write]:
    """Return fields, ``read`` and ``write`` of a policy that is one field of the core."""

    def read(policies: Policies) -> Any:
        value = getattr(policies, field)
        return None if value is None else to_document(value)

    def write(policies: Policies, document: Any, level: Level) -> None:
        setattr(policies, field, to_core(document))

    return (field,), read, write


def plain(title: str, field: str, document: Any, example: str, otherwise: Any, **given: Any) -> PolicyPath:
    """Describe a policy whose document is the core's value."""
    fields, read, write = _simple(field, lambda value: value, lambda value: value)
    return PolicyPath(
        title=title,
        document=document,
        example=example,
        fields=fields,
        read=read,
        write=write,
        otherwise=lambda config: otherwise,
        **given,
    )


def structure(
    title: str,
    field: str,
    document: Any,
    example: str,
    to_core: Callable[[Any], Any],
    to_document: Callable[[Any], Any],
    otherwise: Callable[[BrokerConfig], Any],
    **given: Any,
) -> PolicyPath:
    """Describe a policy whose document says something in Pulsar's way."""
    fields, read, write = _simple(field, to_core, to_document)
    return PolicyPath(
        title=title,
        document=document,
        example=example,
        fields=fields,
        read=read,
        write=write,
        otherwise=otherwise,
        **given,
    )


def figure(
    title: str,
    field: str,
    reasons: tuple[str, str],
    *,
    unit: int = 1,
    document: Any = Count,
    example: str = "10",
    otherwise: Callable[[BrokerConfig], int] = lambda config: 0,
    most: Callable[[BrokerConfig], int] = lambda config: 2**63 - 1,
    **given: Any,
) -> PolicyPath:
    """Describe a figure, 0 for none; ``reasons`` are what a namespace and a topic say to one out of range."""

    def read(policies: Policies) -> int | None:
        value: int | None = getattr(policies, field)
        return None if value is None else max(0, documents.up(value, unit))

    def write(policies: Policies, number: int, level: Level) -> None:
        if not 0 <= number <= most(level.config):
            raise PreconditionFailed(reasons[level.name == TOPIC])
        setattr(policies, field, documents.scaled(number, unit))

    return PolicyPath(
        title=title,
        document=document,
        example=example,
        fields=(field,),
        read=read,
        write=write,
        otherwise=otherwise,
        **given,
    )


def maximum(title: str, field: str, namespace: str, topic: str, key: str, **given: Any) -> PolicyPath:
    reasons = (f"{namespace} must be 0 or more", given.pop("topic_reason", f"{topic} must be 0 or more"))
    paths = (topic,) if topic else ()
    return figure(title, field, reasons, namespace=namespace, topic=paths, key=key, **given)
