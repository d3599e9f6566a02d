"""Notes on the resources above an object that something in it stays: they must not delete it with theirs."""

from __future__ import annotations

from heliograph_api.values.names import SubscriptionName

from heliograph_operator.act.controller import Context
from heliograph_operator.act.finalizers import note_retained, note_retained_subscription
from heliograph_operator.act.resource import Resource
from heliograph_operator.objects.ownership import Claim
from heliograph_operator.objects.targets import recorded_claim


async def protect_parents(context: Context, resource: Resource) -> None:
    """Note it on every resource that stands for an object which that of ``resource`` is in, by the broker's names."""
    ownership = context.cache.ownership
    claim = _claim(context, resource)
    for container in claim.containers() if claim is not None else ():
        for above in ownership.claimants(container):
            if (parent := context.resource(above)) is not None:
                await note_retained(context, parent)
                if claim is not None and container == claim.topic:
                    await note_retained_subscription(context, parent, SubscriptionName.parse(claim.name).local)


def _claim(context: Context, resource: Resource) -> Claim | None:
    """Return the object that a resource stands for, or stood for while it was allowed to."""
    stake = context.cache.ownership.stake(resource.key)
    if stake is not None:
        return stake.claim
    recorded = recorded_claim(resource.body)
    # Annotations may have been written by hand; only the operator writes statuses.
    allowed_once = recorded is not None and resource.status.get("name") == recorded.name
    return recorded if allowed_once else None
