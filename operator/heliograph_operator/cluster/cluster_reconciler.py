"""BrokerCluster: what is made in Kubernetes for it is made so and kept so, its broker gets its policies, its status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.manifests.explain import explain
from heliograph_api.resources.model import BrokerCluster
from pydantic import ValidationError

from heliograph_operator import operator_metrics
from heliograph_operator.act.broker_sessions import Brokers, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import FINALIZER
from heliograph_operator.act.object_apply import ObjectRefused, apply_all
from heliograph_operator.act.resource_memory import Memories, Memory
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
from heliograph_operator.objects.conditions import POLICIES_APPLIED, Reason, Verdict, condition, ready
from heliograph_operator.objects.kinds import (
    API_VERSION,
    BROKER_CLUSTER,
    Body,
    is_deleted,
    is_managed,
    is_paused,
    key_of,
)

from .cluster_deletion import end, forget
from .cluster_report import report
from .cluster_volumes import grow

#: Time (s) between two looks while pods come and go: a look is a few reads of the API server.
_BUSY_S: Final = 2.0
#: Time (s) between two attempts at what only a change by somebody makes possible.
_HELD_UP_S: Final = 15.0
#: Time (s) a broker's listing serves all who ask.
FRESH_S: Final = 2.0
_PAUSED: Final = "paused by annotation, so nothing is changed"


class ClusterReconciler:
    """The reconciler of BrokerClusters. What it remembers of one can be lost."""

    def __init__(self, site: Site, brokers: Brokers, memories: Memories) -> None:
        self._site = site
        self._brokers = brokers
        self._memories = memories

    async def reconcile(self, context: Context, body: Body) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        memory = self._memories.of(key_of(body), body)
        if is_deleted(body):
            return await end(context, body)
        if not is_managed(body):
            memory.http_url = ""
            await forget(context, body)
            said = "left alone, as the annotation heliograph.dev/managed says"
            await report(context, body, [ready(Reason.UNMANAGED, said, "Unknown")])
            return Outcome("unmanaged")
        cluster, problem = _read(body)
        if cluster is None:
            await report(context, body, [ready(Reason.INVALID, problem)])
            return Outcome("waiting", context.settings.resync_s)
        held = body if FINALIZER in (body["metadata"].get("finalizers") or ()) else await _hold(context, body)
        return await self._reconcile(context, memory, held, cluster)

    async def _reconcile(self, context: Context, memory: Memory, body: Body, cluster: BrokerCluster) -> Outcome:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        refused: Problem | None = None
        unsupported: Problem | None = None
        if not is_paused(body):
            try:
                unsupported = await self._make_so(context, body, cluster)
            except ObjectRefused as error:
                refused = (error.reason, str(error))
        found = await context.kube.find(STATEFUL_SET, namespace, name)
        pods = pods_of(found, await context.kube.list(POD, namespace, labels=as_selector(selector(name))))
        policies, listing = await self._with_broker(context, memory, body, cluster, pods)
        ready_now = readiness(pods, policies, refused, unsupported)
        moving = progressing(pods)
        if is_paused(body):
            ready_now = ready(Reason.PAUSED, f"{_PAUSED}: {ready_now.message}", "Unknown")
            moving = Verdict(PROGRESSING, "False", Reason.PAUSED, _PAUSED)
        before: Mapping[str, Any] = body.get("status") or {}
        # Whoever waits for the brokers starts to knock when there is an address; there is one once they answered.
        known = listing is not None or (before.get("endpoints") and pods.wanted > 0)
        fields: dict[str, Any] = {
            "replicas": pods.found,
            "readyReplicas": pods.ready,
            "selector": as_selector(selector(name)),
            "version": listing.state.version if listing else (before.get("version") if pods.wanted else None),
            "endpoints": endpoints(body, self._site) if known else None,
        }
        await report(context, body, [ready_now, policies, moving], fields)
        return _outcome(context, ready_now, pods, refused or unsupported)

    async def _make_so(self, context: Context, body: Body, cluster: BrokerCluster) -> Problem | None:
        namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
        found = await context.kube.find(STATEFUL_SET, namespace, name)
        stated, unsupported = await grow(context, body, cluster.spec.storage.size, found)
        changed = await apply_all(context, body, manifests(cluster, body, self._site, storage=stated))
        if changed:
            await context.events.emit(body, "Applied", ", ".join(changed), repeat=True)
        return unsupported

    async def _with_broker(
        self, context: Context, memory: Memory, body: Body, cluster: BrokerCluster, pods: Pods
    ) -> tuple[Verdict, Listing | None]:
        """Give the broker its policies; return the condition of these, and what the broker says, if it answers."""
        memory.unreachable = False
        memory.http_url = endpoints(body, self._site)["http"] if pods.wanted else ""
        if pods.ready == 0:
            message = "no broker is ready" if pods.wanted else "spec.replicas is 0: there is no broker"
            return policies_verdict("Unknown", Reason.CLUSTER_NOT_READY, message), None
        broker = self._brokers.at(memory.http_url)
        if pods.ready > ((body.get("status") or {}).get("readyReplicas") or 0):
            # Its pod says that it is back; whoever found it away need not wait any longer.
            broker.reset()
        now = asyncio.get_running_loop().time()
        try:
            listing = await broker.listing(now - FRESH_S)
            if is_paused(body):
                return policies_verdict("Unknown", Reason.PAUSED, _PAUSED), listing
            wanted = (cluster.spec.broker_defaults.policies(), cluster.spec.limits.policies())
            if (listing.state.defaults, listing.state.limits) != wanted:
                await broker.apply(_policies_manifest(body))
                await _tell_drift(context, body)
                listing = await broker.listing(asyncio.get_running_loop().time())
                if (listing.state.defaults, listing.state.limits) != wanted:
                    message = "the broker took brokerDefaults and limits, and does not have them"
                    return policies_verdict("False", Reason.NOT_APPLIED, message), listing
        except AdminRefused as error:
            return policies_verdict("False", Reason.REFUSED, error.reason), None
        except AdminUnreachable as error:
            memory.unreachable = True
            return policies_verdict("Unknown", Reason.BROKER_UNREACHABLE, str(error)), None
        return policies_verdict("True", Reason.RECONCILED, "the broker has the policies of the resource"), listing


async def _tell_drift(context: Context, body: Body) -> None:
    """Say that somebody else changed the broker: it had this same generation's policies before."""
    known = condition(body.get("status") or {}, POLICIES_APPLIED)
    if known.get("status") == "True" and known.get("observedGeneration") == body["metadata"].get("generation"):
        operator_metrics.DRIFT.labels("BrokerCluster").inc()
        said = "the broker's defaults and limits were not those of the resource; they are again"
        await context.events.emit(body, "DriftRepaired", said, repeat=True)


