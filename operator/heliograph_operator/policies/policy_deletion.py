"""The end of a resource: its data seen to as its deletionPolicy says, and then it may go. It always may, in the end."""

from __future__ import annotations

from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable

from heliograph_operator.act.broker_sessions import Broker, Brokers
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import HOLDS_RETAINED, is_held, note_retained, owned, release
from heliograph_operator.act.resource_memory import Memory
from heliograph_operator.act.status_report import report
from heliograph_operator.archive.archive_reconciler import still_archived
from heliograph_operator.decide.targets import http_url
from heliograph_operator.kube.kube_namespaces import namespace_ends
from heliograph_operator.objects.backoff import REFUSED, UNREACHABLE
from heliograph_operator.objects.conditions import Reason, ready
from heliograph_operator.objects.kinds import (
    Body,
    Key,
    annotation,
    deleted_for_s,
    is_deleted,
    is_managed,
    is_paused,
    key_of,
)
from heliograph_operator.objects.resource_cache import parent_of

log = structlog.get_logger(__name__)

#: Time (s) between two looks at a run of an archive that is to end first.
_ARCHIVE_S: Final = 1.0


class Deletion:
    """What :class:`.policy_reconciler.Policies` does with resources that are being deleted."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def go_on(self, context: Context, memory: Memory, body: Body) -> Outcome:
        """Take the next step; each look begins again at the first, so that a restart in between does no harm."""
        cluster_name, name = owned(body)
        if not is_held(body):
            return Outcome("gone")
        if not name:
            return await self._let_go(context, body)
        if not is_managed(body) or is_paused(body):
            return await self._keep(context, body, f"{name} stays in the broker: an annotation says to leave it alone")
        if children := _children(context, body):
            shown = ", ".join(f"{key.kind} {key.name}" for key in children[:5])
            more = f" and {len(children) - 5} more" if len(children) > 5 else ""
            return await self._wait(context, memory, body, Reason.CHILDREN_EXIST, f"there still is {shown}{more}")
        if (body.get("spec") or {}).get("deletionPolicy") == "Retain":
            return await self._keep(context, body, f"{name} stays in the broker: its deletionPolicy is Retain")
        key = key_of(body)
        cluster_key = Key("BrokerCluster", key.namespace, cluster_name)
        if heirs := _heirs(context, key, (cluster_key, key.kind, name)):
            return await self._keep(context, body, f"{name} goes over to {heirs[0].kind} {heirs[0].name}", quiet=True)
        cluster = context.store.get(cluster_key)
        if cluster is None:
            log.info("nothing to delete", resource=str(key), reason="its BrokerCluster is gone")
            return await self._let_go(context, body)
        memory.http_url, memory.name = http_url(cluster), name
        if not memory.http_url:
            message = f"BrokerCluster {cluster_name} publishes no broker address"
            return await self._without_broker(context, memory, body, cluster, message, deleted_for_s(body))
        broker = self._brokers.at(memory.http_url)
        try:
            return await self._delete(context, body, broker, name)
        except AdminUnreachable as error:
            away_s = min(broker.away_s, deleted_for_s(body))
            return await self._without_broker(context, memory, body, cluster, str(error), away_s)
        except AdminRefused as error:
            memory.refused += 1
            outcome = await self._wait(context, memory, body, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(memory.refused))

    async def _delete(self, context: Context, body: Body, broker: Broker, name: str) -> Outcome:
        kind = body["kind"]
        if kind == "Topic" and await still_archived(context, body):
            return Outcome("waiting", _ARCHIVE_S)
        if_empty = (body.get("spec") or {}).get("deletionPolicy") == "DeleteIfEmpty"
        # What was kept on purpose does not go with what it is in.
        if_empty = if_empty or annotation(body, HOLDS_RETAINED) == "true"
        if not if_empty:
            await broker.delete(kind, name, force=True)
            return await self._let_go(context, body)
        if kind == "Topic" and (why := await self._filled(broker, name)):
            return await self._keep(context, body, f"{name} stays in the broker: {why}")
        try:
            await broker.delete(kind, name, force=False)
        except AdminRefused as error:
            return await self._keep(context, body, f"{name} stays in the broker: {error.reason}")
        return await self._let_go(context, body)

    async def _filled(self, broker: Broker, name: str) -> str:
        """Return what a topic holds, an empty text if nothing."""
        listing = await broker.listing(float("inf"))
        topic = listing.state.topics.get(name)
        if topic is None:
            return ""
        if topic.backlog_messages:
            return f"{topic.backlog_messages} messages are not acknowledged"
        return f"{topic.storage_bytes} bytes are stored" if topic.storage_bytes else ""

    async def _without_broker(
        self, context: Context, memory: Memory, body: Body, cluster: Body, message: str, away_s: float
    ) -> Outcome:
        """Wait for a broker that is away for ``away_s``: not forever, nor for one that goes for good.

        That is one that goes with its cluster, or with all of the Kubernetes namespace.
        """
        if is_deleted(cluster) or await namespace_ends(context.kube, body["metadata"].get("namespace", "")):
            log.info("nothing to delete", resource=str(key_of(body)), reason="its broker is going, too")
            return await self._let_go(context, body)
        if away_s >= context.settings.deletion_wait_s:
            return await self._keep(context, body, f"{memory.name} stays in the broker, which is away: {message}")
        memory.unreachable = True
        outcome = await self._wait(context, memory, body, Reason.BROKER_UNREACHABLE, message)
        # A namespace that ends says so to nobody here: it is asked for again.
        left_s = max(1.0, context.settings.deletion_wait_s - away_s)
        return Outcome(outcome.result, min(UNREACHABLE.cap_s, left_s))

    async def _wait(self, context: Context, memory: Memory, body: Body, reason: Reason, message: str) -> Outcome:
        await report(context, memory, body, [ready(reason, message)])
        return Outcome("waiting", UNREACHABLE.cap_s)

    async def _keep(self, context: Context, body: Body, message: str, *, quiet: bool = False) -> Outcome:
        """Let the resource go and leave its data; those above it are told, or it would go with them."""
        if not quiet:
            above = parent_of(body)
            while above is not None and (parent := context.store.get(above)) is not None:
                await note_retained(context, parent)
                above = parent_of(parent)
        await context.events.emit(body, "DataRetained", message)
        return await self._let_go(context, body)

    async def _let_go(self, context: Context, body: Body) -> Outcome:
        await release(context, body)
        return Outcome("gone")


def _children(context: Context, body: Body) -> list[Key]:
    """Return the resources below this one that something was made for in the broker."""
    keys = context.store.children(key_of(body))
    return [key for key in keys if (child := context.store.get(key)) is not None and is_held(child)]


def _heirs(context: Context, key: Key, claim: tuple[Key, str, str]) -> list[Key]:
    """Return the other resources that name the same object and stay."""
    return [
        key_of(each)
        for each in context.store.claimants(claim)
        if key_of(each) != key and is_managed(each) and not is_deleted(each)
    ]
