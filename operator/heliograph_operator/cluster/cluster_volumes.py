"""Grows the volumes of a cluster's brokers with ``storage.size``, where their StorageClass allows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from heliograph_api.values.sizes import format_size

from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.cluster_objects import STATEFUL_SET, VOLUME_CLAIM
from heliograph_operator.decide.cluster_status import ClusterReason, Problem
from heliograph_operator.decide.stateful_set import VOLUME, as_selector, selector
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, Key, is_deleted

_UNITS: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


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


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity as Kubernetes writes it: 10Gi, 1500M, 2e9. Raises :class:`ValueError`."""
    number = quantity.rstrip("kKMGTPEi")
    unit = quantity[len(number) :]
    try:
        return int(Decimal(number) * _UNITS[unit])
    except (InvalidOperation, KeyError) as error:
        raise ValueError(f"{quantity!r} is not a quantity") from error


def plan_volumes(wanted: int, found: Body | None, claims: list[dict[str, Any]]) -> VolumePlan:
    """Compare the wanted size (bytes) with the StatefulSet's spec and the requests of its volumes' claims."""
    stated = _stated(found)
    asked = {claim["metadata"]["name"]: _asked(claim) for claim in claims}
    largest = max(asked, key=asked.__getitem__, default=None)
    if largest is not None and asked[largest] > wanted:
        return VolumePlan(
            stated=stated or format_size(asked[largest]),
            refused=f"spec.storage.size: volume {largest} has {format_size(asked[largest])}; it cannot shrink",
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
    return bytes_of(str(claim["spec"]["resources"]["requests"]["storage"]))


async def claims_of(context: Context, cluster: Key) -> list[dict[str, Any]]:
    """Return the claims of a cluster's volumes, also of brokers that are gone."""
    labels = as_selector(selector(cluster.name))
    found = await context.kube.list(VOLUME_CLAIM, cluster.namespace, labels=labels)
    return [claim for claim in found if not is_deleted(claim)]


async def grow(
    context: Context, resource: Resource, wanted: int, found: Body | None
) -> tuple[str | None, Problem | None]:
    """Make volumes grow, and the StatefulSet ready to be applied with the new size.

    Returns the size the StatefulSet has to keep in its spec (None: the wanted one), and why the volumes do not have
    the wanted size, if they cannot.
    """
    key = resource.key
    plan = plan_volumes(wanted, found, await claims_of(context, key))
    if plan.refused:
        return plan.stated, (Reason.SHRINK_REFUSED, plan.refused)
    for claim in plan.grow:
        change = {"spec": {"resources": {"requests": {"storage": format_size(wanted)}}}}
        try:
            await context.kube.patch(VOLUME_CLAIM, key.namespace, claim, change)
        except KubeRefused as error:
            if error.status not in (403, 422):
                raise
            message = f"spec.storage.size: volume {claim} cannot grow to {format_size(wanted)}: {error}"
            return _stated(found) or plan.stated, (ClusterReason.STORAGE_GROWTH_UNSUPPORTED, message)
        await context.events.emit(resource.body, "VolumeGrows", f"volume {claim} grows to {format_size(wanted)}")
    if plan.recreate:
        # Orphaned pods keep running, and the next StatefulSet of this name adopts them: no client notices.
        await context.kube.delete(STATEFUL_SET, key.namespace, key.name, propagation="Orphan")
    return plan.stated, None
