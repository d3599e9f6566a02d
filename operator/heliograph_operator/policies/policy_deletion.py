"""Deletes a Tenant, Namespace, Topic or Subscription: its data as its deletionPolicy says, then the finalizer.

Only the owner of an object deletes it, and only with what no resource that stays stands for.
Every deletion ends or says why it does not: one whose broker stays away ends without it only if the resource says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.values.durations import format_duration
from heliograph_api.values.quoting import quoted

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import HOLDS_RETAINED, changed_since, release
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import named, report_policies
from heliograph_operator.archive.archive_deletion import ends_archive
from heliograph_operator.decide.adoption import was_never_applied
from heliograph_operator.decide.broker_differences import exists, is_empty
from heliograph_operator.decide.resource_stats import stats_of
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.kube.kube_namespaces import namespace_ends
from heliograph_operator.objects.backoff import REFUSED, UNREACHABLE
from heliograph_operator.objects.conditions import Reason, ready
from heliograph_operator.objects.consent import refusal
from heliograph_operator.objects.kinds import (
    BROKER_CLUSTER,
    BROKER_CONNECTION,
    FINALIZER,
    Body,
    Key,
    annotation,
    deleted_for_s,
    full_name,
    is_adopted,
    is_deleted,
    is_held,
    is_managed,
    is_paused,
    owned,
    shown,
)
from heliograph_operator.objects.ownership import Claim
from heliograph_operator.objects.subscriptions import retained_subscriptions, topics_that_name
from heliograph_operator.objects.targets import broker_address, claim_of, is_established, no_address, recorded_claim

from .retained_data import protect_parents

log = structlog.get_logger(__name__)

#: Time (s) until a rival that is being deleted is looked at again.
_RIVALS_S: Final = 1.0
#: Time (s) between two checks of an archive's run that has to end first.
_ARCHIVE_S: Final = 1.0
_MAX_NAMED: Final = 5
#: Statuses with which a broker refuses to delete what has content or clients.
_NOT_EMPTY: Final = (409, 412)


class PolicyDeletion:
    """The part of :class:`.policy_reconciler.PolicyReconciler` for resources that are being deleted."""

    def __init__(self, brokers: BrokerSessions) -> None:
        self._brokers = brokers

    async def proceed(self, context: Context, resource: Resource) -> Outcome:
        """Take the next step. Each call starts at the first, so a restart in between does no harm."""
        if not is_held(resource.body):
            return Outcome("gone")
        if resource.memory.deleted:
            # Clients may have created another object of this name since, which the resource does not own.
            return await self._release(context, resource)
        return await self._decide(context, resource)

    async def _decide(self, context: Context, resource: Resource) -> Outcome:
        key, claim = resource.key, recorded_claim(resource.body)
        if claim is None:
            return await self._unrecorded(context, resource)
        name = claim.name
        if why := _forbidden(context, resource, claim):
            return await self._retain(context, resource, f"{name} stays in the broker: {why}")
        if why := _not_to_delete(context, key, claim):
            return await self._retain(context, resource, why, with_parents=False)
        if rivals := [shown(rival, key.namespace) for rival in _deleted_rivals(context, key)]:
            # It does not own the object, and may not seem to when this one is gone.
            names = named(rivals, _MAX_NAMED, ", ")
            await self._wait(context, resource, Reason.DELETING, f"waiting for {names}, which described {name} too")
            return Outcome("waiting", _RIVALS_S)
        stated = resource.spec.get("deletionPolicy")
        children = [child for child in context.cache.ownership.below(claim) if _is_held(context, child)]
        if children and stated != "Retain":
            return await self._wait_for_children(context, resource, children)
        if kept := _kept(resource, name):
            noted = _policy(resource) == "Retain" or not is_established(resource.body)
            return await self._retain(context, resource, kept, with_parents=noted)
        cluster = context.cache.get(claim.cluster)
        if cluster is None:
            # Brokers that were kept may be taken up by another BrokerCluster of this name.
            why = f"{name} was not deleted in the broker: {shown(claim.cluster, key.namespace)} is gone"
            return await self._retain(context, resource, why)
        address = broker_address(cluster)
        resource.memory.http_url, resource.memory.name = address if self._brokers.has(address) else "", name
        if not resource.memory.http_url:
            missing, unreachable_s = no_address(claim.cluster, cluster, key.namespace), deleted_for_s(resource.body)
            if claim.cluster.kind == BROKER_CONNECTION.name:
                # After its start, the operator has to try first.
                unreachable_s = min(unreachable_s, self._brokers.unconnected_s(address))
            changed = missing.reason is Reason.BROKERS_CHANGED
            reason = missing.reason if changed else Reason.BROKER_UNREACHABLE
            return await self._without_broker(context, resource, cluster, missing.message, unreachable_s, reason)
        broker = self._brokers.at(resource.memory.http_url)
        try:
            return await self._delete(context, resource, broker, claim)
        except AdminUnreachable as error:
            unreachable_s = min(broker.unreachable_s, deleted_for_s(resource.body))
            return await self._without_broker(context, resource, cluster, str(error), unreachable_s)
        except AdminRefused as error:
            resource.memory.refused += 1
            outcome = await self._wait(context, resource, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(resource.memory.refused))

    async def _unrecorded(self, context: Context, resource: Resource) -> Outcome:
        """Release a resource that does not say what was created for it: that stays."""
        claim = claim_of(context.cache, resource.body)
        if claim is None or context.cache.ownership.owner(claim) != resource.key:
            return await self._release(context, resource)
        became = f"names no {resource.key.kind}" if owned(resource.body)[1] else "was removed"
        why = f"annotation heliograph.dev/broker-object, by which it is deleted, {became}"
        return await self._retain(context, resource, f"{claim.name} stays in the broker: {why}")

    async def _delete(self, context: Context, resource: Resource, broker: BrokerSession, claim: Claim) -> Outcome:
        kind, name = claim.kind, claim.name
        if kind == "Topic" and await ends_archive(context, resource):
            return Outcome("waiting", _ARCHIVE_S)
        # An object that was retained on purpose must not be deleted with its parent.
        if_empty = _policy(resource) == "DeleteIfEmpty" or annotation(resource.body, HOLDS_RETAINED) == "true"
        guarded: list[Key] = []
        content = ""
        below = context.cache.ownership.below(claim)
        if if_empty or below:
            listing = await _now(broker, kind, name)
            below = context.cache.ownership.below(claim)
            # Nothing was recorded for these, but what they stand for may exist all the same.
            if there := [child for child in below if await _exists(context, broker, child, listing)]:
                return await self._wait_for_children(context, resource, there)
            # It may also appear before the broker gets the deletion, which it then refuses. It would refuse to delete a
            # topic with connected clients, too.
            alone = kind != "Topic" and broker.lists_everything and is_empty(kind, name, listing.state)
            guarded = below if alone else []
            content = _content(listing.state, kind, name, retained_subscriptions(resource.body)) if if_empty else ""
        await broker.check_store()
        if (changed := await changed_since(context, resource)) is not None:
            return changed
        # From here to the deletion, nothing is awaited in which somebody else could claim the object.
        if not set(context.cache.ownership.below(claim)) <= set(below):
            return await self._delete(context, resource, broker, claim)
        if why := _not_to_delete(context, resource.key, claim):
            return await self._retain(context, resource, why, with_parents=False)
        if content:
            return await self._retain(context, resource, f"{name} stays in the broker: {content}")
        try:
            await broker.delete(kind, name, force=not if_empty and not guarded)
        except AdminRefused as error:
            # Another status says nothing about what is in it.
            if error.status not in _NOT_EMPTY or not (if_empty or guarded):
                raise
            if not if_empty:
                return await self._wait_for_children(context, resource, guarded)
            return await self._retain(context, resource, f"{name} stays in the broker: {error.reason}")
        resource.memory.deleted = True
        return await self._release(context, resource)

    async def _without_broker(
        self,
        context: Context,
        resource: Resource,
        cluster: Body,
        message: str,
        unreachable_s: float,
        reason: Reason = Reason.BROKER_UNREACHABLE,
    ) -> Outcome:
        """Wait for a broker that has not answered for ``unreachable_s``: until it does, unless its spec limits that.

        Not for one that is being deleted itself, with its BrokerCluster or with all of the Kubernetes namespace. That
        of a BrokerConnection is not deleted with anything here.
        """
        memory = resource.memory
        ends = is_deleted(cluster) and not _keeps_running(cluster)
        made_here = cluster["kind"] == BROKER_CLUSTER.name
        if made_here and (ends or await namespace_ends(context.kube, cluster["metadata"]["namespace"])):
            log.info("nothing to delete", resource=str(resource.key), reason="its broker is being deleted too")
            return await self._release(context, resource)
        orphan = resource.spec.get("deletionWhenUnreachable") == "Orphan"
        if orphan and unreachable_s >= context.settings.deletion_wait_s:
            kept = f"{memory.name} stays in the broker, which cannot be reached: {message}"
            return await self._retain(context, resource, kept)
        memory.unreachable = True
        shown = f"{message}; spec.deletionWhenUnreachable is {'Orphan' if orphan else 'Wait'}: {memory.name}"
        if not orphan:
            answers = "its own broker answers again" if reason is Reason.BROKERS_CHANGED else "the broker answers"
            shown += f" is deleted when {answers}; annotation heliograph.dev/managed=false leaves it"
            # The deletion of a Kubernetes namespace is not watched, so it has to be polled.
            return await self._wait(context, resource, reason, shown)
        shown += f" is left after {format_duration(int(context.settings.deletion_wait_s * 1000))} without an answer"
        await self._wait(context, resource, reason, shown)
        left_s = max(1.0, context.settings.deletion_wait_s - unreachable_s)
        return Outcome("waiting", min(UNREACHABLE.cap_s, left_s))

    async def _wait(self, context: Context, resource: Resource, reason: Reason, message: str) -> Outcome:
        await report_policies(context, resource, [ready(reason, message)])
        return Outcome("waiting", UNREACHABLE.cap_s)

    async def _wait_for_children(self, context: Context, resource: Resource, children: list[Key]) -> Outcome:
        message = _children_message(context, children, resource.key.namespace)
        return await self._wait(context, resource, Reason.CHILDREN_EXIST, message)

    async def _retain(
        self, context: Context, resource: Resource, message: str, *, with_parents: bool = True
    ) -> Outcome:
        """Release the resource and leave its data; its parents have to know, or they would delete it with theirs."""
        if with_parents:
            await protect_parents(context, resource)
        await context.events.emit(resource.body, "DataRetained", message)
        return await self._release(context, resource)

    async def _release(self, context: Context, resource: Resource) -> Outcome:
        try:
            await release(context, resource)
        except KubeRefused as error:
            if not resource.memory.deleted:
                raise
            message = f"{resource.memory.name} is deleted in the broker, but finalizer {FINALIZER} stays: {error}"
            return await self._wait(context, resource, Reason.DELETING, message)
        return Outcome("gone")


def _keeps_running(cluster: Body) -> bool:
    """Whether the brokers of a BrokerCluster stay when it is deleted."""
    retains = (cluster.get("spec") or {}).get("deletionPolicy") == "Retain"
    return retains or is_paused(cluster) or not is_managed(cluster)


async def _now(broker: BrokerSession, kind: str, name: str) -> Listing:
    return await broker.listing_of(kind, name, asyncio.get_running_loop().time())


def _content(state: BrokerState, kind: str, name: str, retained: Collection[str]) -> str:
    """Return a text on the data of a topic or subscription, empty if there is none that the broker would not see."""
    stats = stats_of(kind, name, state, {}) if kind == "Subscription" else None
    if stats is not None and stats.messages:
        return f"{stats.messages} messages are not acknowledged"
    topic = state.topics.get(name) if kind == "Topic" else None
    if topic is None:
        return ""
    if kept := [each for each in sorted(retained) if topic.subscription(each) is not None]:
        return f"it has subscriptions that were retained: {', '.join(kept)}"
    if topic.backlog_messages:
        return f"{topic.backlog_messages} messages are not acknowledged"
    return f"{topic.storage_bytes} bytes are stored" if topic.storage_bytes else ""


def _kept(resource: Resource, name: str) -> str:
    """Return why an object is kept whatever is in it, empty if it is not."""
    if not is_established(resource.body):
        note = f"annotation heliograph.dev/broker-object is {quoted(owned(resource.body)[1])}"
        return f"{name} stays in the broker: {note}, which is no full name"
    if _policy(resource) == "Retain":
        stated = resource.spec.get("deletionPolicy")
        why = "its deletionPolicy is Retain" if stated else "it existed before its resource"
        return f"{name} stays in the broker: {why}"
    if not resource.spec.get("deletionPolicy") and was_never_applied(resource.body):
        return f"{name} is left in the broker, if it exists: nothing was applied to it"
    return ""


def _policy(resource: Resource) -> str:
    """Return the deletion policy: an object that was there before is deleted only by a resource that says so."""
    return resource.spec.get("deletionPolicy") or ("Retain" if is_adopted(resource.body) else "Delete")


def _forbidden(context: Context, resource: Resource, claim: Claim) -> str:
    """Return why nothing at all is to be done in the broker; empty if something may."""
    return resource.suspended or refusal(context.cache, resource.key, claim)


def _not_to_delete(context: Context, key: Key, claim: Claim) -> str:
    """Return why a resource must not delete the object: it is another one's, or becomes one's; empty if it may."""
    ownership = context.cache.ownership
    owner = ownership.owner(claim)
    if owner != key:
        belongs = (
            f"it belongs to {shown(owner, key.namespace)}" if owner is not None else "this resource does not own it"
        )
        return f"{claim.name} stays in the broker: {belongs}"
    heir = ownership.heir(key) or next(iter(topics_that_name(context.cache, claim)), None)
    if heir is None:
        return ""
    if (stake := ownership.stake(heir)) is not None and not stake.managed:
        return f"{claim.name} stays in the broker: {shown(heir, key.namespace)}, which is not managed, describes it too"
    return f"ownership of {claim.name} passes to {shown(heir, key.namespace)}"


def _deleted_rivals(context: Context, key: Key) -> list[Key]:
    rivals = context.cache.ownership.rivals(key)
    return [rival for rival in rivals if _is_held(context, rival)]


def _is_held(context: Context, key: Key) -> bool:
    body = context.cache.get(key)
    return body is not None and is_held(body)


async def _exists(context: Context, broker: BrokerSession, key: Key, listing: Listing) -> bool:
    """Whether the broker has the object that a resource stands for, no earlier than at the time of a listing."""
    stake = context.cache.ownership.stake(key)
    if stake is None:
        return False
    kind, name = stake.claim.kind, stake.claim.name
    if not broker.lists_everything:
        listing = await broker.listing_of(kind, name, listing.at)
    return exists(kind, name, listing.state)


def _children_message(context: Context, children: list[Key], namespace: str) -> str:
    """Name what the deletion waits for, and the way out if some of it was not deleted, too."""
    staying, going, to_delete = [], [], []
    for child in children:
        body = context.cache.get(child)
        if body is not None and is_deleted(body):
            going.append(shown(child, namespace))
        elif body is not None:
            staying.append(f"{shown(child, namespace)}{'' if is_managed(body) else ' (not managed)'}")
            to_delete.append(f"{full_name(child.kind)}/{child.name}")
    message = f"waiting for {named([*staying, *going], _MAX_NAMED, ', ')} to be deleted"
    if not staying:
        return message
    return f"{message}; valid: delete {named(to_delete, _MAX_NAMED, ', ')}, or set spec.deletionPolicy to Retain"
