"""Measures the operator with thousands of Topics or Users: its start, a change, a restart, and what it does at rest."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from heliograph_operator.kube.client import Kube
from heliograph_operator.objects.conditions import POLICIES_APPLIED, READY, condition
from heliograph_operator.objects.kinds import (
    API_VERSION,
    BROKER_CLUSTER,
    KINDS,
    NAMESPACE,
    TENANT,
    TOPIC,
    USER,
    Body,
    Kind,
)

from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

#: Requests to the API server at the same time while the resources are created and removed.
_AT_ONCE = 16
_CHANGES = 9
_KUBE_NAMESPACES = Kind("Namespace", "namespaces", "v1")
_REQUESTS = "heliograph_operator_kubernetes_requests_total"


class Metrics:
    """The metrics of one number of resources."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.start_s = self.restart_s = self.change_s = self.rest_s = 0.0
        self.start_cpu_s = self.start_requests = 0.0
        self.reads = self.writes = self.listings = 0.0
        self.core_share = 0.0
        self.memory_mib = self.start_memory_mib = 0

    def row(self) -> str:
        """Return a row of the table in docs/scaling.md."""
        at_rest = f"{self.reads:g} / {self.writes:g} / {self.listings:g} in {self.rest_s:.0f} s"
        cells = (
            f"{self.count:,}",
            f"{self.start_s:.0f} s",
            f"{self.start_cpu_s / self.count * 1000:.1f} ms",
            f"{self.start_requests / self.count:.2f}",
            f"{self.restart_s:.0f} s",
            f"{self.change_s * 1000:.0f} ms",
            at_rest,
            f"{self.core_share:.1%}",
            f"{self.memory_mib} MiB",
        )
        return f"| {' | '.join(cells)} |"


