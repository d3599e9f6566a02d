"""The Services of a BrokerCluster's listeners: applied, found with the addresses that they have, and removed."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import apply_all, belongs_to, remove_all
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.cluster_objects import SERVICE
from heliograph_operator.decide.listeners import listener_labels, services
from heliograph_operator.decide.stateful_set import as_selector
from heliograph_operator.objects.kinds import Body


async def apply_listeners(context: Context, resource: Resource, cluster: BrokerCluster) -> list[str]:
    """Apply the Services of listeners, before the pods that advertise their addresses; return the changed ones.

    Raises :class:`.object_apply.ObjectRefused`.
    """
    return await apply_all(context, resource, services(cluster, resource.body))


async def find_listeners(context: Context, resource: Resource) -> list[Body]:
    """Return the Services of listeners; one of somebody else that has their labels says nothing about addresses."""
    labels = as_selector(listener_labels(resource.key.name))
    found = await context.kube.list(SERVICE, resource.key.namespace, labels=labels)
    return [each for each in found if belongs_to(each, resource.uid)]


async def remove_listeners(
    context: Context, resource: Resource, cluster: BrokerCluster, found: Sequence[Body]
) -> list[str]:
    """Remove those of the Services ``found`` whose listeners are not in the spec any more; return them.

    Raises :class:`.object_apply.ObjectRefused`.
    """
    wanted = {each["metadata"]["name"] for each in services(cluster, resource.body)}
    there = [each["metadata"]["name"] for each in found]
    return await remove_all(context, resource, [(SERVICE, name) for name in there if name not in wanted])
