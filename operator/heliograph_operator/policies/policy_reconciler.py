"""Reconciles Tenant, Namespace and Topic: finds their broker, applies what differs there, and reports the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import Namespace, Tenant, Topic

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold, is_held, owned, release
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import named, report_drift, report_policies
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler, ArchiveReport
from heliograph_operator.decide.broker_differences import differences, observed, surplus
from heliograph_operator.decide.broker_manifests import policy_manifest
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
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Key
from heliograph_operator.objects.resource_cache import Claim

from .policy_deletion import PolicyDeletion

log = structlog.get_logger(__name__)

#: Time (s) after which a broker is asked again for a parent that has no resource.
PARENT_S: Final = 30.0


class PolicyReconciler:
    """The reconciler of the three kinds."""

    def __init__(self, brokers: BrokerSessions, archives: ArchiveReconciler) -> None:
        self._brokers = brokers
        self._archives = archives
        self._deletion = PolicyDeletion(brokers)

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        key, memory = resource.key, resource.memory
        memory.observed, memory.unreachable = None, False
        cluster, name = owned(resource.body)
        # Objects created for it stay its own to the end, whatever its spec says now.
        own = Claim(Key(BROKER_CLUSTER.name, key.namespace, cluster), key.kind, name) if name else None
        if resource.deleted:
            _claim(context, key, own)
            return await self._deletion.proceed(context, resource)
        if not resource.managed:
            return await self._unmanaged(context, resource)
        if resource.model is None:
            _claim(context, key, own)
            return await self._not_ready(context, resource, Reason.INVALID, memory.problem)
        target = target_of(context.cache, resource.body)
        if isinstance(target, Waiting):
            _claim(context, key, own)
            return await self._not_ready(context, resource, target.reason, target.message)
        _claim(context, key, own or target.claim)
        if own is not None and own != target.claim:
            message = (
                f"it stands for {name} in BrokerCluster {cluster} and cannot become {target.name} in"
                f" {target.cluster.name}; valid: the old name, or delete the resource and create a new one"
            )
            return await self._not_ready(context, resource, Reason.RENAME_REFUSED, message)
        if (winner := _rival(context, key, target)) is not None:
            message = f"the older {winner.kind} {winner.name} already describes {target.name}"
            return await self._not_ready(context, resource, Reason.CONFLICT, message)
        if not is_held(resource.body) and not resource.paused:
            # The body that is held includes changes that somebody made meanwhile.
            return await self.reconcile(context, resource) if await hold(context, resource, target) else Outcome("gone")
        return await self._with_broker(context, resource, target)

    async def _with_broker(self, context: Context, resource: Resource, target: Target) -> Outcome:
        memory = resource.memory
        cluster = context.cache.get(target.cluster)
        url = http_url(cluster) if cluster is not None else ""
        memory.http_url, memory.name = url, target.name
        if not url:
            message = f"BrokerCluster {target.cluster.name} has not published a broker address yet"
            return await self._not_ready(context, resource, Reason.CLUSTER_NOT_READY, message)
        broker = self._brokers.at(url)
        try:
            return await self._compare(context, resource, target, broker, await broker.recent_listing())
        except AdminUnreachable as error:
            memory.unreachable = True
            return await self._not_ready(context, resource, Reason.BROKER_UNREACHABLE, str(error))
        except AdminRefused as error:
            memory.refused += 1
            outcome = await self._not_ready(context, resource, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(memory.refused))

    async def _compare(
        self, context: Context, resource: Resource, target: Target, broker: BrokerSession, listing: Listing
    ) -> Outcome:
        model = resource.model
        assert isinstance(model, Tenant | Namespace | Topic)
        if (missing := _missing_parent(target, listing.state)) is not None:
            outcome = await self._not_ready(context, resource, *missing)
            return Outcome(outcome.result, PARENT_S)
        found = differences(model, target.name, listing.state)
        if resource.paused:
            message = f"paused by annotation, nothing is changed: {named(found) or 'there is no difference'}"
            verdict = ready(Reason.PAUSED, message, "Unknown")
            return await self._reconciled(context, resource, target, listing, [verdict])
        too_many = surplus(model, target.name, listing.state)
        if found:
            partitions = too_many[0] if too_many is not None else None
            await broker.apply(policy_manifest(resource.key, resource.spec, target, partitions))
            await report_drift(context, resource, found)
            # Resources below a parent that was just created no longer have to wait.
            for child in context.cache.children(resource.key):
                context.queue.add(child)
            listing = await broker.listing(0.0)
            if left := differences(model, target.name, listing.state):
                return await self._not_ready(context, resource, Reason.NOT_APPLIED, named(left))
        resource.memory.refused = 0
        applied = Verdict(POLICIES_APPLIED, "True", Reason.RECONCILED, "the broker has the policies of the resource")
        now = _partition_verdict(*too_many) if too_many is not None else ready(Reason.RECONCILED, "", "True")
        return await self._reconciled(context, resource, target, listing, [now, applied])

    async def _reconciled(
        self, context: Context, resource: Resource, target: Target, listing: Listing, verdicts: Sequence[Verdict]
    ) -> Outcome:
        """Report, and remember the broker's state: a later listing that differs requeues the resource."""
        state = listing.state
        topic = state.topics.get(target.name) if target.kind == "Topic" else None
        all_verdicts = [*verdicts, *([quota_verdict(topic)] if topic is not None else [])]
        stats = listing.stats(target.kind, target.name)
        archive = ArchiveReport()
        if isinstance(resource.model, Topic):
            archive = await self._archives.reconcile(context, resource, resource.model.spec.archive, target)
            all_verdicts += [archive.verdict] if archive.verdict is not None else []
        await report_policies(context, resource, all_verdicts, target.name, stats, archive.fields)
        resource.memory.observed = observed(target.kind, target.name, state)
        result = "ready" if verdicts[0].status == "True" else "waiting"
        return Outcome(result, archive.requeue_s or context.settings.resync_s)

    async def _not_ready(self, context: Context, resource: Resource, reason: Reason, message: str) -> Outcome:
        """Report the reason. The awaited event requeues it: a parent, a rival's deletion, a broker that answers."""
        verdicts = [ready(reason, message)]
        if reason in (Reason.REFUSED, Reason.NOT_APPLIED, Reason.INVALID):
            verdicts.append(Verdict(POLICIES_APPLIED, "False", reason, message))
        # The quota of a broker that does not answer is unknown.
        if reason is Reason.BROKER_UNREACHABLE and condition(resource.status, QUOTA_EXCEEDED):
            verdicts.append(Verdict(QUOTA_EXCEEDED, "Unknown", reason, message))
        await report_policies(context, resource, verdicts)
        return Outcome("waiting", context.settings.resync_s)

    async def _unmanaged(self, context: Context, resource: Resource) -> Outcome:
        _claim(context, resource.key, None)
        resource.memory.http_url = ""
        await release(context, resource)
        message = "not reconciled: annotation heliograph.dev/managed is false"
        await report_policies(context, resource, [ready(Reason.UNMANAGED, message, "Unknown")])
        return Outcome("unmanaged")


