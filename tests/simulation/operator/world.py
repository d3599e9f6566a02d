"""An operator with its API server and brokers, and everything that can happen to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from heliograph_operator import running
from heliograph_operator.act import broker_sessions
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.kube.lease import Times
from heliograph_operator.objects.backoff import REFUSED
from heliograph_operator.objects.kinds import API_VERSION, Key

from .api_server import ORPHAN, ApiServer, Object
from .broker import ModelBroker, ModelClient
from .operator_process import OperatorProcess
from .virtual_time import machine
from .witness import Witness

NAMESPACE = "team"
#: Another Kubernetes namespace, in which there is no BrokerCluster; names of resources there begin with it.
ELSEWHERE = "apps"
#: Time (s) in which pods start.
_POD_S = 3.0
#: Time (s) that the garbage collector takes, and a volume to grow.
_COLLECTED_S = 7.0
_GROWN_S = 20.0
#: In place of an operator's number.
LEADER = -1


class Operation(NamedTuple):
    """One thing that happens, with its arguments, and the time (s) in which nothing else happens after it."""

    kind: str
    arguments: tuple[Any, ...]
    pause_s: float


class _NoServer:
    """The operator's HTTP port, which nobody asks anything."""

    def __init__(self, *_: object) -> None:
        pass

    async def start(self, *_: object) -> int:
        return 1

    async def stop(self) -> None:
        pass


