"""The Services of a BrokerCluster's listeners: applied, removed, and read for the addresses that they have."""

from __future__ import annotations

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import apply_all, belongs_to, remove_all
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.cluster_objects import SERVICE
from heliograph_operator.decide.listeners import Listener, listener_labels, listeners, services
from heliograph_operator.decide.stateful_set import Site, as_selector
from heliograph_operator.objects.kinds import Body


async def apply_listeners(context: Context, resource: Resource, cluster: BrokerCluster) -> list[str]:
    """Apply the Services of listeners, before the pods that advertise their addresses; return the changed ones.

    Raises :class:`.object_apply.ObjectRefused`.
    """
    return await apply_all(context, resource, services(cluster, resource.body))


async def remove_listeners(context: Context, resource: Resource, cluster: BrokerCluster) -> list[str]:
    """Remove the Services of listeners that are not in the spec any more; return them.

    Raises :class:`.object_apply.ObjectRefused`.
    """
    wanted = {each["metadata"]["name"] for each in services(cluster, resource.body)}
    there = [each["metadata"]["name"] for each in await _found(context, resource)]
    return await remove_all(context, resource, [(SERVICE, name) for name in there if name not in wanted])


async def read_listeners(
    context: Context, resource: Resource, cluster: BrokerCluster, site: Site, stateful_set: Body | None
) -> list[Listener]:
    """Return the listeners with the addresses that their Services have now."""
    if not cluster.spec.listeners:
        return []
    return listeners(cluster, resource.body, site, await _found(context, resource), stateful_set)


async def _found(context: Context, resource: Resource) -> list[Body]:
    """Return the Services of listeners; one of somebody else that has their labels says nothing about addresses."""
    labels = as_selector(listener_labels(resource.key.name))
    found = await context.kube.list(SERVICE, resource.key.namespace, labels=labels)
    return [each for each in found if belongs_to(each, resource.uid)]
