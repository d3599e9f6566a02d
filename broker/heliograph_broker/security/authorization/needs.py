"""Needs of a command or a route, the objects of these needs, and decisions about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from heliograph_api.values.names import TopicName


class Need(StrEnum):
    """The right an identity must have. A command or route without one is for superusers only."""

    NOTHING = "nothing"
    """Anybody may, without authentication: probes of a Kubernetes."""
    IDENTITY = "identity"
    """Every authenticated client may."""
    LOOKUP = "lookup"
    """Clients that may produce to or consume from the topic may."""
    PRODUCE = "produce"
    CONSUME = "consume"
    """On a topic and, where one is named, its subscription."""
    ADMIN = "admin"
    """Administrators of the tenant, and roles with a grant of administration on the namespace or topic.

    They may also do everything else there.
    """
    MONITOR = "monitor"
    """Metrics and statistics of the whole broker: superusers, and the roles of the setting ``monitors``."""
    BACKUP = "backup"
    """A copy of all that the broker keeps, and its state: superusers, and the roles of the setting ``backups``."""
    SUPERUSER = "superuser"


class Resource(msgspec.Struct, frozen=True):
    """The object of a decision; parts that do not matter are empty. ``topic`` is the full name without a partition."""

    tenant: str = ""
    namespace: str = ""
    """As ``tenant/namespace``."""
    topic: str = ""
    subscription: str = ""


NOWHERE: Final = Resource()
"""The cluster as a whole: of the needs, only NOTHING, IDENTITY, MONITOR, BACKUP and SUPERUSER can be met on it."""
EVERY_SUBSCRIPTION: Final = "\0"
"""Instead of the name of a subscription, which cannot be this: all subscriptions of the topic or namespace."""


def on_tenant(tenant: str) -> Resource:
    """Return the resource of a tenant."""
    return Resource(tenant)


def on_namespace(namespace: str) -> Resource:
    """Return the resource of a namespace, named ``tenant/namespace``."""
    return Resource(namespace.partition("/")[0], namespace)


def on_topic(name: TopicName, subscription: str = "") -> Resource:
    """Return the resource of a topic, or of one subscription of it; a partition is part of its topic."""
    return Resource(name.tenant, name.namespace_name, str(name.base), subscription)


class Decision(NamedTuple):
    """Whether it is allowed, and the rule that decided, for people."""

    allowed: bool
    rule: str
