"""Grows the volumes of a cluster's brokers with ``storage.size``, where their StorageClass allows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from heliograph_api.values.sizes import format_size

from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.cluster_objects import STATEFUL_SET, VOLUME_CLAIM
from heliograph_operator.decide.cluster_status import ClusterReason, Problem
from heliograph_operator.decide.quantity import bytes_of
from heliograph_operator.decide.stateful_set import VOLUME, as_selector, selector
from heliograph_operator.decide.volume_growth import growth_of, requested
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, Key, is_deleted


@dataclass(frozen=True, slots=True)
class VolumePlan:
    """The steps to the size that is wanted."""

    #: Names of the claims whose request has to grow.
    grow: list[str] = field(default_factory=list)
    #: The size the StatefulSet has to keep in its spec (it is immutable); None: the wanted one.
    stated: str | None = None
    #: Whether to recreate the StatefulSet around its pods, because its spec has another size.
    recreate: bool = False
    #: Why the wanted size is refused.
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Volumes:
    """The volumes of a cluster, and how far they are from the size that is wanted."""

    #: The size the StatefulSet has to keep in its spec; None: the wanted one.
    stated: str | None = None
    #: Why the volumes do not have the wanted size, if somebody has to help.
    problem: Problem | None = None
    #: Why they do not have it yet.
    growing: Problem | None = None


def plan_volumes(wanted: int, found: Body | None, claims: list[dict[str, Any]]) -> VolumePlan:
    """Compare the wanted size (bytes) with the StatefulSet's spec and the requests of its volumes' claims."""
    stated = _stated(found)
    asked = {claim["metadata"]["name"]: _asked(claim) for claim in claims}
    largest = max(asked, key=asked.__getitem__, default=None)
    if largest is not None and asked[largest] > wanted:
        size = format_size(asked[largest])
        return VolumePlan(
            stated=stated or size,
            refused=f"spec.storage.size: volume {largest} has {size}; it cannot shrink; valid: {size} or more",
        )
    if stated is not None and bytes_of(stated) > wanted and not claims:
        # There is no volume yet, so nothing has to shrink.
        return VolumePlan(recreate=True)
    return VolumePlan(
        grow=sorted(name for name, size in asked.items() if size < wanted),
        stated=stated if stated is not None and bytes_of(stated) == wanted else None,
        recreate=stated is not None and bytes_of(stated) != wanted,
    )


def _stated(found: Body | None) -> str | None:
    templates = ((found or {}).get("spec") or {}).get("volumeClaimTemplates") or []
    for template in templates:
        if template["metadata"]["name"] == VOLUME:
            return str(template["spec"]["resources"]["requests"]["storage"])
    return None


def _asked(claim: Body) -> int:
    return bytes_of(requested(claim))


async def claims_of(context: Context, cluster: Key) -> list[dict[str, Any]]:
    """Return the claims of a cluster's volumes, also of brokers that are gone."""
    labels = as_selector(selector(cluster.name))
    found = await context.kube.list(VOLUME_CLAIM, cluster.namespace, labels=labels)
    return [claim for claim in found if not is_deleted(claim)]


async def grow(context: Context, resource: Resource, wanted: int, found: Body | None) -> Volumes:
    """Make volumes grow, and delete the StatefulSet ``found`` around its pods if its spec has another size."""
    key = resource.key
    claims = {str(claim["metadata"]["name"]): claim for claim in await claims_of(context, key)}
    plan = plan_volumes(wanted, found, list(claims.values()))
    if plan.refused:
        return Volumes(plan.stated, (Reason.SHRINK_REFUSED, plan.refused))
    for claim in plan.grow:
        change = {"spec": {"resources": {"requests": {"storage": format_size(wanted)}}}}
        try:
            claims[claim] = await context.kube.patch(VOLUME_CLAIM, key.namespace, claim, change)
        except KubeRefused as error:
            if error.status not in (403, 422):
                raise
            message = f"spec.storage.size: volume {claim} cannot grow to {format_size(wanted)}: {error}"
            unsupported = (ClusterReason.STORAGE_GROWTH_UNSUPPORTED, message)
            return Volumes(_stated(found) or plan.stated, unsupported)
        await context.events.emit(resource.body, "VolumeGrows", f"volume {claim} grows to {format_size(wanted)}")
    if plan.recreate and found is not None and not is_deleted(found):
        # Orphaned pods keep running, and the next StatefulSet of this name adopts them: no client notices.
        await context.kube.delete(STATEFUL_SET, key.namespace, key.name, propagation="Orphan")
        resource.memory.recreates_stateful_set = True
    growth = growth_of(list(claims.values()))
    if growth is not None and growth[0] is ClusterReason.VOLUME_GROWTH_FAILED:
        return Volumes(plan.stated, growth)
    return Volumes(plan.stated, None, growth)
