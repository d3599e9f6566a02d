"""GET /heliograph/v1/status: everything a broker has, with its own policies and its backlog, in one answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from aiohttp import web
from heliograph_api import __version__
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import (
    BrokerState,
    NamespaceState,
    SubscriptionState,
    TenantState,
    TopicState,
)
from heliograph_api.values.names import NamespaceName, TopicName
from heliograph_api.values.schema_digest import schema_digest

from heliograph_broker.http.base.context import BROKER, as_json
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.messaging.base.names import COMPACTION
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.schemas.schema_types import type_name
from heliograph_broker.messaging.topic.directory import AnySubscription, AnyTopic
from heliograph_broker.security.authorization.needs import Need

from .stats import in_backlog, quota_limits

#: Topics described between two turns of the event loop.
_AT_ONCE: Final = 100


@operation(
    "Get the tenants, namespaces and topics of the broker, with their own policies, backlogs and quotas.",
    query=(Parameter("namespace", str, "Only this namespace (tenant/namespace), its tenant and its topics."),),
    answers={200: BrokerState, 412: Refusal},
    # A backup is recorded with what the broker has: the roles that make one read that, too.
    needs=Need.BACKUP,
)
async def status(request: web.Request) -> web.Response:
    """Answer from memory; a namespace that does not exist is an empty answer."""
    broker = request.app[BROKER]
    only = request.query.get("namespace")
    if only is not None:
        only = str(NamespaceName.parse(only))
    state = BrokerState(
        version=__version__,
        defaults=broker.policies.broker_defaults,
        limits=broker.policies.limits,
        tenants={
            name: TenantState(record.admin_roles, record.allowed_clusters, record.limits)
            for name, record in broker.directory.tenants.items()
            if only is None or only.partition("/")[0] == name
        },
        namespaces={
            name: NamespaceState(record.bundles, record.policies)
            for name, record in broker.directory.namespaces.items()
            if only in (None, name)
        },
        topics={},
        store_format=broker.store.format,
        store_id=broker.store.identity.store_id,
        roles=broker.roles.states() if only is None else None,
        started_ms=broker.roles.activity.started_ms,
    )
    # A partitioned topic is there before its first partition is looked at, and without any.
    for base, partitioned in broker.directory.partitioned.items():
        if only is None or base.partition("://")[2].startswith(f"{only}/"):
            state.topics[base] = TopicState(
                partitioned.partitions, partitioned.policies or Policies(), partitioned.properties
            )
    seen: Counter[str] = Counter()
    for at, topic in enumerate(list(_topics(broker, only))):
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if not topic.closed:
            _add(state, topic, seen)
    for name, entry in state.topics.items():
        entry.subscriptions.sort()
        # One that only some partitions have is in no other list.
        entry.subscription_states = {
            local: found
            for local, found in entry.subscription_states.items()
            if found != SubscriptionState() or local not in entry.subscriptions
        }
        entry.schemas = [
            schema_digest(type_name(version.type), version.data) for version in broker.schemas.versions(name)
        ]
        if seen[name] < entry.partitions:
            # Asked now, so that those that came while this was looked at are none of them.
            entry.missing_partitions = broker.directory.missing_partitions(TopicName.parse(name))
    return as_json(state)


def _topics(broker: Broker, only: str | None) -> Iterable[AnyTopic]:
    return (
        broker.directory.topics.values()
        if only is None
        else broker.directory.topics_by_namespace.get(only, {}).values()
    )


def _add(state: BrokerState, topic: AnyTopic, seen: Counter[str]) -> None:
    """Add a topic's statistics to its entry, which is shared by all partitions of one; ``seen`` counts them by key."""
    names = topic.subscriptions.keys() - {COMPACTION}
    key = str(topic.name.base)
    entry = state.topics.get(key)
    if entry is None:
        key = str(topic.name)
        entry = state.topics[key] = TopicState(0, topic.policies or Policies(), topic.properties)
    entry.subscriptions = [name for name in entry.subscriptions if name in names] if key in seen else list(names)
    seen[key] += 1
    subscriptions = topic.subscriptions.values()
    behind = {name: sub.acks.backlog_messages for name, sub in topic.subscriptions.items() if in_backlog(sub)}
    for name, messages in behind.items():
        if messages:
            entry.behind[name] = entry.behind.get(name, 0) + messages
    for name in names:
        _add_subscription(entry, name, topic.subscriptions[name])
    entry.backlog_messages += max(behind.values(), default=0)
    entry.backlog_bytes += (size := topic.statistics.backlog_size())
    entry.storage_bytes += topic.statistics.stored_bytes
    entry.producers += len(topic.producers)
    entry.consumers += sum(len(sub.consumers) for sub in subscriptions)
    if not topic.persistent:
        return
    oldest = topic.statistics.oldest_backlog()
    age_ms = oldest[1] if oldest is not None else -1
    if oldest is not None and age_ms > entry.oldest_age_ms:
        entry.oldest_age_ms, entry.oldest_received_ms = age_ms, oldest[0].acks.oldest_unacked_receive_ms()
    (entry.size_limit, _), entry.age_limit_ms = quota_limits(topic)
    entry.size_used = max(entry.size_used, _used(size, entry.size_limit))
    entry.age_used = max(entry.age_used, _used(max(0, age_ms), entry.age_limit_ms))
    entry.size_exceeded |= topic.quota.size_exceeded
    entry.age_exceeded |= topic.quota.age_exceeded


def _add_subscription(entry: TopicState, name: str, sub: AnySubscription) -> None:
    """Add what there is to say of a subscription on one partition."""
    state = SubscriptionState(consumers=len(sub.consumers))
    if sub.persistent:
        state.durable, state.properties = sub.durable, sub.properties
    if in_backlog(sub) and (messages := sub.acks.backlog_messages):
        state.messages, state.bytes = messages, sub.acks.backlog_bytes
        state.oldest_age_ms = sub.acks.oldest_unacked_age_ms()
    if sub.persistent and state.oldest_age_ms >= 0:
        state.oldest_received_ms = sub.acks.oldest_unacked_receive_ms()
    before = entry.subscription_states.get(name)
    if before is not None:
        state.durable = state.durable and before.durable
        state.properties = before.properties | state.properties
        state.messages += before.messages
        state.bytes += before.bytes
        state.consumers += before.consumers
        if before.oldest_age_ms > state.oldest_age_ms:
            state.oldest_age_ms, state.oldest_received_ms = before.oldest_age_ms, before.oldest_received_ms
    entry.subscription_states[name] = state


def _used(value: int, limit: int) -> float:
    """Return the ratio, -1 without a limit; a limit of 0 is used up by anything."""
    if limit < 0:
        return -1.0
    return round(value / limit, 4) if limit else float(value > 0)


def routes() -> list[web.RouteDef]:
    return [web.get("/heliograph/v1/status", status)]
