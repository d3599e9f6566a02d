"""The operator is ready while the API server answers it, and while it leads and watches or can tell who leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from heliograph_operator.kube import reachability
from heliograph_operator.kube.client import Kube, KubeError
from heliograph_operator.kube.leadership import Alone, Leadership
from heliograph_operator.kube.lease import LeaseLeadership, Times
from heliograph_operator.kube.reachability import Reachability
from heliograph_operator.operator_settings import Settings
from heliograph_operator.running import Operator

from tests.support.polling import DEADLINE_S, eventually_async

from .http_server import serve


class Answers:
    """Stands for the connection: answers when it is ``up``."""

    def __init__(self) -> None:
        self.answered_at: float | None = None
        self.asked = 0
        self.up = True
        self.now = 100.0

    async def version(self) -> str:
        self.asked += 1
        if not self.up:
            raise KubeError("connection refused")
        self.answered_at = self.now
        return "v1"


async def _passes(kube: Answers, watched: Reachability, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``seconds`` pass for ``watched``: its pauses are the only thing that moves the clock."""
    until = kube.now + seconds
    over = asyncio.Event()

    async def sleep(delay: float) -> None:
        kube.now += delay
        if kube.now >= until:
            over.set()
            await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", sleep)
        running = asyncio.create_task(watched.run())
        await asyncio.wait_for(over.wait(), DEADLINE_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_api_server_is_asked_only_if_nothing_else_was(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = Answers()
    watched = Reachability(kube, now=lambda: kube.now)
    assert watched.problem == "the API server has not answered yet"
    await _passes(kube, watched, 60, monkeypatch)
    assert watched.problem == ""
    asked = kube.asked
    assert 10 <= asked <= 13
    kube.answered_at = kube.now + 60
    await _passes(kube, watched, 60, monkeypatch)
    assert kube.asked == asked


async def test_a_silent_api_server_is_a_problem_with_its_error_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube = Answers()
    watched = Reachability(kube, now=lambda: kube.now)
    await _passes(kube, watched, 10, monkeypatch)
    kube.up = False
    await _passes(kube, watched, 10, monkeypatch)
    assert watched.problem == ""
    await _passes(kube, watched, 10, monkeypatch)
    assert watched.problem.endswith(" s: connection refused")
    kube.up = True
    await _passes(kube, watched, 5, monkeypatch)
    assert watched.problem == ""


class Server:
    """An API server over a socket, with no resources and a Lease that somebody holds."""

    def __init__(self, directory: Path) -> None:
        self.status = 200
        self.lists = asyncio.Event()
        self._kubeconfig = directory / "kubeconfig"
        self._runner: web.AppRunner | None = None

    async def start(self) -> Path:
        self._runner = await serve(self._answer, self._kubeconfig)
        return self._kubeconfig

    async def stop(self) -> None:
        # Else the end waits a minute for an answer to a client that is gone.
        self.lists.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        if "/leases/" in request.path:
            spec = {"holderIdentity": "other", "renewTime": "2026-01-02T03:04:05.000000Z", "leaseDurationSeconds": 600}
            return web.json_response({"metadata": {"name": "op", "namespace": "here"}, "spec": spec})
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.34.4"})
        await self.lists.wait()
        return web.json_response({"items": []})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(reachability, "ASK_AFTER_S", 0.05)
    monkeypatch.setattr(reachability, "SILENT_S", 0.5)
    running = Server(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(await running.start()))
    yield running
    await running.stop()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The watches of kopf begin when this is set."""
    begun = asyncio.Event()

    async def watches(*, ready_flag: asyncio.Event, stop_flag: asyncio.Event, **_: Any) -> None:
        await begun.wait()
        ready_flag.set()
        await stop_flag.wait()

    monkeypatch.setattr(kopf, "operator", watches)
    return begun


Readiness = Callable[[], Awaitable[tuple[int, str]]]


async def _with_operator(
    leadership: Callable[[Kube], Leadership], check: Callable[[Readiness], Awaitable[None]]
) -> None:
    settings = Settings(bind="127.0.0.1", port=0)
    stop = asyncio.Event()
    async with Kube() as kube, aiohttp.ClientSession() as session:
        operator = Operator(settings, kube, leadership(kube))
        running = asyncio.create_task(operator.run(stop))
        port = await eventually_async(lambda: operator.port, what="it serves")

        async def readiness() -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                return answer.status, await answer.text()

        try:
            await check(readiness)
        finally:
            stop.set()
            assert await asyncio.wait_for(running, DEADLINE_S) == 0


async def _becomes(readiness: Readiness, status: int, text: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = await readiness()
            if found[0] == status and text in found[1]:
                return
            await asyncio.sleep(0.02)


async def test_a_leader_is_ready_when_it_watches_and_while_the_api_server_answers(
    server: Server, watch: asyncio.Event
) -> None:
    async def check(readiness: Readiness) -> None:
        await _becomes(readiness, 503, "the resources are not watched yet")
        server.lists.set()
        await _becomes(readiness, 503, "the resources are not watched yet")
        watch.set()
        await _becomes(readiness, 200, "ok")
        server.status = 503
        await _becomes(readiness, 503, "the API server has not answered for")
        server.status = 200
        await _becomes(readiness, 200, "ok")
        # One that does not know the operator's credentials is as good as none.
        server.status = 401
        await _becomes(readiness, 503, "the API server has not answered for")

    await _with_operator(lambda kube: Alone(), check)


class Lost(Alone):
    async def lost(self) -> str:
        return "another one holds the Lease"


async def test_who_loses_the_leadership_while_it_lists_the_resources_ends(server: Server, watch: asyncio.Event) -> None:
    async with Kube() as kube:
        running = Operator(Settings(bind="127.0.0.1", port=0), kube, Lost()).run(asyncio.Event())
        # No listing is answered.
        assert await asyncio.wait_for(running, DEADLINE_S) == 1


async def test_an_operator_can_be_told_to_end_while_it_lists_the_resources(server: Server) -> None:
    async def check(readiness: Readiness) -> None:
        await _becomes(readiness, 503, "the resources are not watched yet")

    await _with_operator(lambda kube: Alone(), check)


async def test_one_that_waits_is_ready_while_it_can_tell_who_leads(server: Server) -> None:
    times = Times(duration_s=1, renew_within_s=0.5, retry_s=0.05)

    async def check(readiness: Readiness) -> None:
        await _becomes(readiness, 200, "ok")
        # It answers, but says nothing of the Lease.
        server.status = 403
        await _becomes(readiness, 503, "could not take the Lease: no")
        server.status = 200
        await _becomes(readiness, 200, "ok")

    await _with_operator(lambda kube: LeaseLeadership(kube, "here", "op", "me", times=times), check)


async def test_an_operator_that_reaches_no_api_server_is_not_ready(server: Server) -> None:
    await server.stop()

    async def check(readiness: Readiness) -> None:
        await _becomes(readiness, 503, "the API server has not answered yet: ")

    await _with_operator(lambda kube: LeaseLeadership(kube, "here", "op", "me"), check)
