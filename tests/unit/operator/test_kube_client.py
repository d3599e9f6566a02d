"""The client of the API server: what it makes of answers that are not those of a healthy API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from heliograph_operator.kube import client
from heliograph_operator.kube.client import Kube, KubeError, KubeRefused

from .http_server import serve


@pytest.fixture
async def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[web.Response]]:
    """The answers that the API server is going to give, in this order."""
    to_give: list[web.Response] = []

    async def answer(request: web.Request) -> web.Response:
        return to_give.pop(0)

    runner = await serve(answer, tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield to_give
    await runner.cleanup()


async def test_an_answer_that_is_no_object_is_an_error_of_the_request(answers: list[web.Response]) -> None:
    async with Kube() as kube:
        for text in ("<html>a proxy's page</html>", "[]", ""):
            answers.append(web.Response(text=text))
            with pytest.raises(KubeError, match="GET /version: the answer is not an object in JSON"):
                await kube.version()


@pytest.mark.parametrize(
    ("date", "time"),
    [
        ("Sat, 28 Nov 2026 15:07:31 GMT", datetime(2026, 11, 28, 15, 7, 31, tzinfo=UTC)),
        ("yesterday", None),
        ("", None),
    ],
)
async def test_the_time_of_the_api_server_is_that_of_its_last_answer(
    answers: list[web.Response], date: str, time: datetime | None
) -> None:
    async with Kube() as kube:
        assert kube.server_time is None
        answers.append(web.json_response({}, headers={"Date": date}))
        await kube.version()
        assert kube.server_time == time


@pytest.mark.parametrize(("without", "server"), [("", "api.test"), ("127.0.0.1,api.test:80", "")])
async def test_the_proxy_of_the_environment_is_used_unless_the_api_server_is_excepted(
    answers: list[web.Response], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, server: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    address = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, without)
    monkeypatch.setenv("http_proxy", address if server else "http://127.0.0.1:1")
    if server:
        kubeconfig.write_text(kubeconfig.read_text().replace(address, f"http://{server}"))
    answers.append(web.json_response({"gitVersion": "v1.34.4"}))
    async with Kube() as kube:
        assert await kube.version() == "v1.34.4"


async def test_a_netrc_does_not_take_the_place_of_the_kubeconfig(
    answers: list[web.Response], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    answers.append(web.json_response({"gitVersion": "v1.34.4"}))
    async with Kube() as kube:
        assert await kube.version() == "v1.34.4"


async def test_an_overloaded_api_server_does_not_say_for_how_long_the_operator_waits(
    answers: list[web.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float) -> None:
        slept.append(delay)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    async with Kube() as kube:
        for after in ("2", "86400", "soon", "1"):
            answers.append(web.Response(status=429, headers={"Retry-After": after}))
        with pytest.raises(KubeRefused):
            await kube.version()
    assert slept == [2.0, client.OVERLOADED_MAX_S, 1.0]
