"""Deletes a Tenant, Namespace or Topic: its data as its deletionPolicy says, then the finalizer.

Every deletion ends: one whose broker stays away is finished without it after a time.
"""

from __future__ import annotations

from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import HOLDS_RETAINED, is_held, note_retained, owned, release
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import named, report_policies
from heliograph_operator.archive.archive_deletion import ends_archive
from heliograph_operator.decide.targets import http_url
from heliograph_operator.kube.kube_namespaces import namespace_ends
from heliograph_operator.objects.backoff import REFUSED, UNREACHABLE
from heliograph_operator.objects.conditions import Reason, ready
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Body, Key, annotation, deleted_for_s, is_deleted
from heliograph_operator.objects.resource_cache import Claim, parent_of

log = structlog.get_logger(__name__)

#: Time (s) between two checks of an archive's run that has to end first.
_ARCHIVE_S: Final = 1.0
_MAX_CHILDREN_NAMED: Final = 5


class PolicyDeletion:
    """The part of :class:`.policy_reconciler.PolicyReconciler` for resources that are being deleted."""

    def __init__(self, brokers: BrokerSessions) -> None:
        self._brokers = brokers

    async def proceed(self, context: Context, resource: Resource) -> Outcome:
        """Take the next step. Each call starts at the first, so a restart in between does no harm."""
        cluster_name, name = owned(resource.body)
        if not is_held(resource.body):
            return Outcome("gone")
        if not name:
            return await self._release(context, resource)
        if not resource.managed or resource.paused:
            return await self._retain(context, resource, f"{name} stays in the broker: an annotation says so")
        if children := _children(context, resource.key):
            names = named([f"{key.kind} {key.name}" for key in children], _MAX_CHILDREN_NAMED, ", ")
            return await self._wait(context, resource, Reason.CHILDREN_EXIST, f"waiting for {names} to be deleted")
        policy = resource.spec.get("deletionPolicy")
        if policy == "Retain":
            return await self._retain(context, resource, f"{name} stays in the broker: its deletionPolicy is Retain")
        key = resource.key
        cluster_key = Key(BROKER_CLUSTER.name, key.namespace, cluster_name)
        if heir := _heir(context, key, Claim(cluster_key, key.kind, name)):
            message = f"ownership of {name} passes to {heir.kind} {heir.name}"
            return await self._retain(context, resource, message, protect_parents=False)
        cluster = context.cache.get(cluster_key)
        if cluster is None:
            log.info("nothing to delete", resource=str(key), reason="its BrokerCluster is gone")
            return await self._release(context, resource)
        resource.memory.http_url, resource.memory.name = http_url(cluster), name
        if not resource.memory.http_url:
            message = f"BrokerCluster {cluster_name} has not published a broker address"
            return await self._without_broker(context, resource, cluster, message, deleted_for_s(resource.body))
        broker = self._brokers.at(resource.memory.http_url)
        try:
            return await self._delete(context, resource, broker, name)
        except AdminUnreachable as error:
            unreachable_s = min(broker.unreachable_s, deleted_for_s(resource.body))
            return await self._without_broker(context, resource, cluster, str(error), unreachable_s)
        except AdminRefused as error:
            resource.memory.refused += 1
            outcome = await self._wait(context, resource, Reason.REFUSED, error.reason)
            return Outcome(outcome.result, REFUSED.delay(resource.memory.refused))

    async def _delete(self, context: Context, resource: Resource, broker: BrokerSession, name: str) -> Outcome:
        kind = resource.key.kind
        if kind == "Topic" and await ends_archive(context, resource):
            return Outcome("waiting", _ARCHIVE_S)
        if_empty = resource.spec.get("deletionPolicy") == "DeleteIfEmpty"
        # An object that was retained on purpose must not be deleted with its parent.
        if_empty = if_empty or annotation(resource.body, HOLDS_RETAINED) == "true"
        if not if_empty:
            await broker.delete(kind, name, force=True)
            return await self._release(context, resource)
        if kind == "Topic" and (content := await _content(broker, name)):
            return await self._retain(context, resource, f"{name} stays in the broker: {content}")
        try:
            await broker.delete(kind, name, force=False)
        except AdminRefused as error:
            return await self._retain(context, resource, f"{name} stays in the broker: {error.reason}")
        return await self._release(context, resource)

    async def _without_broker(
        self, context: Context, resource: Resource, cluster: Body, message: str, unreachable_s: float
    ) -> Outcome:
        """Wait for a broker that has not answered for ``unreachable_s``, up to the time the settings allow.

        Not for one that is being deleted itself, with its BrokerCluster or with all of the Kubernetes namespace.
        """
        memory = resource.memory
        if is_deleted(cluster) or await namespace_ends(context.kube, resource.key.namespace):
            log.info("nothing to delete", resource=str(resource.key), reason="its broker is being deleted too")
            return await self._release(context, resource)
        if unreachable_s >= context.settings.deletion_wait_s:
            kept = f"{memory.name} stays in the broker, which cannot be reached: {message}"
            return await self._retain(context, resource, kept)
        memory.unreachable = True
        outcome = await self._wait(context, resource, Reason.BROKER_UNREACHABLE, message)
        # The deletion of a Kubernetes namespace is not watched, so it has to be polled.
        left_s = max(1.0, context.settings.deletion_wait_s - unreachable_s)
        return Outcome(outcome.result, min(UNREACHABLE.cap_s, left_s))

    async def _wait(self, context: Context, resource: Resource, reason: Reason, message: str) -> Outcome:
        await report_policies(context, resource, [ready(reason, message)])
        return Outcome("waiting", UNREACHABLE.cap_s)

    async def _retain(
        self, context: Context, resource: Resource, message: str, *, protect_parents: bool = True
    ) -> Outcome:
        """Release the resource and leave its data; its parents have to know, or they would delete it with theirs."""
        if protect_parents:
            above = parent_of(resource.body)
            while above is not None and (parent := context.resource(above)) is not None:
                await note_retained(context, parent)
                above = parent_of(parent.body)
        await context.events.emit(resource.body, "DataRetained", message)
        return await self._release(context, resource)

    async def _release(self, context: Context, resource: Resource) -> Outcome:
        await release(context, resource)
        return Outcome("gone")


async def _content(broker: BrokerSession, name: str) -> str:
    """Return a text on the data of a topic, empty if there is none."""
    listing = await broker.listing(float("inf"))
    topic = listing.state.topics.get(name)
    if topic is None:
        return ""
    if topic.backlog_messages:
        return f"{topic.backlog_messages} messages are not acknowledged"
    return f"{topic.storage_bytes} bytes are stored" if topic.storage_bytes else ""


def _children(context: Context, key: Key) -> list[Key]:
    """Return the resources below this one that something was created for in the broker."""
    return [child for child in context.cache.children(key) if (body := context.cache.get(child)) and is_held(body)]


def _heir(context: Context, key: Key, claim: Claim) -> Key | None:
    """Return another resource that claims the same object and stays, the oldest of them."""
    for other in context.cache.claimants(claim):
        body = context.cache.get(other)
        if other != key and body is not None and context.cache.is_managed(other) and not is_deleted(body):
            return other
    return None
