"""Leader election with a Lease: the leader renews it, and stops at once when it cannot.

Clocks of machines differ, so an operator does not rely on the times in the Lease: for it, the Lease has expired when
its duration has passed on the operator's own clock since the operator last saw it change. A leader that stalls may
learn late that it leads no more, so before each change it asks :meth:`LeaseLeadership.deposed`.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import Body, Kind

from .client import KubeError, KubeRefused
from .kube_namespaces import namespace_ends

log = structlog.get_logger(__name__)

LEASE: Final = Kind("Lease", "leases", "coordination.k8s.io/v1")


class Leases(Protocol):
    """The methods of :class:`.client.Kube` that are needed, for Leases and Kubernetes namespaces."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object, or ``None`` if there is none."""

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        """Create an object and return it as stored."""

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
        """Replace an object, unless it has changed since it was read, and return it as stored."""


@dataclass(frozen=True, slots=True)
class Times:
    """In seconds. The leader gives up ``renew_within_s`` after its last renewal, well before the Lease expires.

    What it has sent by then has the rest of the duration to arrive.
    """

    duration_s: int = 15
    renew_within_s: float = 10.0
    retry_s: float = 2.0


class Observer:
    """Remembers when it last saw a Lease change."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._record: tuple[Any, ...] | None = None
        self._since = 0.0

    def has_expired(self, lease: Body) -> bool:
        """Whether the Lease has no holder any more."""
        spec: Mapping[str, Any] = lease.get("spec") or {}
        record = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._record:
            self._record, self._since = record, self._now()
        if not spec.get("holderIdentity"):
            return True
        return self._now() - self._since >= float(spec.get("leaseDurationSeconds") or 0)


def held(lease: Body | None, namespace: str, name: str, identity: str, times: Times, now: datetime) -> dict[str, Any]:
    """Return the Lease with ``identity`` as its holder, renewed at ``now``."""
    before: Mapping[str, Any] = (lease or {}).get("spec") or {}
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    ours = before.get("holderIdentity") == identity
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.name,
        "metadata": dict(lease["metadata"]) if lease else {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": times.duration_s,
            "acquireTime": before.get("acquireTime") if ours else stamp,
            "renewTime": stamp,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if ours or not lease else 1),
        },
    }


class LeaseLeadership:
    """A :class:`.leadership.Leadership` by a Lease, whose name all candidates share."""

    def __init__(
        self,
        kube: Leases,
        namespace: str,
        name: str,
        identity: str,
        *,
        times: Times | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        # A restarted container has the same host name, and its former process may still believe that it leads.
        self._identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._times = times or Times()
        self._now = now
        self._observer = Observer(now)
        self._lease: dict[str, Any] | None = None
        #: Until when (s, of this operator's clock) it may lead; infinite before it does.
        self._until = math.inf
        self._problem = "the Lease has not been read yet"

    @property
    def problem(self) -> str:
        """Why the Lease could not be read or taken at the last attempt; empty if somebody holds it."""
        return self._problem

    @property
    def identity(self) -> str:
        """The holder in the Lease when this operator leads."""
        return self._identity

    def deposed(self) -> bool:
        """See :meth:`.leadership.Leadership.deposed`."""
        return self._now() >= self._until

    async def wait(self) -> None:
        """Return when this operator holds the Lease."""
        while True:
            if await self._take():
                return
            await asyncio.sleep(self._times.retry_s)

    async def lost(self) -> str:
        """Renew the Lease until that fails; return why."""
        while True:
            await asyncio.sleep(self._times.retry_s)
            left_s = self._until - self._now()
            try:
                # While the API server does not answer, another operator may take the expired Lease.
                async with asyncio.timeout(max(left_s, 0)):
                    holder = await self._renew()
            except TimeoutError:
                self._lose()
                return f"the Lease could not be renewed within {self._times.renew_within_s:g} s"
            except KubeError as error:
                log.warning("could not renew the Lease", error=str(error))
                continue
            if holder != self._identity:
                self._lose()
                return f"{holder or 'nobody'} holds the Lease"

    async def release(self) -> None:
        """Release the Lease, so that another operator need not wait until it expires."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            async with asyncio.timeout(self._times.retry_s):
                await self._kube.replace(LEASE, {**lease, "spec": spec})
        except (KubeError, TimeoutError) as error:
            log.warning("could not release the Lease; it expires by itself", error=str(error))

    def _lose(self) -> None:
        self._lease, self._until = None, -math.inf

    async def _take(self) -> bool:
        at = self._now()
        try:
            lease = await self._kube.find(LEASE, self._namespace, self._name)
            wanted = held(lease, self._namespace, self._name, self._identity, self._times, clock.now())
            if lease is None:
                self._lease = await self._kube.create(LEASE, wanted)
            elif self._observer.has_expired(lease):
                self._lease = await self._kube.replace(LEASE, wanted)
            else:
                self._problem = ""
                return False
        except KubeError as error:
            if isinstance(error, KubeRefused) and error.status == 409:
                # Another operator was faster.
                self._problem = ""
                return False
            self._problem = f"could not take the Lease: {error}"
            log.warning("could not take the Lease", error=str(error))
            return False
        self._problem = ""
        self._until = at + self._times.renew_within_s
        return True

    async def _renew(self) -> str:
        """Renew the Lease if this operator still holds it; return its holder."""
        at = self._now()
        lease = await self._kube.find(LEASE, self._namespace, self._name)
        if lease is None:
            if not await namespace_ends(self._kube, self._namespace):
                return ""
            # It was deleted with its namespace, in which no other can be created. The leader completes the deletions.
            self._until = at + self._times.renew_within_s
            return self._identity
        holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        if holder != self._identity:
            return holder
        wanted = held(lease, self._namespace, self._name, self._identity, self._times, clock.now())
        self._lease = await self._kube.replace(LEASE, wanted)
        self._until = at + self._times.renew_within_s
        return self._identity
