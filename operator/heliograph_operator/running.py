"""The operator as a whole: what is started, in which order, and what ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import kopf
import structlog

from . import operator_metrics
from .act.broker_sessions import Brokers
from .act.controller import Context, Controller, Reconciler
from .act.namespace_teardown import let_go_with_namespace
from .act.resource_memory import Memories
from .act.watch import Watcher, kopf_settings, register
from .act.work_queue import WorkQueue
from .archive.archive_reconciler import Archives
from .cluster.cluster_reconciler import ClusterReconciler
from .decide.archive_cron_job import ArchiveSite
from .decide.stateful_set import Site
from .health import Health
from .kube.client import Kube, KubeError
from .kube.events import Events
from .kube.leadership import Alone, Leadership
from .kube.lease import LeaseLeadership
from .objects.kinds import KINDS, Key, key_of
from .objects.resource_cache import Store
from .operator_settings import Settings
from .policies.policy_reconciler import Policies
from .policies.refresh import Refresh

log = structlog.get_logger(__name__)

#: Time (s) between two comparisons of what is known with what there is: a watch may miss a deletion.
RELIST_S = 600.0


def reconcilers(clusters: ClusterReconciler, policies: Policies) -> Mapping[str, Reconciler]:
    """Return who looks after which kind."""
    return {
        "BrokerCluster": clusters.reconcile,
        "Tenant": policies.reconcile,
        "Namespace": policies.reconcile,
        "Topic": policies.reconcile,
    }


def leadership(settings: Settings, kube: Kube) -> Leadership:
    """Return who decides whether this operator works."""
    if not settings.lease:
        return Alone()
    return LeaseLeadership(kube, settings.operator_namespace, settings.lease, settings.identity)


async def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT (0), or until another operator leads or something fails (1)."""
    stop = asyncio.Event()
    _stop_at_signals(stop)
    async with Kube() as kube:
        return await Operator(settings, kube, leadership(settings, kube)).run(stop)


class Operator:
    """One life of the operator."""

    def __init__(self, settings: Settings, kube: Kube, leader: Leadership) -> None:
        self._settings = settings
        self._kube = kube
        self._leader = leader
        store = Store()
        queue: WorkQueue[Key] = WorkQueue()
        self._context = Context(settings, kube, store, queue, Events(kube, settings.identity))
        self._brokers = Brokers(settings.batch_s)
        self._memories = Memories()
        self._watcher = Watcher(store, queue)
        self._watcher.gone.append(self._memories.forget)
        self._health = Health(store, lambda: True)

    async def run(self, stop: asyncio.Event) -> int:
        """See :func:`run`."""
        port = await self._health.start(self._settings.bind, self._settings.port)
        log.info("the operator is up", port=port, namespaces=self._settings.namespaces or "all")
        try:
            if not await _first(stop.wait(), self._leader.wait()):
                return 0
            operator_metrics.LEADER.set(1)
            log.info("this operator leads")
            return await self._serve(stop)
        finally:
            operator_metrics.LEADER.set(0)
            await self._leader.release()
            await self._health.stop()

    async def _serve(self, stop: asyncio.Event) -> int:
        # All that is there is known before anything is decided: else the younger of two could win, or a parent be
        # missed that is only not seen yet.
        await self._list()
        kopf_stop = asyncio.Event()
        site = Site(self._settings.broker_image, self._settings.cluster_domain)
        clusters = ClusterReconciler(site, self._brokers, self._memories)
        archives = Archives(ArchiveSite(self._settings.archive_image, self._settings.archive_service_account))
        policies = Policies(self._brokers, self._memories, archives)
        tasks = [
            asyncio.create_task(self._watch(kopf_stop, stop), name="watch"),
            asyncio.create_task(Controller(self._context, reconcilers(clusters, policies)).run(), name="workers"),
            asyncio.create_task(Refresh(self._context, self._brokers, self._memories).run(), name="refresh"),
            asyncio.create_task(self._relist(), name="relist"),
        ]
        lost = asyncio.create_task(self._leader.lost(), name="leadership")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([*tasks, lost, stopped], return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                return 0
            for task in done:
                if task is lost:
                    log.error("this operator leads no longer", reason=task.result())
                elif error := task.exception():
                    log.error("a part of the operator failed", part=task.get_name(), exc_info=error)
                else:
                    log.error("a part of the operator ended", part=task.get_name())
            return 1
        finally:
            kopf_stop.set()
            everything = [*tasks[1:], lost, stopped]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            # Kopf ends by itself when told to; cancelled, it would leave its session open.
            await asyncio.wait(tasks[:1], timeout=10)
            tasks[0].cancel()
            if stop.is_set():
                await let_go_with_namespace(self._context, self._settings.operator_namespace)
            await self._brokers.close()

    async def _watch(self, kopf_stop: asyncio.Event, stop: asyncio.Event) -> None:
        started = asyncio.Event()
        signals = asyncio.create_task(_take_signals_back(started, stop))
        # Kopf's own choice would be the name of a user, and in a pod the user has none.
        identity: Any = self._settings.identity
        try:
            await kopf.operator(
                registry=register(self._watcher),
                settings=kopf_settings(),
                identity=identity,
                standalone=True,
                clusterwide=not self._settings.namespaces,
                namespaces=self._settings.namespaces,
                ready_flag=started,
                stop_flag=kopf_stop,
            )
        finally:
            signals.cancel()

    async def _relist(self) -> None:
        await asyncio.sleep(10)
        while True:
            try:
                await self._list()
            except KubeError as error:
                log.warning("the resources could not be listed", error=str(error))
            await asyncio.sleep(RELIST_S)

    async def _list(self) -> None:
        for kind in KINDS.values():
            known = {key: self._context.store.get(key) for key in self._context.store.keys(kind.name)}
            found = set()
            for namespace in self._settings.namespaces or ("",):
                for body in await self._kube.list(kind, namespace):
                    found.add(key_of(body))
                    # What is known in this version already is no news to it.
                    self._watcher.seen(body)
            for key, body_before in known.items():
                # What changed meanwhile is there, listed or not.
                if key not in found and self._context.store.get(key) is body_before:
                    self._watcher.vanished(key)


def _stop_at_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _take_signals_back(started: asyncio.Event, stop: asyncio.Event) -> None:
    """Kopf takes the signals for itself when it starts; its end would look like a failure."""
    await started.wait()
    _stop_at_signals(stop)


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