def _read(body: Body) -> tuple[BrokerCluster | None, str]:
    """Return the resource, or None and what is wrong with it."""
    if problem := name_problem(body["metadata"]["name"]):
        return None, problem
    content = dict(body)
    try:
        return BrokerCluster.model_validate(content), ""
    except ValidationError as error:
        return None, "; ".join(explain(error, BrokerCluster, content))


def _policies_manifest(body: Body) -> dict[str, Any]:
    """Return what concerns the broker: one of an older version knows nothing of a new field for its pods."""
    spec = body.get("spec") or {}
    return {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": body["metadata"]["name"], "namespace": body["metadata"]["namespace"]},
        "spec": {field: spec[field] for field in ("brokerDefaults", "limits") if spec.get(field) is not None},
    }


async def _hold(context: Context, body: Body) -> Body:
    """Put the finalizer there before anything is made."""
    metadata = body["metadata"]
    change = {
        "metadata": {
            "finalizers": [*(metadata.get("finalizers") or ()), FINALIZER],
            # Somebody else's finalizer that came meanwhile is not to be lost.
            "resourceVersion": metadata["resourceVersion"],
        }
    }
    written = await context.kube.patch(BROKER_CLUSTER, metadata["namespace"], metadata["name"], change)
    context.store.put(written)
    return written


def _outcome(context: Context, ready: Verdict, pods: Pods, held_up: Problem | None) -> Outcome:
    if held_up is not None:
        return Outcome("waiting", _HELD_UP_S)
    if ready.status == "True" or ready.reason == ClusterReason.STOPPED:
        return Outcome("ready", context.settings.refresh_s)
    if pods.rolled_out:
        # Only the broker's answer is missing.
        return Outcome("waiting", UNREACHABLE.first_s)
    return Outcome("waiting", _BUSY_S)
