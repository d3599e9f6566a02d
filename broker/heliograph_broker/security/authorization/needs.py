"""What a command or a route needs of its client, and on what."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec


class Need(StrEnum):
    """What an identity must be allowed to do. A command or route without one is for superusers only."""

    NOTHING = "nothing"
    """Anybody may, without authentication: probes of a Kubernetes."""
    IDENTITY = "identity"
    """Every authenticated client may."""
    LOOKUP = "lookup"
    """Whoever may produce to or consume from the topic."""
    PRODUCE = "produce"
    CONSUME = "consume"
    """On a topic and, where one is named, its subscription."""
    ADMIN = "admin"
    """Administrators of the tenant, and roles with a grant of administration on the namespace or topic."""
    SUPERUSER = "superuser"


class Resource(msgspec.Struct, frozen=True):
    """The object of a decision; parts that do not matter are empty. ``topic`` is the full name without a partition."""

    tenant: str = ""
    namespace: str = ""
    """As ``tenant/namespace``."""
    topic: str = ""
    subscription: str = ""


class Decision(NamedTuple):
    """Whether it is allowed, and the rule that decided, for people."""

    allowed: bool
    rule: str
