"""Defects put back into the operator, each by replacing what keeps it away, to see that the histories find them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from heliograph_operator.act import status_report
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.watch import Watcher
from heliograph_operator.archive import archive_reconciler
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler
from heliograph_operator.objects import consent, resource_cache, targets
from heliograph_operator.objects.kinds import Body, Key, owned
from heliograph_operator.objects.ownership import Claim, OwnershipIndex
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.policies import policy_deletion, policy_reconciler
from heliograph_operator.policies.policy_deletion import PolicyDeletion
from heliograph_operator.policies.policy_reconciler import PolicyReconciler

from tests.simulation.defects.patches import Defect, Patch

_reconcile = PolicyReconciler.reconcile
_proceed = PolicyDeletion.proceed
_report = status_report.report
_cluster = targets._cluster
_refusal = consent.refusal


def _stake_nothing(self: ResourceCache, changed: Key) -> None:
    if self.get(changed) is None:
        self.ownership.put(changed, None)


async def _stake_and_reconcile(self: PolicyReconciler, context: Context, resource: Resource) -> Outcome:
    context.cache.ownership.put(resource.key, context.cache._stake(resource.key))
    return await _reconcile(self, context, resource)


def _age_first(self: OwnershipIndex, key: Key) -> tuple[Any, ...]:
    stake = self._stakes[key]
    return not stake.managed, stake.created, not stake.established, key.namespace, key.name


class _Delegate:
    """Has all attributes of ``_to`` that it does not have itself."""

    def __init__(self, to: object) -> None:
        self._to = to

    def __getattr__(self, name: str) -> Any:
        return getattr(self._to, name)


class _ByReference(_Delegate):
    """An index of owners that knows what is below a resource by the references to its Kubernetes name."""

    def __init__(self, index: OwnershipIndex, children: list[Key]) -> None:
        super().__init__(index)
        self._index = index
        self._children = children

    def below(self, claim: Claim) -> list[Key]:
        return [key for key in self._index.below(claim) if key in self._children]


async def _proceed_by_reference(self: PolicyDeletion, context: Context, resource: Resource) -> Outcome:
    cache: Any = _Delegate(context.cache)
    cache.ownership = _ByReference(context.cache.ownership, context.cache.children(resource.key))
    return await _proceed(self, dataclasses.replace(context, cache=cache), resource)


def _nothing_exists(*_: object) -> bool:
    return False


async def _report_on_the_newest(context: Context, resource: Resource, *arguments: Any, **named: Any) -> None:
    resource.body = context.cache.get(resource.key) or resource.body
    await _report(context, resource, *arguments, **named)


def _cluster_by_spec(bodies: targets.Bodies, body: Body, recorded: Key | None) -> Key | targets.Waiting:
    return _cluster(bodies, body, None)


def _refuses_nothing(*_: object) -> str:
    return ""


def _refuses_new_ones(bodies: targets.Bodies, key: Key, claim: Claim) -> str:
    body = bodies.get(key)
    return "" if body is not None and owned(body)[1] else _refusal(bodies, key, claim)


async def _note_nothing(*_: object) -> None:
    pass


_ASK_FOR_CONSENT: Final = (resource_cache, policy_reconciler, policy_deletion)


async def _delete_no_cron_job(*_: object) -> None:
    pass


def _nothing_refused(*_: object) -> None:
    return None


def _no_subscriptions(*_: object) -> frozenset[str]:
    return frozenset()


_containers = Claim.containers


def _containers_but_topics(self: Claim) -> Iterator[Claim]:
    return (each for each in _containers(self) if each.kind != "Topic")


_deleted = Watcher.deleted


def _deleted_by_watch_only(self: Watcher, key: Key, uid: str = "") -> None:
    if uid:
        _deleted(self, key, uid)


async def _nothing_changed(*_: object) -> None:
    return None


async def _proceed_as_at_first(self: PolicyDeletion, context: Context, resource: Resource) -> Outcome:
    resource.memory.deleted = False
    return await _proceed(self, context, resource)


DEFECTS: Final = {
    "index-when-reconciled": Defect(
        "D1",
        "the index of owners is filled as resources are reconciled, and is empty after a start",
        (
            Patch(ResourceCache, "_restake", _stake_nothing),
            Patch(PolicyReconciler, "reconcile", _stake_and_reconcile),
        ),
    ),
    "older-wins": Defect(
        "D1",
        "an older resource takes the object of an established owner",
        (Patch(OwnershipIndex, "_rank", _age_first),),
    ),
    "children-by-reference": Defect(
        "D2",
        "what is below a Namespace or Tenant is known by references to its Kubernetes name",
        (Patch(PolicyDeletion, "proceed", _proceed_by_reference),),
    ),
    "only-held-children": Defect(
        "D2",
        "resources that nothing was recorded for do not count as what is below a parent",
        (Patch(policy_deletion, "exists", _nothing_exists),),
    ),
    "newest-generation": Defect(
        "D4",
        "the status has the newest generation, and not the one that was reconciled",
        (Patch(status_report, "report", _report_on_the_newest),),
    ),
    "cluster-by-spec": Defect(
        "D5",
        "the BrokerCluster of a resource is found by the specs each time, whatever was recorded",
        (Patch(targets, "_cluster", _cluster_by_spec),),
    ),
    "archive-without-consent": Defect(
        "S3",
        "a Topic gets the CronJob of its archive whatever its BrokerCluster allows",
        (Patch(archive_reconciler, "_refusal", _nothing_refused),),
    ),
    "archive-goes-on": Defect(
        "S3",
        "the CronJob stays when consent or ownership is lost",
        (Patch(ArchiveReconciler, "_delete", _delete_no_cron_job),),
    ),
    "refused-is-own": Defect(
        "-",
        "a resource that could not be applied owns what clients created meanwhile",
        (
            Patch(policy_reconciler, "is_somebody_elses", _nothing_exists),
            Patch(policy_deletion, "was_never_applied", _nothing_exists),
        ),
    ),
    "topic-takes-policies": Defect(
        "-",
        "a Topic takes the policies of its Subscriptions for drift",
        (Patch(policy_reconciler, "other_subscriptions", _no_subscriptions),),
    ),
    "subscriptions-not-below": Defect(
        "-",
        "a Topic that is deleted does not wait for its Subscriptions",
        (Patch(Claim, "containers", _containers_but_topics),),
    ),
    "deletions-by-watch-only": Defect(
        "-",
        "a deletion that the watch lost is not seen in a listing either",
        (Patch(Watcher, "deleted", _deleted_by_watch_only),),
    ),
    "deletion-by-the-watch": Defect(
        "-",
        "an object is deleted by what the watch has shown of its resource",
        (Patch(policy_deletion, "changed_since", _nothing_changed),),
    ),
    "deletion-repeated": Defect(
        "-",
        "a deletion is repeated until its resource is gone, whatever the broker has confirmed",
        (Patch(PolicyDeletion, "proceed", _proceed_as_at_first),),
    ),
    "cluster-of-held-only": Defect(
        "D5",
        "no BrokerCluster is recorded for a resource that is not held",
        (Patch(policy_reconciler, "note_cluster", _note_nothing),),
    ),
    "consent-not-asked": Defect(
        "consent",
        "a resource of any Kubernetes namespace may be in any tenant",
        tuple(Patch(owner, "refusal", _refuses_nothing) for owner in _ASK_FOR_CONSENT),
    ),
    "consent-asked-once": Defect(
        "consent",
        "a consent that is taken back changes nothing for the resources that are there",
        tuple(Patch(owner, "refusal", _refuses_new_ones) for owner in _ASK_FOR_CONSENT),
    ),
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Run with a defect. Raises :class:`AttributeError` if what it replaces is not there any more."""
    with ExitStack() as stack:
        for one in DEFECTS[name].patches:
            stack.enter_context(patch.object(one.owner, one.name, one.broken))
        yield
