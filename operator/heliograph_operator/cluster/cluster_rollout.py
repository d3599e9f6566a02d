"""Begins changes of pod templates when they may: in their window, one at a time, after a preflight."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused, apply_all, belongs_to, check_owner, refusal_reason
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.cluster_objects import CONFIG_MAP, POD, STATEFUL_SET
from heliograph_operator.decide.cluster_status import ClusterReason, Problem
from heliograph_operator.decide.maintenance_windows import WindowError, is_open, next_opening
from heliograph_operator.decide.preflight import answer_of, is_outdated, preflight_labels, preflight_pod
from heliograph_operator.decide.rollout import (
    PendingRollout,
    held,
    image_of,
    is_serving,
    is_users,
    record,
    rolls_out,
    unfinished,
)
from heliograph_operator.decide.stateful_set import Manifest, as_selector, labels
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, Key, is_deleted


@dataclass(frozen=True, slots=True)
class Applied:
    """The objects that were changed, and the rollout that has to wait."""

    changed: list[str]
    pending: PendingRollout | None = None


class Rollouts:
    """The rollouts of all BrokerClusters of this operator. A change that a person makes does not wait for others."""

    def __init__(self) -> None:
        # From the check of the others to the change of a pod template, no other one changes.
        self._beginning = asyncio.Lock()
        self._waiting: set[Key] = set()

    async def apply(
        self,
        context: Context,
        resource: Resource,
        cluster: BrokerCluster,
        wanted: Sequence[Manifest],
        found: Body | None,
        *,
        existed: bool | None,
    ) -> Applied:
        """Apply the objects of a BrokerCluster, whose StatefulSet is the last of ``wanted`` and exists as ``found``.

        While its rollout has to wait, the StatefulSet keeps its pod template. One that is created again around its pods
        is ``found`` as it was before. Raises :class:`ObjectRefused`.
        """
        stateful_set = wanted[-1]
        _check_windows(cluster)
        if found is None or not rolls_out(stateful_set, found):
            self._waiting.discard(resource.key)
            await _end_preflight(context, resource)
            return Applied(await apply_all(context, resource, _recording(wanted), existed=existed))
        observed = resource.status.get("observedGeneration") == resource.generation
        users = is_users(stateful_set, found, is_observed=observed)
        kept = held(stateful_set, found, readdress=not users)
        # An address that changed is all that is new.
        users = users or (kept is not None and not rolls_out(stateful_set, kept))
        pending = None if users else await self._held_back(context, cluster, stateful_set, found)
        if pending is None:
            pending = await _preflight(context, resource, cluster, stateful_set, found)
        if pending is None:
            async with self._beginning:
                pending = None if users else await self._held_back(context, cluster, stateful_set, found)
                if pending is None:
                    changed = await apply_all(context, resource, _recording(wanted), existed=existed)
        if pending is not None:
            self._waiting.add(resource.key)
            if kept is not None and rolls_out(kept, found):
                resource.memory.rolling_out = True
            # Pods read their settings when they start: those go with the pod template.
            now = [each for each in wanted[:-1] if not (users and each["kind"] == CONFIG_MAP.name)]
            now = [*now, kept] if kept else now
            return Applied(
                await apply_all(context, resource, _recording(now), existed=existed), replace(pending, is_users=users)
            )
        self._waiting.discard(resource.key)
        resource.memory.rolling_out = True
        await _end_preflight(context, resource)
        message = f"rollout of image {image_of(stateful_set)} begins"
        await context.events.emit(resource.body, "RolloutBegins", message, repeat=True)
        return Applied(changed)

    def finished(self, context: Context, resource: Resource) -> None:
        """Let those that wait look again, if a rollout of this BrokerCluster was under way: its brokers are ready."""
        if resource.memory.rolling_out:
            resource.memory.rolling_out = False
            for key in sorted(self._waiting):
                context.queue.add(key)

    async def _held_back(
        self, context: Context, cluster: BrokerCluster, wanted: Manifest, found: Body
    ) -> PendingRollout | None:
        """Return why a rollout that no person asked for has to wait."""
        windows, now, image = cluster.spec.maintenance_windows, clock.now(), image_of(wanted)
        if not is_open(windows, now):
            opens = next_opening(windows, now)
            message = f"a new pod template waits for the maintenance window that opens at {opens:%Y-%m-%d %H:%M} UTC"
            return PendingRollout(ClusterReason.ROLLOUT_WAITING, message, image, opens)
        if not is_serving(found):
            # There is nothing to interrupt, and the new pod template may be what helps.
            return None
        stateful_sets: list[Body] = []
        ours = as_selector({"app.kubernetes.io/managed-by": labels("")["app.kubernetes.io/managed-by"]})
        for namespace in context.settings.namespaces or ("",):
            stateful_sets += await context.kube.list(STATEFUL_SET, namespace, labels=ours)
        if other := unfinished(stateful_sets, found):
            message = f"a new pod template waits for BrokerCluster {other}, whose brokers are not all updated and ready"
            return PendingRollout(ClusterReason.ROLLOUT_WAITING, message, image)
        return None


def _recording(wanted: Sequence[Manifest]) -> list[Manifest]:
    """Return the objects, whose ConfigMap records the template of the StatefulSet among them."""
    of = next((each for each in wanted if each["kind"] == STATEFUL_SET.name), None)
    return [record(each, of) if of and each["kind"] == CONFIG_MAP.name else each for each in wanted]


def _check_windows(cluster: BrokerCluster) -> None:
    """Refuse a time zone that nobody knows at once, and not when an upgrade needs it."""
    try:
        is_open(cluster.spec.maintenance_windows, clock.now())
    except WindowError as error:
        raise ObjectRefused(Reason.INVALID, str(error)) from error


async def _preflight(
    context: Context, resource: Resource, cluster: BrokerCluster, wanted: Manifest, found: Body
) -> PendingRollout | None:
    """Ask a new image whether it reads the brokers' volumes; return why the rollout has to wait."""
    image, store_format = image_of(wanted), str(resource.status.get("storeFormat") or "")
    if not cluster.spec.preflight or not store_format or image == image_of(found):
        return None
    resource.memory.preflight = True
    pod = preflight_pod(resource.body, wanted, store_format)
    there, now = await _preflight_pods(context, resource), clock.now()
    outdated = [each for each in there if is_outdated(each, pod, now)]
    await _delete_pods(context, resource, outdated)
    current = [each for each in there if not is_deleted(each) and each not in outdated]
    if not there:
        try:
            current = [await context.kube.create(POD, pod)]
        except KubeRefused as error:
            if error.status != 409:
                # Like an answer that is no: all but the pod template is applied.
                return PendingRollout(refusal_reason(error), f"Pod {pod['metadata']['name']}: {error}", image)
            if conflict := await _conflict(context, resource, pod):
                return PendingRollout(Reason.CONFLICT, conflict, image)
    answer: Problem | None = (ClusterReason.PREFLIGHT_RUNNING, f"image {image} is checked")
    if current:
        answer = answer_of(current[0], image, store_format, clock.now())
    return PendingRollout(ClusterReason(answer[0]), answer[1], image) if answer is not None else None


async def _conflict(context: Context, resource: Resource, pod: Manifest) -> str:
    """Return which pod has the name of the preflight's; empty if that is of this BrokerCluster or gone again."""
    found = await context.kube.find(POD, resource.key.namespace, pod["metadata"]["name"])
    try:
        if found is not None:
            check_owner(resource, POD, found)
    except ObjectRefused as error:
        return str(error)
    return ""


async def _end_preflight(context: Context, resource: Resource) -> None:
    """Delete the pod of a preflight that nothing waits for; an earlier operator may have left one."""
    if not resource.memory.preflight:
        return
    await _delete_pods(context, resource, await _preflight_pods(context, resource))
    resource.memory.preflight = False


async def _delete_pods(context: Context, resource: Resource, pods: Sequence[Body]) -> None:
    for each in pods:
        if not is_deleted(each):
            await context.kube.delete(POD, resource.key.namespace, each["metadata"]["name"])


async def _preflight_pods(context: Context, resource: Resource) -> list[Body]:
    selected = as_selector(preflight_labels(resource.key.name))
    found = await context.kube.list(POD, resource.key.namespace, labels=selected)
    return [each for each in found if belongs_to(each, resource.uid)]
