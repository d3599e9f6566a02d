"""Creates and maintains a BrokerCluster's Kubernetes objects, and applies its policies to the broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.broker_sessions import BrokerSessions, Listing
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold
from heliograph_operator.act.object_apply import ObjectRefused, belongs_to, check_owner, remove_all, validate
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.act.status_report import named, report, report_drift
from heliograph_operator.decide.broker_differences import default_differences, observed
from heliograph_operator.decide.broker_manifests import defaults_manifest
from heliograph_operator.decide.certificate_status import CertificateState, tls_report
from heliograph_operator.decide.cluster_objects import (
    CONFIG_MAP,
    POD,
    SERVICE,
    STATEFUL_SET,
    admin_service_name,
    endpoints,
    manifests,
    unwanted,
)
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
from heliograph_operator.decide.cluster_tls import ports_of, wanted_ports
from heliograph_operator.decide.listeners import (
    advertised,
    balancer_addresses,
    hosts,
    listeners,
    pending,
    problem,
    status,
)
from heliograph_operator.decide.restore import may_fetch, restore_fields, restored, restoring
from heliograph_operator.decide.rollout import PendingRollout, as_applied, is_finished, recorded, with_origin
from heliograph_operator.decide.stateful_set import Site, as_selector, name_problem, selector
from heliograph_operator.decide.strategic_merge import PatchError
from heliograph_operator.objects import clock
from heliograph_operator.objects.backoff import UNREACHABLE
from heliograph_operator.objects.conditions import READY, RESTORED, Reason, Verdict, ready
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Body, is_deleted, is_held

from .cluster_certificates import ClusterCertificates
from .cluster_deletion import delete_cluster, orphan_objects
from .cluster_keys import ClusterKeys
from .cluster_listeners import apply_listeners, find_listeners, remove_listeners
from .cluster_rollout import Rollouts
from .cluster_volumes import Volumes, grow

#: Time (s) between two reconciles while pods come and go, in case a watch missed a change.
_BUSY_S: Final = 15.0
#: Time (s) between two reads of a Service that has no address yet: a load balancer takes a minute or so.
_ADDRESS_S: Final = 5.0
#: Time (s) between two reads of a pod that asks a new image.
_PREFLIGHT_S: Final = 2.0
#: Time (s) between two attempts at what only a change by a person makes possible.
_BLOCKED_S: Final = 15.0
_PAUSED: Final = "paused by annotation, nothing is changed"


@dataclass(frozen=True, slots=True)
class _Applied:
    """The state of volumes and certificate, the rollout that waits, and the Services of listeners (None: not read)."""

    volumes: Volumes
    pending: PendingRollout | None = None
    services: Sequence[Body] | None = None
    certificate: CertificateState | None = None


class ClusterReconciler:
    """The reconciler of BrokerClusters."""

    def __init__(
        self, site: Site, brokers: BrokerSessions, keys: ClusterKeys, certificates: ClusterCertificates
    ) -> None:
        self._site = site
        self._brokers = brokers
        self._keys = keys
        self._certificates = certificates
        self._rollouts = Rollouts()

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        if (resource.deleted or resource.suspended) and isinstance(resource.model, BrokerCluster):
            # The objects in its brokers are still reconciled, or deleted.
            await self._certificates.read(context, resource, resource.model)
            await self._keys.read(context, resource, resource.model)
        try:
            if resource.deleted:
                return await delete_cluster(context, resource)
            if not resource.managed:
                resource.memory.http_url = ""
                await orphan_objects(context, resource)
                await report(context, resource, [ready(Reason.UNMANAGED, NOT_RECONCILED, "Unknown")])
                return Outcome("unmanaged")
        except ObjectRefused as error:
            # Brokers that stay need their Secrets.
            await report(context, resource, [ready(error.reason, str(error))])
            return Outcome("waiting", _BLOCKED_S)
        unfit = name_problem(resource.key.name)
        model = resource.model
        if unfit or not isinstance(model, BrokerCluster):
            await report(context, resource, [ready(Reason.INVALID, unfit or resource.memory.problem)])
            return Outcome("waiting", context.settings.resync_s)
        if not is_held(resource.body):
            # The body that is held includes changes that somebody made meanwhile.
            return await self.reconcile(context, resource) if await hold(context, resource) else Outcome("gone")
        outcome = await self._reconcile(context, resource, model)
        return self._certificates.before_check(model, self._keys.before_check(resource.key, outcome))

    async def _reconcile(self, context: Context, resource: Resource, cluster: BrokerCluster) -> Outcome:
        namespace, name = resource.key.namespace, resource.key.name
        refused: Problem | None = None
        applied = _Applied(Volumes())
        resource.memory.observed = None
        try:
            applied = await self._apply(context, resource, cluster)
        except ObjectRefused as error:
            refused = (error.reason, str(error))
        found = await context.kube.find(STATEFUL_SET, namespace, name)
        of_pods = await context.kube.list(POD, namespace, labels=as_selector(selector(name)))
        pods = pods_of(found, of_pods)
        stated = cluster.spec.bootstrap.restore_from
        before_start = restoring(stated, as_applied(found), resource.status) if found is not None else None
        restore = restore_fields(resource.status, of_pods)
        from_backup = restored(stated, before_start, restore, of_pods) if found is not None or restore else None
        services = applied.services
        if services is None and cluster.spec.listeners:
            services = await find_listeners(context, resource)
        listening = listeners(cluster, resource.body, self._site, services or (), found)
        volumes, rollout = applied.volumes, applied.pending
        blocked, missing = volumes.problem or problem(listening), pending(listening)
        urls = endpoints(resource.body, self._site, ports_of(found) or wanted_ports(cluster.spec.tls))
        if (resource.paused or refused) and not await _has_admin_service(context, resource):
            # The admin API is where it was: at the address there may be the broker of another BrokerCluster.
            urls = dict(resource.status.get("endpoints") or {})
        policies, listing = await self._with_broker(context, resource, cluster, pods, urls.get("http", ""))
        if found is not None and is_finished(found):
            self._rollouts.finished(context, resource)
        failed = rollout.failed if rollout else None
        unapplied = volumes.growing or missing or (rollout.unapplied if rollout else None)
        ready_now = readiness(pods, policies, refused, failed or blocked, unapplied)
        if from_backup is not None and from_backup.reason == ClusterReason.RESTORE_FAILED and pods.ready < pods.wanted:
            ready_now = replace(from_backup, type=READY)
        moving = rollout.verdict() if rollout else progressing(pods, volumes.growing)
        if resource.paused:
            ready_now = ready(Reason.PAUSED, f"{_PAUSED}: {ready_now.message}", "Unknown")
            moving = Verdict(PROGRESSING, "False", Reason.PAUSED, _PAUSED)
        before = resource.status
        of_tls = tls_report(cluster.spec.tls, applied.certificate, refused, self._certificates.now())
        # Resources that wait for the broker start to connect when there is an address: so only after it answered once.
        known = listing is not None or (before.get("endpoints") and pods.wanted > 0)
        fields: dict[str, Any] = {
            "replicas": pods.found,
            "readyReplicas": pods.ready,
            "updatedReplicas": pods.updated,
            "selector": as_selector(selector(name)),
            "version": listing.state.version if listing else (before.get("version") if pods.wanted else None),
            "storeFormat": (listing.state.store_format if listing else "") or before.get("storeFormat"),
            "rollout": rollout.status() if rollout else None,
            "endpoints": urls if known else None,
            "addresses": await _addresses(context, resource, cluster) or None,
            "listeners": status(listening, of_pods) or None,
            "restore": restore,
            "tls": of_tls.fields(resource.status),
        }
        verdicts = [ready_now, policies, moving, *([from_backup] if from_backup is not None else [])]
        verdicts += of_tls.verdicts
        without = [*of_tls.without, *([] if from_backup is not None else [RESTORED])]
        await report(context, resource, verdicts, fields, without=without)
        if listing is not None:
            # A later listing that differs requeues the resource.
            resource.memory.observed = observed(BROKER_CLUSTER.name, "", listing.state)
        if volumes.growing is not None and refused is None:
            return Outcome("waiting", _BUSY_S)
        if missing is not None and refused is None and pods.rolled_out:
            return Outcome("waiting", _ADDRESS_S)
        if rollout is not None and rollout.reason is ClusterReason.PREFLIGHT_RUNNING:
            return Outcome("waiting", _PREFLIGHT_S)
        return _before(
            rollout.next_window if rollout else None,
            _outcome(context, ready_now, pods, refused or failed or blocked),
        )

    async def _apply(self, context: Context, resource: Resource, cluster: BrokerCluster) -> _Applied:
        """Apply all objects, or only renew what would end while they are paused. Raises :class:`ObjectRefused`."""
        if resource.paused:
            return await self._renew(context, resource, cluster)
        try:
            applied = await self._apply_objects(context, resource, cluster)
        except ObjectRefused:
            resource.memory.unapplied = True
            with suppress(ObjectRefused):
                await self._keep_programs(context, resource, cluster)
            raise
        resource.memory.unapplied = False
        return applied

    async def _renew(self, context: Context, resource: Resource, cluster: BrokerCluster) -> _Applied:
        """Renew certificates and tokens, neither of which waits for the other one."""
        try:
            certificate = await self._certificates.renew(context, resource, cluster)
        finally:
            await self._keep_programs(context, resource, cluster)
        return _Applied(Volumes(), certificate=certificate)

    async def _keep_programs(self, context: Context, resource: Resource, cluster: BrokerCluster) -> None:
        """Keep the tokens of programs while nothing is applied: brokers that run go on, and tokens would end."""
        if url := (resource.status.get("endpoints") or {}).get("broker"):
            await self._keys.keep_programs(context, resource, cluster, url)

    async def _apply_objects(self, context: Context, resource: Resource, cluster: BrokerCluster) -> _Applied:
        """Apply all objects, except while an earlier StatefulSet still has to go."""
        namespace, name, memory = resource.key.namespace, resource.key.name, resource.memory
        found = await context.kube.find(STATEFUL_SET, namespace, name)
        if found is not None:
            check_owner(resource, STATEFUL_SET, found)
        urls = endpoints(resource.body, self._site, ports_of(found) or wanted_ports(cluster.spec.tls))
        reached_by = await self._hosts(context, resource, cluster, found)
        # A pod starts with its certificate and keys, and what is applied to a broker needs the operator's token.
        # Neither waits for the other one: what clients have of it ends while it is refused.
        refused: ObjectRefused | None = None
        try:
            await self._keys.reconcile(context, resource, cluster, urls["http"])
        except ObjectRefused as error:
            refused = error
        certificate = await self._certificates.reconcile(context, resource, cluster, reached_by)
        if refused is not None:
            raise refused
        volumes = await grow(context, resource, cluster.spec.storage.size, found)
        if memory.recreates_stateful_set and found is not None and not is_deleted(found):
            memory.recreated_from = found
        if memory.recreates_stateful_set or (found is not None and is_deleted(found)):
            found = await context.kube.find(STATEFUL_SET, namespace, name)
            if found is not None and is_deleted(found):
                message = f"StatefulSet {name} is being deleted; the next one takes over its pods"
                waiting = replace(volumes, growing=(ClusterReason.ROLLING_OUT, message))
                return _Applied(waiting, certificate=certificate)
        changed = await apply_listeners(context, resource, cluster)
        before = found or memory.recreated_from or await self._recorded(context, resource)
        last = as_applied(before) if before is not None else None
        services = await find_listeners(context, resource)
        listening = listeners(cluster, resource.body, self._site, services, last)
        given = advertised(cluster, listening, resource.body, self._site)
        before_start = restoring(cluster.spec.bootstrap.restore_from, last, resource.status)
        of_pods = await context.kube.list(POD, namespace, labels=as_selector(selector(name))) if before_start else []
        try:
            wanted = manifests(
                cluster,
                resource.body,
                self._site,
                storage=volumes.stated,
                advertised=given,
                found=last,
                before_start=before_start,
                restores=may_fetch(before_start, of_pods),
            )
        except PatchError as error:
            raise ObjectRefused(Reason.INVALID, str(error)) from error
        # The last manifest is the StatefulSet. If it is refused, the settings of its pods do not change either.
        wanted[-1] = with_origin(wanted[-1], cluster)
        await validate(context, resource, wanted[-1], found)
        existed = False if memory.recreates_stateful_set else None
        applied = await self._rollouts.apply(context, resource, cluster, wanted, before, existed=existed)
        memory.recreates_stateful_set, memory.recreated_from = False, None
        changed += applied.changed
        changed += await remove_all(context, resource, unwanted(cluster, resource.body))
        changed += await remove_listeners(context, resource, cluster, services)
        # Last: brokers do not need them.
        await self._keys.keep_programs(context, resource, cluster, urls["broker"])
        if changed:
            await context.events.emit(resource.body, "Applied", ", ".join(changed), repeat=True)
        return _Applied(volumes, applied.pending, services, certificate)

    async def _hosts(
        self, context: Context, resource: Resource, cluster: BrokerCluster, stateful_set: Body | None
    ) -> list[str]:
        """Return the hosts, beside the Services' own names, by which clients reach the brokers with TLS."""
        if not cluster.spec.tls.enabled:
            return []
        name, last = resource.key.name, as_applied(stateful_set) if stateful_set is not None else None
        services = await find_listeners(context, resource)
        listening = listeners(cluster, resource.body, self._site, services, last)
        of_pods = await context.kube.list(POD, resource.key.namespace, labels=as_selector(selector(name)))
        expected: list[Body] = [{"metadata": {"name": f"{name}-{at}"}} for at in range(max(cluster.spec.replicas, 1))]
        return [*hosts(listening, [*of_pods, *expected]), *await _addresses(context, resource, cluster)]

    async def _recorded(self, context: Context, resource: Resource) -> Body | None:
        config_map = await context.kube.find(CONFIG_MAP, resource.key.namespace, resource.key.name)
        return recorded(config_map) if config_map is not None and belongs_to(config_map, resource.uid) else None

    async def _with_broker(
        self, context: Context, resource: Resource, cluster: BrokerCluster, pods: Pods, http_url: str
    ) -> tuple[Verdict, Listing | None]:
        """Apply the policies to the broker; return their condition, and the broker's listing if it answers."""
        memory = resource.memory
        memory.unreachable = False
        memory.http_url = http_url if pods.wanted else ""
        if pods.ready == 0 or not http_url:
            message = "no broker is ready" if pods.ready == 0 else "there is no Service for the admin API"
            message = message if pods.wanted else "spec.replicas is 0: there is no broker"
            return policies_verdict("Unknown", Reason.CLUSTER_NOT_READY, message), None
        broker = self._brokers.at(memory.http_url)
        if pods.ready > (resource.status.get("readyReplicas") or 0):
            # Its pod is ready again: requests need not wait for the end of the pause.
            broker.reset()
        try:
            listing = await broker.recent_listing()
            if resource.paused:
                return policies_verdict("Unknown", Reason.PAUSED, _PAUSED), listing
            if found := default_differences(cluster, listing.state):
                await broker.apply(defaults_manifest(resource.key, resource.spec))
                await report_drift(context, resource, found)
                listing = await broker.listing(0.0)
                if left := default_differences(cluster, listing.state):
                    message = f"the broker accepted brokerDefaults and limits but does not report them: {named(left)}"
                    return policies_verdict("False", Reason.NOT_APPLIED, message), listing
        except AdminRefused as error:
            return policies_verdict("False", Reason.REFUSED, error.reason), None
        except AdminUnreachable as error:
            memory.unreachable = True
            return policies_verdict("Unknown", Reason.BROKER_UNREACHABLE, str(error)), None
        return policies_verdict("True", Reason.RECONCILED, "the broker has the policies of the resource"), listing


