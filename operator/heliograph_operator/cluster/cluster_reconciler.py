"""Creates and maintains a BrokerCluster's Kubernetes objects, and applies its policies to the broker."""

from __future__ import annotations

from typing import Any, Final

from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.broker_sessions import BrokerSessions, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold, is_held
from heliograph_operator.act.object_apply import ObjectRefused, apply_all
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import report, report_drift
from heliograph_operator.decide.broker_manifests import defaults_manifest
from heliograph_operator.decide.cluster_objects import POD, STATEFUL_SET, endpoints, manifests
from heliograph_operator.decide.cluster_status import (
    PROGRESSING,
    ClusterReason,
    Pods,
    Problem,
    pods_of,
    policies_verdict,
    progressing,
    readiness,
)
from heliograph_operator.decide.stateful_set import Site, as_selector, name_problem, selector
from heliograph_operator.objects.backoff import UNREACHABLE
from heliograph_operator.objects.conditions import Reason, Verdict, ready

from .cluster_deletion import delete_cluster, orphan_objects
from .cluster_volumes import grow

#: Time (s) between two reconciles while pods come and go: each is a few reads of the API server.
_BUSY_S: Final = 2.0
#: Time (s) between two attempts at what only a change by a person makes possible.
_BLOCKED_S: Final = 15.0
_PAUSED: Final = "paused by annotation, nothing is changed"


class ClusterReconciler:
    """The reconciler of BrokerClusters."""

    def __init__(self, site: Site, brokers: BrokerSessions) -> None:
        self._site = site
        self._brokers = brokers

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        if resource.deleted:
            return await delete_cluster(context, resource)
        if not resource.managed:
            resource.memory.http_url = ""
            await orphan_objects(context, resource)
            message = "not reconciled: annotation heliograph.dev/managed is false"
            await report(context, resource, [ready(Reason.UNMANAGED, message, "Unknown")])
            return Outcome("unmanaged")
        problem = name_problem(resource.key.name)
        model = resource.model
        if problem or not isinstance(model, BrokerCluster):
            await report(context, resource, [ready(Reason.INVALID, problem or resource.memory.problem)])
            return Outcome("waiting", context.settings.resync_s)
        if not is_held(resource.body):
            # The body that is held includes changes that somebody made meanwhile.
            return await self.reconcile(context, resource) if await hold(context, resource) else Outcome("gone")
        return await self._reconcile(context, resource, model)

    async def _reconcile(self, context: Context, resource: Resource, cluster: BrokerCluster) -> Outcome:
        namespace, name = resource.key.namespace, resource.key.name
        refused: Problem | None = None
        unsupported: Problem | None = None
        if not resource.paused:
            try:
                unsupported = await self._apply(context, resource, cluster)
            except ObjectRefused as error:
                refused = (error.reason, str(error))
        found = await context.kube.find(STATEFUL_SET, namespace, name)
        pods = pods_of(found, await context.kube.list(POD, namespace, labels=as_selector(selector(name))))
        policies, listing = await self._with_broker(context, resource, cluster, pods)
        ready_now = readiness(pods, policies, refused, unsupported)
        moving = progressing(pods)
        if resource.paused:
            ready_now = ready(Reason.PAUSED, f"{_PAUSED}: {ready_now.message}", "Unknown")
            moving = Verdict(PROGRESSING, "False", Reason.PAUSED, _PAUSED)
        before = resource.status
        # Resources that wait for the broker start to connect when there is an address: so only after it answered once.
        known = listing is not None or (before.get("endpoints") and pods.wanted > 0)
        fields: dict[str, Any] = {
            "replicas": pods.found,
            "readyReplicas": pods.ready,
            "selector": as_selector(selector(name)),
            "version": listing.state.version if listing else (before.get("version") if pods.wanted else None),
            "endpoints": endpoints(resource.body, self._site) if known else None,
        }
        await report(context, resource, [ready_now, policies, moving], fields)
        return _outcome(context, ready_now, pods, refused or unsupported)

    async def _apply(self, context: Context, resource: Resource, cluster: BrokerCluster) -> Problem | None:
        """Apply all objects; return why the volumes do not have the size wanted, if they cannot."""
        found = await context.kube.find(STATEFUL_SET, resource.key.namespace, resource.key.name)
        stated, unsupported = await grow(context, resource, cluster.spec.storage.size, found)
        changed = await apply_all(context, resource, manifests(cluster, resource.body, self._site, storage=stated))
        if changed:
            await context.events.emit(resource.body, "Applied", ", ".join(changed), repeat=True)
        return unsupported

    async def _with_broker(
        self, context: Context, resource: Resource, cluster: BrokerCluster, pods: Pods
    ) -> tuple[Verdict, Listing | None]:
        """Apply the policies to the broker; return their condition, and the broker's listing if it answers."""
        memory = resource.memory
        memory.unreachable = False
        memory.http_url = endpoints(resource.body, self._site)["http"] if pods.wanted else ""
        if pods.ready == 0:
            message = "no broker is ready" if pods.wanted else "spec.replicas is 0: there is no broker"
            return policies_verdict("Unknown", Reason.CLUSTER_NOT_READY, message), None
        broker = self._brokers.at(memory.http_url)
        if pods.ready > (resource.status.get("readyReplicas") or 0):
            # Its pod is ready again: requests need not wait for the end of the pause.
            broker.reset()
        try:
            listing = await broker.recent_listing()
            if resource.paused:
                return policies_verdict("Unknown", Reason.PAUSED, _PAUSED), listing
            wanted = (cluster.spec.broker_defaults.policies(), cluster.spec.limits.policies())
            if (listing.state.defaults, listing.state.limits) != wanted:
                await broker.apply(defaults_manifest(resource.key, resource.spec))
                await report_drift(context, resource, ["brokerDefaults or limits of the broker differed"])
                listing = await broker.listing(0.0)
                if (listing.state.defaults, listing.state.limits) != wanted:
                    message = "the broker accepted brokerDefaults and limits but does not report them"
                    return policies_verdict("False", Reason.NOT_APPLIED, message), listing
        except AdminRefused as error:
            return policies_verdict("False", Reason.REFUSED, error.reason), None
        except AdminUnreachable as error:
            memory.unreachable = True
            return policies_verdict("Unknown", Reason.BROKER_UNREACHABLE, str(error)), None
        return policies_verdict("True", Reason.RECONCILED, "the broker has the policies of the resource"), listing


def _outcome(context: Context, ready: Verdict, pods: Pods, blocked: Problem | None) -> Outcome:
    if blocked is not None:
        return Outcome("waiting", _BLOCKED_S)
    if ready.status == "True" or ready.reason == ClusterReason.STOPPED:
        return Outcome("ready", context.settings.refresh_s)
    if pods.rolled_out:
        # Only the broker's answer is missing.
        return Outcome("waiting", UNREACHABLE.first_s)
    return Outcome("waiting", _BUSY_S)
