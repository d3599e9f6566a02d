"""One container of the operator, which the kubelet starts again when it ends; it may share a Lease with others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph_operator import running
from heliograph_operator.decide.owned_objects import watched
from heliograph_operator.kube.leadership import Alone, Leadership
from heliograph_operator.kube.lease import LeaseLeadership
from heliograph_operator.objects.kinds import KINDS, Key, key_of
from heliograph_operator.operator_settings import Settings

from .api_server import ApiServer, Connection, Object, selected
from .virtual_time import Machine
from .witness import Witness

#: The Lease that all operators share.
LEASE = Key("Lease", "operators", "heliograph-operator")
#: Time (s) after which a container that ended is started again.
_RESTART_S = 2.0


class SimulatedOperator(running.Operator):
    """The operator, with the watches of :class:`.api_server.ApiServer` instead of kopf's."""

    def __init__(self, server: ApiServer, connection: Connection, image: str, leader: Leadership) -> None:
        settings = Settings(workers=2, bind="", port=0, broker_image=image, archives=True)
        super().__init__(settings, connection, leader)
        self._server = server
        self._connection = connection

    async def _watch(self, kopf_stop: asyncio.Event, stop: asyncio.Event) -> None:
        events: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self._server.watches.append(events)
        watching = asyncio.create_task(self._pass_on(events))
        await asyncio.wait([watching, asyncio.create_task(kopf_stop.wait())], return_when=asyncio.FIRST_COMPLETED)
        self._server.watches.remove(events)
        watching.cancel()

    async def _pass_on(self, events: asyncio.Queue[tuple[str, Object]]) -> None:
        selectors = watched(archives=True)
        for each in KINDS.values():
            for body in await self._kube.list(each):
                self._watcher.seen(body)
        for owned_kind, selector in selectors.items():
            for body in await self._kube.list(owned_kind, labels=selector):
                self._owned.seen(owned_kind, body)
        owned = {kind.name: kind for kind in selectors}
        while True:
            type_, body = await events.get()
            if (kind := owned.get(body["kind"])) is not None and not selected(body, selectors[kind]):
                continue
            await asyncio.sleep(self._server.rng.choice((0.0, 0.002, 0.05)))
            await self._connection.reachable()
            if self._server.loses_news:
                self._server.lost_news = True
                continue
            self._connection.note(body)
            if kind is not None:
                self._owned.seen(kind, body, deleted=type_ == "DELETED")
            elif type_ == "DELETED":
                self._watcher.deleted(key_of(body), body["metadata"]["uid"])
            else:
                self._watcher.seen(body)


class OperatorProcess:
    """Use :meth:`start`. ``name`` identifies it in the Lease; without one it is the only operator."""

    def __init__(self, server: ApiServer, witness: Witness, image: Callable[[], str], name: str = "") -> None:
        self.machine = Machine()
        self.lives = 0
        self._server = server
        self._witness = witness
        self._image = image
        self._name = name
        #: The holder in the Lease while this life of it leads.
        self._identity = ""
        self.connection = Connection(server, self._sends)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the container, if it does not run."""
        if self._task is None:
            self.connection = Connection(self._server, self._sends)
            self._stop = asyncio.Event()
            self._task = self.machine.create_task(self._run())

    async def stop(self) -> None:
        """End it as Kubernetes does, by a signal."""
        if self._task is not None:
            self.machine.thaw()
            self._stop.set()
            await self._task
            self._task = None

    async def kill(self) -> None:
        """End it where it is; no request that it has sent has an effect after that."""
        if self._task is not None:
            self.connection.dead = True
            self.machine.thaw()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        """Run the operator as the kubelet does: again and again."""
        while not self._stop.is_set():
            self.lives += 1
            try:
                await SimulatedOperator(self._server, self.connection, self._image(), self._leader()).run(self._stop)
            except Exception as error:
                if not self._server.away and "API server" not in str(error):
                    self._witness.fail("the operator ended", repr(error))
            await asyncio.sleep(_RESTART_S)
            cut = self.connection.cut
            # What the former life has sent may still arrive, but it starts nothing any more.
            self.connection = Connection(self._server, self._sends)
            self.connection.set_cut(cut)

    def _leader(self) -> Leadership:
        if not self._name:
            return Alone()
        now = asyncio.get_running_loop().time
        leader = LeaseLeadership(self.connection, LEASE.namespace, LEASE.name, self._name, now=now)
        self._identity = leader.identity
        return leader

    @property
    def leads(self) -> bool:
        """Whether it holds the Lease."""
        return self._holder() == self._identity != ""

    def _holder(self) -> str:
        lease = self._server.objects.get(LEASE)
        return "" if lease is None else str(lease["spec"]["holderIdentity"])

    def _sends(self) -> None:
        """Refuse the change of an operator whose Lease another one holds by now."""
        if self._name and self._holder() not in ("", self._identity):
            text = f"{self._identity} changes something, and {self._holder()} holds the Lease"
            self._witness.fail("two leaders", text)