class World:
    """Use it with ``async with``: one BrokerCluster ``main`` and the operators are there from the beginning.

    One of several operators leads. Operations name an operator by its number, or as ``LEADER``; the first one is 0.
    """

    def __init__(self, seed: int, operators: int = 1) -> None:
        self.rng = random.Random(seed)
        self.server = ApiServer(self.rng)
        self.brokers = {"main": ModelBroker("main")}
        self.witness = Witness(self.server, self.brokers, lambda: [each.connection for each in self.operators])
        self.server.observers += [self.witness, self]
        #: The condition of a volume that should grow and cannot; empty: volumes grow.
        self.resize_error = ""
        #: The operator's default image of brokers, and images whose brokers never become ready.
        self.image = "broker:1"
        self.broken_images: set[str] = set()
        #: Time (s) after which the status of a StatefulSet says that its pods are ready.
        self.status_delay_s = 0.0
        names = [f"operator-{number}" for number in range(operators)] if operators > 1 else [""]
        self.operators = [OperatorProcess(self.server, self.witness, lambda: self.image, name) for name in names]
        self._patches: list[Any] = [
            patch.object(running, "Health", _NoServer),
            patch.object(broker_sessions, "AdminClient", self._client),
        ]

    async def __aenter__(self) -> World:
        for each in self._patches:
            each.start()
        self._create("BrokerCluster", "main", {})
        for each in self.operators:
            each.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.operators:
            await each.kill()
        for each in self._patches:
            each.stop()

    async def do(self, operation: Operation) -> None:
        """Let it happen, if it can, and time pass after it."""
        if self.server.away and operation.kind in _AT_THE_API_SERVER:
            return
        action: Callable[..., Awaitable[None]] = getattr(self, operation.kind)
        # It may not exist any more, or exist already.
        with contextlib.suppress(KubeRefused):
            await action(*operation.arguments)
        await asyncio.sleep(operation.pause_s)

    async def calm(self) -> None:
        """End all troubles, and wait until the operator has nothing more to do."""
        self.server.set_away(False)
        for broker in self.brokers.values():
            broker.away = broker.full = False
        self.server.loses_news = False
        for each in self.operators:
            each.machine.thaw()
            each.connection.set_cut(False)
            each.start()
        if len(self.operators) > 1:
            await asyncio.sleep(Times().duration_s + Times().retry_s)
        if self.server.lost_news:
            # Only a listing shows it.
            await asyncio.sleep(running.RELIST_S + 30)
        # The longest pause between two attempts at what a broker refused.
        await asyncio.sleep(REFUSED.cap_s + 30)

    # -- people ----------------------------------------------------------------------------------------------------

    async def create(self, kind: str, name: str, spec: Object, notes: Object) -> None:
        self._create(kind, name, spec, {f"heliograph.dev/{note}": text for note, text in notes.items()})

    async def edit(self, kind: str, name: str, spec: Object) -> None:
        key = _key(kind, name)
        there = self.server.objects.get(key)
        if there is not None and there["spec"].get("partitions", 0) > spec.get("partitions", 99):
            spec = {**spec, "partitions": there["spec"]["partitions"]}
        if there is not None and not there["spec"].get("partitions", 0):
            spec = {name: value for name, value in spec.items() if name != "partitions"}
        self.server.merge(key, {"spec": spec})

    async def annotate(self, kind: str, name: str, note: str, text: str | None) -> None:
        self.server.merge(_key(kind, name), {"metadata": {"annotations": {f"heliograph.dev/{note}": text}}})

    async def delete(self, kind: str, name: str) -> None:
        self.server.delete(_key(kind, name))

    async def recreate(self, kind: str, name: str, spec: Object) -> None:
        key = _key(kind, name)
        there = self.server.objects.get(key)
        if there is None or there["metadata"].get("finalizers"):
            return
        self.server.delete(key)
        self._create(kind, name, {**there["spec"], **spec})

    async def consent(self, consents: list[Object]) -> None:
        self.server.merge(Key("BrokerCluster", NAMESPACE, "main"), {"spec": {"consents": consents}})

    # -- clients of the broker ---------------------------------------------------------------------------------------

    async def publish(self, name: str, messages: int) -> None:
        broker = self.brokers["main"]
        if broker.away or name.partition("://")[2].rpartition("/")[0] not in broker.namespaces:
            return
        broker.publish(name, messages)

    async def subscribe(self, topic: str, name: str) -> None:
        if not self.brokers["main"].away:
            self.brokers["main"].subscribe(topic, name)

    async def drift(self, name: str, ttl_ms: int) -> None:
        if not self.brokers["main"].away:
            self.brokers["main"].drift(name, ttl_ms)

    async def wait(self) -> None:
        """Let time pass."""

    # -- troubles --------------------------------------------------------------------------------------------------

    async def api_server_away(self, away: bool) -> None:
        self.server.set_away(away)

    async def broker_away(self, away: bool) -> None:
        self.brokers["main"].away = away

    async def broker_full(self, full: bool) -> None:
        self.brokers["main"].full = full

    async def watches_lose_news(self, lose: bool) -> None:
        self.server.loses_news = lose

    def _operator(self, number: int) -> OperatorProcess:
        """Return the operator of a number; that of ``LEADER`` is the one that leads, or the first one if none does."""
        if number == LEADER:
            return next((each for each in self.operators if each.leads), self.operators[0])
        return self.operators[number]

    async def start_operator(self, number: int = 0) -> None:
        self.operators[number].start()

    async def start_all(self) -> None:
        """Start the operators that do not run."""
        for each in self.operators:
            each.start()

    async def stop_operator(self, number: int = 0) -> None:
        """End an operator as Kubernetes does, by a signal."""
        await self._operator(number).stop()

    async def kill_operator(self, number: int = 0) -> None:
        """End an operator where it is; no request that it has sent has an effect after that."""
        await self._operator(number).kill()

    async def freeze_operator(self, number: int, for_s: float) -> None:
        """Let a process do nothing for a while."""
        where = self._operator(number).machine
        where.freeze()
        asyncio.get_running_loop().call_later(for_s, where.thaw)

    async def cut_operator(self, number: int, for_s: float) -> None:
        """Let the API server and one operator not reach each other for a while."""
        process = self._operator(number)
        process.connection.set_cut(True)
        asyncio.get_running_loop().call_later(for_s, lambda: process.connection.set_cut(False))

    async def set_clock(self, number: int, ahead_s: float) -> None:
        """Set the wall clock of an operator's machine."""
        self._operator(number).machine.ahead_s = ahead_s

    def _client(
        self, http_url: str, *, token: Callable[[], str], trusted: Callable[[], str], deposed: Callable[[], bool]
    ) -> ModelClient:
        host = http_url.partition("://")[2].partition(".")[0]

        def find() -> ModelBroker | None:
            """Return the broker behind the Service of that name, if its pod runs; its data outlives the pod."""
            service = self.server.objects.get(Key("Service", NAMESPACE, host))
            if service is None or not service["metadata"].get("ownerReferences"):
                return None
            cluster = service["metadata"]["ownerReferences"][0]["name"]
            runs = Key("Pod", NAMESPACE, f"{cluster}-0") in self.server.objects
            return self.brokers.setdefault(cluster, ModelBroker(cluster)) if runs else None

        of = next(each for each in self.operators if each.machine is machine())
        return ModelClient(find, self.witness, of.connection, self.rng)

    def _create(self, kind: str, name: str, spec: Object, notes: Object | None = None) -> None:
        key = _key(kind, name)
        metadata = {"name": key.name, "namespace": key.namespace, "annotations": notes or {}}
        self.server.create(kind, API_VERSION, {"metadata": metadata, "spec": spec})

    # -- Kubernetes' own controllers ---------------------------------------------------------------------------------

    def changed(self, before: Object | None, now: Object | None) -> None:
        body = now if now is not None else before
        loop = asyncio.get_running_loop()
        if body is None:
            return
        name, finalizers = body["metadata"]["name"], body["metadata"].get("finalizers") or ()
        if body["kind"] == "PersistentVolumeClaim" and now is not None:
            loop.call_later(_GROWN_S, self._grow_volume, name)
        elif body["kind"] == "Topic" and now is None:
            loop.call_later(_COLLECTED_S, self._collect_archive, body["metadata"]["uid"])
        elif body["kind"] == "StatefulSet" and ORPHAN in finalizers:
            if now is not None:
                loop.call_later(_COLLECTED_S, self._collect, name)
        elif body["kind"] == "StatefulSet":
            loop.call_later(_POD_S, self._run_pod, name)

    def _collect(self, name: str) -> None:
        key = Key("StatefulSet", NAMESPACE, name)
        if ORPHAN in (self.server.objects.get(key, {}).get("metadata", {}).get("finalizers") or ()):
            self.server.merge(key, {"metadata": {"finalizers": None}})

    def _collect_archive(self, uid: str) -> None:
        for key, body in list(self.server.objects.items()):
            if key.kind == "CronJob" and body["metadata"]["ownerReferences"][0]["uid"] == uid:
                self.server.delete(key)

    def _grow_volume(self, name: str) -> None:
        key = Key("PersistentVolumeClaim", NAMESPACE, name)
        claim = self.server.objects[key]
        wanted = claim["spec"]["resources"]["requests"]
        if claim["status"]["capacity"] != wanted:
            error = {"type": self.resize_error, "status": "True", "message": "no space"}
            status = {"conditions": [error]} if self.resize_error else {"capacity": wanted, "conditions": None}
            self.server.merge(key, {"status": status}, status=True)

    def _create_claims(self, stateful_set: Object) -> None:
        for template in stateful_set["spec"]["volumeClaimTemplates"]:
            name = f"{template['metadata']['name']}-{stateful_set['metadata']['name']}-0"
            if Key("PersistentVolumeClaim", NAMESPACE, name) not in self.server.objects:
                metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
                status = {"capacity": template["spec"]["resources"]["requests"]}
                claim = {"metadata": metadata, "spec": template["spec"], "status": status}
                self.server.create("PersistentVolumeClaim", "v1", claim)

    def _run_pod(self, name: str) -> None:
        wanted = self.server.objects.get(Key("StatefulSet", NAMESPACE, name))
        key = Key("Pod", NAMESPACE, f"{name}-0")
        if wanted is None or wanted["spec"]["replicas"] == 0:
            if key in self.server.objects:
                self.server.delete(key)
            return
        self._create_claims(wanted)
        generation = wanted["metadata"]["generation"]
        revision = f"r{generation}"
        broken = wanted["spec"]["template"]["spec"]["containers"][0]["image"] in self.broken_images
        status = {
            "observedGeneration": generation,
            "updateRevision": revision,
            "currentRevision": revision,
            "readyReplicas": 0 if broken else 1,
        }
        before = wanted.get("status") or {}
        if self.status_delay_s and before != status:
            asyncio.get_running_loop().call_later(self.status_delay_s, self._tell, name, status)
            status = {**status, "currentRevision": before.get("currentRevision", ""), "readyReplicas": 0}
        self._tell(name, status)
        labels = {**wanted["spec"]["template"]["metadata"]["labels"], "controller-revision-hash": revision}
        if key in self.server.objects and self.server.objects[key]["metadata"]["labels"] != labels:
            self.server.delete(key)
        if key not in self.server.objects:
            conditions = [] if broken else [{"type": "Ready", "status": "True"}]
            ready = {"conditions": conditions, "phase": "Running"}
            metadata = {"name": key.name, "namespace": NAMESPACE, "labels": labels}
            self.server.create("Pod", "v1", {"metadata": metadata, "status": ready})

    def _tell(self, name: str, status: Object) -> None:
        key = Key("StatefulSet", NAMESPACE, name)
        there = self.server.objects.get(key)
        if there is None or there["metadata"]["generation"] != status["observedGeneration"]:
            return
        if (there.get("status") or {}) != status:
            self.server.merge(key, {"status": status}, status=True)


def _key(kind: str, name: str) -> Key:
    namespace, _, own = name.rpartition("/")
    return Key(kind, namespace or NAMESPACE, own)


_AT_THE_API_SERVER = frozenset({"create", "edit", "annotate", "delete", "recreate", "consent"})
