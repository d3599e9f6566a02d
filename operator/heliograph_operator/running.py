"""The operator process: starts its parts in order, and stops them on a signal, a failure or a lost leadership."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import kopf
import structlog

from . import operator_metrics
from .act.broker_sessions import BrokerSessions
from .act.broker_tokens import BrokerTokens
from .act.broker_trust import BrokerTrust
from .act.controller import Context, Controller, Reconciler
from .act.namespace_teardown import release_with_namespace
from .act.owned_watch import OwnedWatch
from .act.resource_memory import ResourceMemories
from .act.watch import Watcher, kopf_settings, register
from .act.work_queue import WorkQueue
from .archive.archive_identity import ArchiveIdentity
from .archive.archive_reconciler import ArchiveReconciler
from .backup.backup_reconciler import BackupReconciler
from .backup.schedule_reconciler import ScheduleReconciler
from .cluster.cluster_certificates import ClusterCertificates
from .cluster.cluster_keys import ClusterKeys
from .cluster.cluster_reconciler import ClusterReconciler
from .connection.connection_reconciler import ConnectionReconciler
from .decide.archive_cron_job import ArchiveSite
from .decide.cluster_objects import admin_urls
from .decide.owned_objects import watched
from .decide.stateful_set import Site
from .health import Health
from .kube.client import Kube, KubeError
from .kube.events import Events
from .kube.leadership import Alone, Leadership
from .kube.lease import LeaseLeadership
from .kube.reachability import Reachability
from .objects.kinds import KINDS, Key, key_of
from .objects.resource_cache import ResourceCache
from .objects.user_roles import UserRoles
from .operator_settings import Settings
from .policies.policy_reconciler import PolicyReconciler
from .policies.refresh import Refresh
from .user.user_reconciler import UserReconciler

log = structlog.get_logger(__name__)

#: Time (s) between two listings of all resources: a watch may miss a deletion.
RELIST_S = 600.0
#: Time (s) until such a listing is repeated that failed.
_LIST_AGAIN_S = 10.0


def reconcilers(
    clusters: ClusterReconciler,
    connections: ConnectionReconciler,
    policies: PolicyReconciler,
    backups: BackupReconciler,
    users: UserReconciler,
) -> Mapping[str, Reconciler]:
    """Return the reconciler of each kind."""
    return {
        "BrokerCluster": clusters.reconcile,
        "BrokerConnection": connections.reconcile,
        "Tenant": policies.reconcile,
        "Namespace": policies.reconcile,
        "Topic": policies.reconcile,
        "Subscription": policies.reconcile,
        "Backup": backups.reconcile,
        "ScheduledBackup": ScheduleReconciler().reconcile,
        "User": users.reconcile,
    }


def leadership(settings: Settings, kube: Kube) -> Leadership:
    """Return what decides whether this operator leads."""
    if not settings.lease:
        return Alone()
    return LeaseLeadership(kube, settings.operator_namespace, settings.lease, settings.identity)


async def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT (returns 0), or until leadership is lost or a part fails (returns 1)."""
    stop = asyncio.Event()
    _stop_at_signals(stop)
    async with Kube() as kube:
        return await Operator(settings, kube, leadership(settings, kube)).run(stop)