async def _has_admin_service(context: Context, resource: Resource) -> bool:
    found = await context.kube.find(SERVICE, resource.key.namespace, admin_service_name(resource.key.name))
    return found is not None and belongs_to(found, resource.uid)


async def _addresses(context: Context, resource: Resource, cluster: BrokerCluster) -> list[str]:
    """Return the addresses of the load balancer for clients. Its Service is watched, so they need not be polled."""
    if cluster.spec.service_type != "LoadBalancer":
        return []
    found = await context.kube.find(SERVICE, resource.key.namespace, resource.key.name)
    return list(balancer_addresses(found)) if found is not None and belongs_to(found, resource.uid) else []


def _outcome(context: Context, ready: Verdict, pods: Pods, blocked: Problem | None) -> Outcome:
    if blocked is not None:
        return Outcome("waiting", _BLOCKED_S)
    if ready.status == "True" or ready.reason == ClusterReason.STOPPED:
        return Outcome("ready", context.settings.resync_s)
    if pods.rolled_out:
        # Only the broker's answer is missing.
        return Outcome("waiting", UNREACHABLE.first_s)
    return Outcome("waiting", _BUSY_S)


def _before(opens: datetime | None, outcome: Outcome) -> Outcome:
    """Return the outcome, with an earlier reconcile if a maintenance window opens before."""
    if opens is None or outcome.requeue_s is None:
        return outcome
    until_s = max((opens - clock.now()).total_seconds(), 0.0)
    return replace(outcome, requeue_s=min(outcome.requeue_s, until_s))
