"""Describes one policy of the admin REST API: its document, its paths, and the conversion to the core and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policy_field import PolicyField
from heliograph_api.policies.policy_table import POLICY_FIELDS, Policies

from heliograph_broker.http.base.operations import JSON, Media
from heliograph_broker.messaging.base.errors import PreconditionFailed

from . import policy_documents as documents
from .policy_documents import Count

NAMESPACE: Final = "namespace"
TOPIC: Final = "topic"
POST: Final = "POST"
PUT: Final = "PUT"


class Level(msgspec.Struct, frozen=True):
    """The level at which a policy is being set, NAMESPACE or TOPIC, and the settings of the broker."""

    name: str
    config: BrokerConfig


Read = Callable[[Policies], Any]
Write = Callable[[Policies, Any, Level], None]


class PolicyPath(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of the admin REST API.

    ``read`` returns a level's setting as a document (None: none), ``write`` puts a document into a level's policies
    or refuses it. A namespace has the path ``namespace``, a topic the paths ``topic``; a topic's number may come as the
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
    #: the answer to a GET at a namespace or a topic that sets nothing; None: 204
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

    def clear(self, policies: Policies) -> None:
        """Remove the setting, so that the next level's applies."""
        for field in self.fields:
            setattr(policies, field, None)

    @property
    def answer(self) -> Any:
        """The type of the answer to a GET, for the API's description."""
        # There a bare text would be one that is not JSON.
        return (
            Media((JSON,), self.document)
            if msgspec.json.schema(self.document).get("type") == "string"
            else self.document
        )


def described(
    field: str,
    document: Any,
    example: str,
    read: Read,
    write: Write,
    *,
    otherwise: Callable[[BrokerConfig], Any] | None = None,
    fields: tuple[str, ...] = (),
    note: str = "",
    guards_backlog: bool = False,
) -> PolicyPath:
    """Return the path of a policy that its row in the table describes; ``note`` follows its title."""
    row = POLICY_FIELDS[field]
    if row.rest is None:
        raise ValueError(f"{field} has no path in the REST API")
    return PolicyPath(
        title=row.title + note,
        document=document,
        example=example,
        fields=fields or (field,),
        read=read,
        write=write,
        otherwise=otherwise or _otherwise(row),
        namespace=row.rest.namespace,
        topic=row.rest.topic,
        verbs=row.rest.methods,
        unset=row.rest.unset,
        topic_query=row.rest.topic_query,
        key=row.rest.key,
        per_cluster=row.rest.per_cluster,
        for_stored=row.for_stored,
        guards_backlog=guards_backlog,
    )


def _otherwise(row: PolicyField) -> Callable[[BrokerConfig], Any]:
    setting = row.rest.setting if row.rest is not None else ""
    return (lambda config: getattr(config, setting)) if setting else (lambda config: row.default)


def plain(field: str, document: Any, example: str) -> PolicyPath:
    """Describe a policy whose document is the core's value."""
    return structure(field, document, example, lambda value: value, lambda value: value)


def structure(
    field: str,
    document: Any,
    example: str,
    to_core: Callable[[Any], Any],
    to_document: Callable[[Any], Any],
    otherwise: Callable[[BrokerConfig], Any] | None = None,
    **given: Any,
) -> PolicyPath:
    """Describe a policy whose document says something in Pulsar's way."""

    def read(policies: Policies) -> Any:
        value = getattr(policies, field)
        return None if value is None else to_document(value)

    def write(policies: Policies, document: Any, level: Level) -> None:
        setattr(policies, field, to_core(document))

    return described(field, document, example, read, write, otherwise=otherwise, **given)


def number(
    field: str,
    *,
    refusals: tuple[str, str] | None = None,
    scale: int = 1,
    document: Any = Count,
    example: str = "10",
    most: Callable[[BrokerConfig], int] = lambda config: 2**63 - 1,
    note: str = "",
) -> PolicyPath:
    """Describe a number, 0 for none; ``refusals`` are what a namespace and a topic say to one out of range."""
    if refusals is None:
        rest = POLICY_FIELDS[field].rest
        names = (rest.namespace or "", rest.topic[0] if rest.topic else "") if rest is not None else ("", "")
        of_namespace, of_topic = (f"{name} must be 0 or more" for name in names)
        refusals = (of_namespace, (rest.topic_refusal if rest is not None else "") or of_topic)
    reasons = refusals

    def read(policies: Policies) -> int | None:
        value: int | None = getattr(policies, field)
        return None if value is None else max(0, documents.up(value, scale))

    def write(policies: Policies, number: int, level: Level) -> None:
        if not 0 <= number <= most(level.config):
            raise PreconditionFailed(reasons[level.name == TOPIC])
        setattr(policies, field, documents.scaled(number, scale))

    return described(field, document, example, read, write, note=note)
