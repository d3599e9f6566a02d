"""Tenant, Namespace and Topic into the right broker: one look, the same whatever the trigger was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import Topic

from heliograph_operator import operator_metrics
from heliograph_operator.act.broker_sessions import Broker, Brokers, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold, is_held, owned, release
from heliograph_operator.act.policy_manifests import model_of, rendered
from heliograph_operator.act.resource_memory import Memories, Memory, PolicyResource
from heliograph_operator.act.status_report import report
from heliograph_operator.archive.archive_reconciler import ArchiveReport, Archives
from heliograph_operator.decide.broker_differences import Difference, differences, surplus
from heliograph_operator.decide.resource_stats import quota_verdict
from heliograph_operator.decide.targets import Target, Waiting, http_url, target_of
from heliograph_operator.objects.backoff import REFUSED
from heliograph_operator.objects.conditions import (
    POLICIES_APPLIED,
    QUOTA_EXCEEDED,
    READY,
    Reason,
    Verdict,
    condition,
    ready,
)
from heliograph_operator.objects.kinds import Body, Key, is_deleted, is_managed, is_paused, key_of

from .policy_deletion import Deletion

log = structlog.get_logger(__name__)

#: Time (s) a listing serves all who ask.
FRESH_S: Final = 2.0
#: Time (s) after which everything is looked at again, whatever the looks at the brokers said.
RESYNC_S: Final = 300.0
#: Time (s) after which a broker is asked again for a parent that no resource stands for.
PARENT_S: Final = 30.0
#: Differences named in one Event.
_MOST_NAMED = 8


@dataclass(slots=True)
class _Look:
    """One resource at one look."""

    body: Body
    key: Key
    memory: Memory
    model: PolicyResource
    target: Target


class Policies:
    """The reconciler of the three kinds."""

    def __init__(self, brokers: Brokers, memories: Memories, archives: Archives) -> None:
        self._brokers = brokers
        self._archives = archives
        self._memories = memories
        self._deletion = Deletion(brokers)

    async def reconcile(self, context: Context, body: Body) -> Outcome:
        """Make the broker as the resource says, and the status say how it is. Returns when to look again."""
        key = key_of(body)
        memory = self._memories.of(key, body)
        memory.settled, memory.unreachable = None, False
        cluster, name = owned(body)
        # What it stands for is its own to the end, whatever it is to be now.
        own = (Key("BrokerCluster", key.namespace, cluster), key.kind, name) if name else None
        if is_deleted(body):
            self._claim(context, key, own)
            return await self._deletion.go_on(context, memory, body)
        if not is_managed(body):
            return await self._unmanaged(context, memory, body)
        model = model_of(body, memory)
        target = target_of(context.store, body) if model is not None else Waiting(Reason.INVALID, memory.problem)
        if model is None or isinstance(target, Waiting):
            assert isinstance(target, Waiting)
            self._claim(context, key, own)
            return await self._not_ready(context, memory, body, target.reason, target.message)
        self._claim(context, key, own or target.claim)
        if own is not None and own != target.claim:
            message = (
                f"it stands for {name} in BrokerCluster {cluster} and cannot become {target.name} in"
                f" {target.cluster.name}; valid: the old name, or delete the resource and make a new one"
            )
            return await self._not_ready(context, memory, body, Reason.RENAME_REFUSED, message)
        if (winner := self._rival(context, key, target)) is not None:
            message = f"{target.name} is described by the older {winner.kind} {winner.name} already"
            return await self._not_ready(context, memory, body, Reason.CONFLICT, message)
        look = _Look(body, key, memory, model, target)
        held = body if is_held(body) or is_paused(body) else await hold(context, body, target)
        if held is None:
            return Outcome("gone")
        look.body = held
        return await self._with_broker(context, look)

    def _claim(self, context: Context, key: Key, claim: tuple[Key, str, str] | None) -> None:
        for other in context.store.claim(key, claim):
            context.queue.add(other)

    def _rival(self, context: Context, key: Key, target: Target) -> Key | None:
        """Return who has what this resource names, if it is another one."""
        claimants = [key_of(each) for each in context.store.claimants(target.claim) if is_managed(each)]
        return claimants[0] if claimants and claimants[0] != key else None

    async def _with_broker(self, context: Context, look: _Look) -> Outcome:
        memory, target = look.memory, look.target
        cluster = context.store.get(target.cluster)
        url = http_url(cluster) if cluster is not None else ""
        memory.http_url, memory.name = url, target.name
        if not url:
            message = f"BrokerCluster {target.cluster.name} has not published a broker address yet"
            return await self._not_ready(context, memory, look.body, Reason.CLUSTER_NOT_READY, message)
        broker = self._brokers.at(url)
        try:
            now = asyncio.get_running_loop().time()
            listing = await broker.listing(now - FRESH_S)
            return await self._compare(context, look, broker, listing)
        except AdminUnreachable as error:
            memory.unreachable = True
            return await self._not_ready(context, memory, look.body, Reason.BROKER_UNREACHABLE, str(error))
        except AdminRefused as error:
            memory.refused += 1
            outcome = await self._not_ready(context, memory, look.body, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(memory.refused))

    async def _compare(self, context: Context, look: _Look, broker: Broker, listing: Listing) -> Outcome:
        memory, model, target = look.memory, look.model, look.target
        if (missing := _missing_parent(target, listing.state)) is not None:
            outcome = await self._not_ready(context, memory, look.body, *missing)
            return Outcome(outcome.result, PARENT_S)
        found = differences(model, target.name, listing.state)
        if is_paused(look.body):
            told = "; ".join(map(str, found[:_MOST_NAMED])) or "nothing differs"
            verdict = ready(Reason.PAUSED, f"paused by annotation, so nothing is changed: {told}", "Unknown")
            return await self._settle(context, look, listing, [verdict])
        too_many = surplus(model, target.name, listing.state)
        if found:
            partitions = too_many[0] if too_many is not None else None
            await broker.apply(rendered(look.body, target, partitions))
            await self._tell_drift(context, look, found)
            # What is below a parent that was just made can be made now, too.
            for child in context.store.children(look.key):
                context.queue.add(child)
            listing = await broker.listing(0.0)
            left = differences(model, target.name, listing.state)
            if left:
                told = "; ".join(map(str, left[:_MOST_NAMED]))
                return await self._not_ready(context, memory, look.body, Reason.NOT_APPLIED, told)
        memory.refused = 0
        applied = Verdict(POLICIES_APPLIED, "True", Reason.RECONCILED, "the broker has the policies of the resource")
        if too_many is not None:
            return await self._settle(context, look, listing, [_partition_verdict(*too_many), applied])
        return await self._settle(context, look, listing, [ready(Reason.RECONCILED, "", "True"), applied])

    async def _settle(self, context: Context, look: _Look, listing: Listing, verdicts: Sequence[Verdict]) -> Outcome:
        """Report, and remember what the broker said: the next look at it tells whether anything changed."""
        target, state = look.target, listing.state
        topic = state.topics.get(target.name) if target.kind == "Topic" else None
        told = [*verdicts, *([quota_verdict(topic)] if topic is not None else [])]
        figures = listing.figures(target.kind, target.name)
        archive = ArchiveReport()
        if isinstance(look.model, Topic):
            archive = await self._archives.reconcile(context, look.body, look.memory, look.model, target)
            told += [archive.verdict] if archive.verdict is not None else []
        await report(context, look.memory, look.body, told, target.name, figures, archive.fields)
        look.memory.settled = settled(target.kind, target.name, state)
        return Outcome("ready" if verdicts[0].status == "True" else "waiting", archive.again_s or RESYNC_S)

    async def _not_ready(self, context: Context, memory: Memory, body: Body, reason: Reason, message: str) -> Outcome:
        """Report why not. What it waits for brings it back: a parent, a rival's end, a broker that answers."""
        verdicts = [ready(reason, message)]
        if reason in (Reason.REFUSED, Reason.NOT_APPLIED, Reason.INVALID):
            verdicts.append(Verdict(POLICIES_APPLIED, "False", reason, message))
        # Nobody knows of the quota of a broker that does not answer.
        if reason is Reason.BROKER_UNREACHABLE and condition(body.get("status") or {}, QUOTA_EXCEEDED):
            verdicts.append(Verdict(QUOTA_EXCEEDED, "Unknown", reason, message))
        await report(context, memory, body, verdicts)
        return Outcome("waiting", RESYNC_S)

    async def _unmanaged(self, context: Context, memory: Memory, body: Body) -> Outcome:
        self._claim(context, key_of(body), None)
        memory.http_url = ""
        await release(context, body)
        message = "left alone, as the annotation heliograph.dev/managed says"
        await report(context, memory, body, [ready(Reason.UNMANAGED, message, "Unknown")])
        return Outcome("unmanaged")

    async def _tell_drift(self, context: Context, look: _Look, found: Sequence[Difference]) -> None:
        """Name what somebody else changed: it was so before, of this same generation of the resource."""
        status = look.body.get("status") or {}
        before = condition(status, POLICIES_APPLIED)
        same = before.get("observedGeneration") == look.body["metadata"].get("generation")
        if before.get("status") != "True" or not same:
            return
        operator_metrics.DRIFT.labels(look.key.kind).inc(len(found))
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        message = "; ".join(map(str, found[:_MOST_NAMED])) + more
        await context.events.emit(look.body, "DriftRepaired", message, repeat=True)


