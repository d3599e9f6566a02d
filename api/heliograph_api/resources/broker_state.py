"""A broker's state in one response: its objects, their settings, and how far behind its consumers are.

For clients that manage many topics, such as the operator: one listing instead of a request for each. Policies are
those set at the level itself, in the core's units (ms, bytes); what is inherited is not repeated.
"""

from __future__ import annotations

import msgspec

from heliograph_api.policies.policies import Policies

from .role_state import RoleState


class TenantState(msgspec.Struct, rename="camel"):
    """A tenant; ``limits`` cap the policies of everything below it."""

    admin_roles: list[str]
    allowed_clusters: list[str]
    limits: Policies


class NamespaceState(msgspec.Struct, rename="camel"):
    """A namespace and the policies set for its topics; ``bundles`` 0: the broker does not say."""

    bundles: int
    policies: Policies


class SubscriptionState(msgspec.Struct, rename="camel", omit_defaults=True):
    """A subscription, all partitions of its topic together; -1 for no message."""

    #: Whether it outlives its consumers; a reader's does not.
    durable: bool = True
    properties: dict[str, str] = {}
    messages: int = 0
    bytes: int = 0
    oldest_age_ms: int = -1
    #: When the broker received the oldest unacknowledged message (wall-clock ms).
    oldest_received_ms: int = -1
    consumers: int = 0


class TopicState(msgspec.Struct, rename="camel"):
    """A topic, all its partitions together; ``partitions`` is 0 for one that is not partitioned.

    The backlog of a partition is that of its slowest durable subscription; messages and bytes are the sums over the
    partitions, ages and uses of quotas the largest. -1 means none: no message, or no limit.
    """

    partitions: int
    policies: Policies
    properties: dict[str, str] = {}
    #: Partitions that were deleted by themselves: a client that names one recreates it, without subscriptions.
    missing_partitions: list[int] = []
    #: Subscriptions that every partition has, without the broker's own; sorted.
    subscriptions: list[str] = []
    #: Messages that durable subscriptions are behind, over all partitions; those that are not are left out.
    behind: dict[str, int] = {}
    #: More of subscriptions, with all that only some partitions have; others with nothing to say are left out.
    subscription_states: dict[str, SubscriptionState] = {}
    backlog_messages: int = 0
    backlog_bytes: int = 0
    oldest_age_ms: int = -1
    #: When the broker received it (wall-clock ms).
    oldest_received_ms: int = -1
    storage_bytes: int = 0
    size_limit: int = -1
    age_limit_ms: int = -1
    #: Used share of the limit as a ratio: 0.15.
    size_used: float = -1.0
    age_used: float = -1.0
    size_exceeded: bool = False
    age_exceeded: bool = False
    #: Clients that are connected.
    producers: int = 0
    consumers: int = 0
    #: What tells the versions of its schema from others, by :func:`.schema_spec.schema_digest`; oldest first.
    schemas: list[str] = []

    def subscription(self, name: str) -> SubscriptionState | None:
        """Return the state of a subscription that at least one partition has; None if no partition has it."""
        found = self.subscription_states.get(name)
        return SubscriptionState() if found is None and name in self.subscriptions else found


class BrokerState(msgspec.Struct, rename="camel"):
    """A whole broker, or what of it was asked for. Topics are by their full names, namespaces as ``tenant/own``."""

    version: str
    defaults: Policies
    limits: Policies
    tenants: dict[str, TenantState]
    namespaces: dict[str, NamespaceState]
    topics: dict[str, TopicState]
    #: The format of its data directory, such as ``heliograph 3``; empty: the broker does not say.
    store_format: str = ""
    #: The id of its store, which copies of the store have, too; empty: the broker does not say.
    store_id: str = ""
    #: The roles for which something is set; None: the broker does not say, or does not know of any.
    roles: dict[str, RoleState] | None = None
    #: When the broker started (wall-clock ms), since which it knows of the clients of roles; -1: it does not say.
    started_ms: int = -1