class Operator:
    """One run of the operator."""

    def __init__(self, settings: Settings, kube: Kube, leader: Leadership) -> None:
        self._settings = settings
        self._kube = kube
        self._leader = leader
        kube.deposed = leader.deposed
        cache, memories = ResourceCache(), ResourceMemories()
        queue: WorkQueue[Key] = WorkQueue(settings.workers, cache.broker_cluster)
        self._context = Context(settings, kube, cache, memories, queue, Events(kube, settings.identity))
        self._site = Site(
            settings.broker_image, settings.cluster_domain, settings.operator_namespace, fixed_user=settings.fixed_user
        )
        self._tokens = BrokerTokens(lambda body: admin_urls(body, self._site))
        self._trust = BrokerTrust()
        self._roles = UserRoles()
        cache.listeners += [self._tokens.seen, self._roles.seen]
        self._keys = ClusterKeys(self._tokens, trusted=self._trust.trusted)
        self._certificates = ClusterCertificates(self._site, self._trust)
        self._brokers = BrokerSessions(settings.batch_s, leader.deposed, self._tokens.token, self._trust.trusted)
        self._watcher = Watcher(cache, queue)
        self._owned = OwnedWatch(cache, memories, queue)
        self._watcher.on_deleted += [memories.forget, self._owned.forget, self._keys.forget, self._roles.forget]
        self._watcher.on_deleted.append(self._certificates.forget)
        self._reachability = Reachability(kube)
        self._leads = self._watches = False
        #: The port of /healthz, /readyz and /metrics, once they are served.
        self.port = 0
        self._health = Health(cache, self._problem)

    async def run(self, stop: asyncio.Event) -> int:
        """See :func:`run`."""
        self.port = await self._health.start(self._settings.bind, self._settings.port)
        log.info("operator started", port=self.port, namespaces=self._settings.namespaces or "all")
        reachability = asyncio.create_task(self._reachability.run(), name="reachability")
        try:
            if not await _first(stop.wait(), self._leader.wait()):
                return 0
            operator_metrics.LEADER.set(1)
            self._leads = True
            log.info("acquired leadership")
            return await self._serve(stop)
        finally:
            operator_metrics.LEADER.set(0)
            await self._leader.release()
            reachability.cancel()
            await asyncio.gather(reachability, return_exceptions=True)
            await self._health.stop()

    def _problem(self) -> str:
        """Return why this operator is not ready: it does its work, or is able to take over, once it is."""
        if problem := self._reachability.problem:
            return problem
        if self._leads:
            return "" if self._watches else "the resources are not watched yet"
        return self._leader.problem

    async def _serve(self, stop: asyncio.Event) -> int:
        kopf_stop = asyncio.Event()
        # All resources are cached before the first reconcile: else the younger of two rivals could win, or a parent
        # seem to be missing that was only not seen yet. The Lease is renewed meanwhile, however long that takes.
        listing = asyncio.create_task(self._list(), name="listing")
        lost = asyncio.create_task(self._leader.lost(), name="leadership")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        tasks: list[asyncio.Task[None]] = []
        try:
            done, _ = await asyncio.wait([listing, lost, stopped], return_when=asyncio.FIRST_COMPLETED)
            if done == {listing}:
                listing.result()
                tasks = self._start(kopf_stop, stop)
                done, _ = await asyncio.wait([*tasks, lost, stopped], return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                return 0
            for task in done - {listing}:
                if task is lost:
                    log.error("lost leadership", reason=task.result())
                elif error := task.exception():
                    log.error("a task of the operator failed", task=task.get_name(), exc_info=error)
                else:
                    log.error("a task of the operator ended", task=task.get_name())
            return 1
        finally:
            kopf_stop.set()
            everything = [listing, *tasks[1:], lost, stopped]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            for watch in tasks[:1]:
                # Kopf stops by its flag; cancelled, it would leave its session open.
                await asyncio.wait([watch], timeout=10)
                watch.cancel()
            if stop.is_set():
                await release_with_namespace(self._context, self._settings.operator_namespace)
            await self._brokers.close()

    def _start(self, kopf_stop: asyncio.Event, stop: asyncio.Event) -> list[asyncio.Task[None]]:
        """Start what runs as long as this operator leads; the watch is the first."""
        settings = self._settings
        clusters = ClusterReconciler(self._site, self._brokers, self._keys, self._certificates)
        archives = ArchiveReconciler(
            ArchiveSite(settings.archive_image, settings.archive_service_account, fixed_user=settings.fixed_user),
            ArchiveIdentity(self._brokers, self._tokens, self._trust),
        )
        policies = PolicyReconciler(self._brokers, archives, self._roles)
        users = UserReconciler(self._brokers, self._tokens, self._roles, self._trust)
        connections, backups = ConnectionReconciler(self._brokers), BackupReconciler(self._site)
        by_kind = reconcilers(clusters, connections, policies, backups, users)
        return [
            asyncio.create_task(self._watch(kopf_stop, stop), name="watch"),
            asyncio.create_task(Controller(self._context, by_kind).run(), name="workers"),
            asyncio.create_task(Refresh(self._context, self._brokers).run(), name="refresh"),
            asyncio.create_task(self._relist(), name="relist"),
        ]

    async def _watch(self, kopf_stop: asyncio.Event, stop: asyncio.Event) -> None:
        started = asyncio.Event()
        signals = asyncio.create_task(self._started(started, stop))
        # By default kopf takes the name of the user, and in a pod the user has none.
        identity: Any = self._settings.identity
        kinds = watched(archives=self._settings.archives)
        try:
            await kopf.operator(
                registry=register(self._watcher, self._owned, kinds),
                settings=kopf_settings(kinds),
                identity=identity,
                standalone=True,
                clusterwide=not self._settings.namespaces,
                namespaces=self._settings.namespaces,
                ready_flag=started,
                stop_flag=kopf_stop,
            )
        finally:
            signals.cancel()

    async def _started(self, started: asyncio.Event, stop: asyncio.Event) -> None:
        """Wait until kopf has started; handle the signals here again, as it installs handlers of its own."""
        await started.wait()
        self._watches = True
        _stop_at_signals(stop)

    async def _relist(self) -> None:
        # The first one soon: it shows what was deleted between the listing of the start and that of the watch.
        pause_s = _LIST_AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._list()
                pause_s = RELIST_S
            except KubeError as error:
                log.warning("could not list the resources", error=str(error), again_in_s=_LIST_AGAIN_S)
                pause_s = _LIST_AGAIN_S

    async def _list(self) -> None:
        for kind in KINDS.values():
            known = {key: self._context.cache.get(key) for key in self._context.cache.keys(kind.name)}
            found = set()
            for namespace in self._settings.namespaces or ("",):
                for body in await self._kube.list(kind, namespace):
                    found.add(key_of(body))
                    # The watcher ignores versions it knows.
                    self._watcher.seen(body)
            for key, body_before in known.items():
                # A body that changed during the listing is of an object that exists.
                if key not in found and self._context.cache.get(key) is body_before:
                    self._watcher.deleted(key)


def _stop_at_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _first(stop: object, wanted: object) -> bool:
    """Return whether ``wanted`` came before ``stop``."""
    stopping = asyncio.ensure_future(stop)  # type: ignore[call-overload]
    waiting = asyncio.ensure_future(wanted)  # type: ignore[call-overload]
    try:
        await asyncio.wait([stopping, waiting], return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            waiting.result()
            return True
        return False
    finally:
        for task in (stopping, waiting):
            task.cancel()
        await asyncio.gather(stopping, waiting, return_exceptions=True)