def _claim(context: Context, key: Key, claim: Claim | None) -> None:
    """Record which object a resource claims, and requeue those that claimed the same as it did before."""
    for other in context.cache.claim(key, claim):
        context.queue.add(other)


def _rival(context: Context, key: Key, target: Target) -> Key | None:
    """Return the resource that owns the claimed object, if it is another one."""
    claimants = [other for other in context.cache.claimants(target.claim) if context.cache.is_managed(other)]
    return claimants[0] if claimants and claimants[0] != key else None


def _missing_parent(target: Target, state: BrokerState) -> tuple[Reason, str] | None:
    if target.kind == "Namespace" and target.parent not in state.tenants:
        return Reason.PARENT_NOT_READY, f"the broker has no tenant {target.parent} yet"
    if target.kind == "Topic" and target.parent not in state.namespaces:
        return Reason.PARENT_NOT_READY, f"the broker has no namespace {target.parent} yet"
    return None


def _partition_verdict(there: int, wanted: int) -> Verdict:
    if there == 0:
        message = f"the topic is not partitioned and cannot become partitioned; valid: partitions 0, not {wanted}"
        return Verdict(READY, "False", Reason.PARTITIONING_REFUSED, message)
    message = f"the topic has {there} partitions and cannot have fewer; valid: {there} or more, not {wanted}"
    return Verdict(READY, "False", Reason.SHRINK_REFUSED, message)
