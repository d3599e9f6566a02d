"""The columns of the policy table: how a policy combines, where it can be set, and its names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from .policy_kinds import Kind


class Level(enum.Flag):
    """The levels at which a policy can be set."""

    NONE = 0
    SUBSCRIPTION = enum.auto()
    TOPIC = enum.auto()
    NAMESPACE = enum.auto()
    #: It can also be capped, for all that a tenant or a broker has.
    LIMIT = enum.auto()
    TOPICS = TOPIC | NAMESPACE
    LIMITED = TOPIC | NAMESPACE | LIMIT
    #: Everywhere: a subscription's own setting counts before its topic's.
    ALL = SUBSCRIPTION | LIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class RestPath:
    """A policy in the admin REST API: the ends of its paths, and what Pulsar's API does differently there."""

    namespace: str | None = None
    topic: tuple[str, ...] = ()
    #: Its name in a namespace's own document.
    key: str
    #: Whether it is a map by the cluster's name in that document.
    per_cluster: bool = False
    #: The end of its path under a subscription, which is Heliograph's own.
    subscription: str = ""
    #: The end of paths of its own, at each level, that count a time in milliseconds where Pulsar's count seconds.
    milliseconds: str = ""
    #: A query parameter of topics that its value may come in.
    topic_query: str = ""
    #: The methods that set it for a namespace and for a topic.
    methods: tuple[str, str] = ("POST", "POST")
    #: The answers to GET at a namespace and a topic that set nothing; None: 204.
    unset: tuple[Any, Any] = (None, None)
    #: The setting of the broker that applies where no level sets one.
    setting: str = ""
    #: The topic's error for a value out of range, if Pulsar words it differently from the namespace's.
    topic_refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A policy on the command line: the name after ``set-`` and the options, as in ``pulsar-admin``."""

    namespace: str = ""
    topic: str = ""
    subscription: str = ""
    #: Its option, if it has a single one, at namespaces and at topics.
    options: tuple[str, ...] = ()
    topic_options: tuple[str, ...] = ()
    removable: bool = True
    #: The value an example switches to.
    example: str = "--enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyField:
    """A row. Manifests, the REST API, commands, the resolver and the operator are made from the rows."""

    kind: Kind
    #: The levels at which manifests can set it.
    levels: Level = Level.NONE
    #: The object of "set …".
    title: str = ""
    #: The documentation, as ``kubectl explain`` shows it.
    doc: str = ""
    #: Its name in manifests, with dots inside documents, where that is not the core's in camel case without the unit.
    manifest: str = ""
    #: Its name in manifests among the policies of a subscription, where that differs.
    subscription_manifest: str = ""
    #: The value if no level sets it, as clients see it.
    default: Any = None
    #: Whether it is of no meaning where nothing is stored.
    for_stored: bool = False
    #: The value that a topic without storage may have of it all the same: it asks for nothing.
    idle_value: Any = None
    rest: RestPath | None = None
    command: Command | None = None


def manifest_name(field: str, row: PolicyField, *, of_subscription: bool = False) -> str:
    """Return a policy's name in manifests: ``maxProducers`` for ``max_producers``."""
    return (row.subscription_manifest if of_subscription else "") or row.manifest or camel(field)


def camel(field: str) -> str:
    """Return a core's name without its unit as manifests write it."""
    first, *rest = field.removesuffix("_ms").split("_")
    return first + "".join(word.capitalize() for word in rest)