class Team:
    """One Kubernetes namespace with a BrokerCluster of a broker on this host, and an operator for it.

    ``kind``: Topics, each with a policy, or Users, each with a permission and a service account. The broker is open: it
    keeps rights, and asks nobody for credentials.
    """

    def __init__(self, kube: Kube, cluster: Cluster, directory: Path, kind: Kind) -> None:
        self.kind = kind
        self.namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self._kube = kube
        self.broker = BrokerProcess(directory / "broker")
        arguments = (self.namespace, cluster.environment)
        self.operator = OperatorProcess(directory / "operator.log", *arguments)

    async def prepare(self, count: int) -> None:
        """Create the resources; no operator runs."""
        metadata = {"name": self.namespace}
        await self._kube.create(_KUBE_NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        closed = {"authentication": {"enabled": True, "serviceAccounts": {"enabled": True}}}
        stated = closed if self.kind == USER else {}
        await self._create(BROKER_CLUSTER, "main", stated, {"heliograph.dev/managed": "false"})
        urls = {"http": self.broker.http_url, "broker": self.broker.service_url}
        status = {"status": {"endpoints": urls}}
        await self._kube.patch(BROKER_CLUSTER, self.namespace, "main", status, subresource="status")
        await self._create(TENANT, "shop", {})
        await self._create(NAMESPACE, "payments", {"tenantRef": {"name": "shop"}})
        await _each([lambda number=number: self._one(number) for number in range(count)])  # type: ignore[misc]

    async def _one(self, number: int) -> None:
        spec: Body = {"namespaceRef": {"name": "payments"}, "maxProducers": 7}
        if self.kind == USER:
            proofs = [{"serviceAccount": {"name": f"t{number}"}}]
            spec = {"clusterRef": {"name": "main"}, "authentication": proofs, **_permission(number, 7)}
        await self._create(self.kind, f"t{number}", spec)

    async def until_ready(self, count: int) -> float:
        """Return when every resource is Ready, with the time (s, monotonic) since when."""
        while True:
            since = await self.until_quiet(count)
            found = await self._kube.list(self.kind, self.namespace)
            ready = sum(condition(each.get("status") or {}, READY).get("status") == "True" for each in found)
            if ready == count:
                return since
            print(f"  {ready} of {count} {self.kind.plural} are ready", flush=True)
            await asyncio.sleep(1)

    async def until_quiet(self, count: int) -> float:
        """Return when nothing is due and nothing is being reconciled, with the time (s, monotonic) since when."""
        quiet = 0
        since = 0.0
        while quiet < 3:
            busy = await asyncio.to_thread(self._busy)
            quiet = 0 if busy else quiet + 1
            if quiet == 1:
                since = time.monotonic()
            # A scrape looks at every resource: it is kept rare, or it would be what is measured.
            await asyncio.sleep(max(0.2, count / 5000))
        return since

    def _busy(self) -> bool:
        names = ("heliograph_operator_queue_length", "heliograph_operator_working")
        done = self.operator.metric("heliograph_operator_reconciles_total", kind=self.kind.name)
        return not done or any(self.operator.metric(name) for name in names)

    async def change(self, number: int, limit: int) -> float:
        """Change a resource; return the seconds until its status says that the broker has the change."""
        name, kind = f"t{number}", self.kind
        changed_spec, shown = {"maxProducers": limit}, POLICIES_APPLIED
        if kind == USER:
            changed_spec, shown = _permission(number, limit), READY
        began = time.monotonic()
        changed = await self._kube.patch(kind, self.namespace, name, {"spec": changed_spec})
        generation = changed["metadata"]["generation"]
        while True:
            status = (await self._kube.get(kind, self.namespace, name)).get("status") or {}
            applied = condition(status, shown)
            if applied.get("status") == "True" and applied.get("observedGeneration") == generation:
                return time.monotonic() - began
            await asyncio.sleep(0.01)

    async def remove(self) -> None:
        """Remove all that was created, without an operator."""
        for kind in reversed(KINDS.values()):
            found = await self._kube.list(kind, self.namespace)
            await _each([lambda body=body, kind=kind: self._remove(kind, body) for body in found])  # type: ignore[misc]
        await self._kube.delete(_KUBE_NAMESPACES, "", self.namespace)

    async def _remove(self, kind: Kind, body: Body) -> None:
        name = body["metadata"]["name"]
        await self._kube.patch(kind, self.namespace, name, {"metadata": {"finalizers": None}})
        await self._kube.delete(kind, self.namespace, name)

    async def _create(self, kind: Kind, name: str, spec: Body, notes: Body | None = None) -> None:
        metadata = {"name": name, "namespace": self.namespace, "annotations": notes or {}}
        body = {"apiVersion": API_VERSION, "kind": kind.name, "metadata": metadata, "spec": spec}
        await self._kube.create(kind, body)


def _permission(number: int, version: int) -> dict[str, Any]:
    place = {"namespace": "public/default", "topics": f"t{number}-{version}-*"}
    return {"permissions": [{**place, "actions": ["produce", "consume"]}]}


async def _each(calls: list[Callable[[], Awaitable[None]]]) -> None:
    """Await all calls, a few at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await call()

    await asyncio.gather(*(one(call) for call in calls))


async def measure(count: int, rest_s: float, cluster: Cluster, kind: Kind) -> Metrics:
    """Return the metrics of this number of resources of a kind."""
    found = Metrics(count)
    with tempfile.TemporaryDirectory(prefix="heliograph-operator-") as directory:
        async with Kube() as kube:
            team = Team(kube, cluster, Path(directory), kind)
            with team.broker:
                await team.prepare(count)
                print(f"  {count} {kind.plural} exist", flush=True)
                began = time.monotonic()
                await asyncio.to_thread(team.operator.start)
                try:
                    found.start_s = await team.until_ready(count) - began
                    process = psutil.Process(team.operator.pid)
                    found.start_cpu_s = sum(process.cpu_times()[:2])
                    found.start_requests = team.operator.metric(_REQUESTS)
                    found.start_memory_mib = process.memory_info().rss >> 20
                    changes = [await team.change(number * 7 % count, 8 + number) for number in range(_CHANGES)]
                    found.change_s = statistics.median(changes)
                    await asyncio.to_thread(team.operator.terminate)
                    began = time.monotonic()
                    await asyncio.to_thread(team.operator.start)
                    found.restart_s = await team.until_quiet(count) - began
                    await _at_rest(found, team, rest_s)
                finally:
                    team.operator.close()
                await team.remove()
    return found


async def _at_rest(found: Metrics, team: Team, rest_s: float) -> None:
    # The first refresh after a start writes the statistics of the parents.
    await asyncio.sleep(40)
    process = psutil.Process(team.operator.pid)
    before, used, since = _counts(team.operator), sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(rest_s)
    found.rest_s = time.monotonic() - since
    found.core_share = (sum(process.cpu_times()[:2]) - used) / found.rest_s
    found.reads, found.writes, found.listings = (
        now - then for now, then in zip(_counts(team.operator), before, strict=True)
    )
    found.memory_mib = process.memory_info().rss >> 20


def _counts(operator: OperatorProcess) -> tuple[float, float, float]:
    writes = operator.writes()
    listings = operator.metric("heliograph_operator_broker_requests_total")
    return operator.metric(_REQUESTS) - writes, writes, listings


def main(
    topics: Annotated[list[int] | None, typer.Option(help="Number of Topics; may be repeated.")] = None,
    users: Annotated[list[int] | None, typer.Option(help="Number of Users; may be repeated.")] = None,
    rest: Annotated[float, typer.Option(help="Time (s) at rest that is measured.")] = 60.0,
) -> None:
    """Measure the operator on the Kubernetes that scripts/cluster has brought up, with a broker on this host."""
    cluster = Cluster()
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    for file in sorted(Path("crds").glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    for kind in KINDS.values():
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{kind.plural}.heliograph.dev", "--timeout=60s")
    numbers = {TOPIC: topics or [], USER: users or []} if topics or users else {TOPIC: [1000, 3000, 10000]}
    for kind, counts in numbers.items():
        rows: list[str] = []
        for number in counts:
            found = asyncio.run(measure(number, rest, cluster, kind))
            rows.append(found.row())
            print(rows[-1], f"{found.start_memory_mib} MiB after the start", flush=True)
        if rows:
            columns = "ready after | CPU each | requests each | restart | one change | at rest | core | memory"
            print(f"\n| {kind.name}s | {columns} |")
            print("|---|---|---|---|---|---|---|---|---|")
            print("\n".join(rows))


if __name__ == "__main__":
    typer.run(main)