def settled(kind: str, name: str, state: BrokerState) -> object:
    """Return what a broker says of an object but for its figures; another answer means another look."""
    if kind == "Topic":
        if (topic := state.topics.get(name)) is None:
            return ()
        made = (topic.partitions, topic.missing_partitions, topic.subscriptions, topic.properties, topic.policies)
        return *made, topic.size_exceeded, topic.age_exceeded
    if kind == "Namespace":
        namespace = state.namespaces.get(name)
        return (namespace.bundles, namespace.policies) if namespace is not None else ()
    tenant = state.tenants.get(name)
    return (tenant.admin_roles, tenant.allowed_clusters, tenant.limits) if tenant is not None else ()


def _missing_parent(target: Target, state: BrokerState) -> tuple[Reason, str] | None:
    if target.kind == "Namespace" and target.parent not in state.tenants:
        return Reason.PARENT_NOT_READY, f"the broker has no tenant {target.parent} yet"
    if target.kind == "Topic" and target.parent not in state.namespaces:
        return Reason.PARENT_NOT_READY, f"the broker has no namespace {target.parent} yet"
    return None


def _partition_verdict(there: int, wanted: int) -> Verdict:
    if there == 0:
        message = f"the topic is not partitioned and cannot become so; valid: partitions 0, not {wanted}"
        return Verdict(READY, "False", Reason.PARTITIONING_REFUSED, message)
    message = f"the topic has {there} partitions and cannot have fewer; valid: {there} or more, not {wanted}"
    return Verdict(READY, "False", Reason.SHRINK_REFUSED, message)
