"""A request that the HTTP client sends again, because the server dropped it, is not sent by a deposed operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from heliograph_api.admin import admin_client
from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_operator.act.broker_sessions import BrokerSession
from heliograph_operator.act.pulsar_session import PulsarSession
from heliograph_operator.connection.connection_access import Access
from heliograph_operator.connection.connection_reconciler import client_of
from heliograph_operator.kube import client
from heliograph_operator.kube.client import Kube, KubeError
from heliograph_operator.kube.lease import Times
from heliograph_operator.objects.kinds import TOPIC, Kind

from .http_server import serve

STATEFUL_SET = Kind("StatefulSet", "statefulsets", "apps/v1")
ORDERS = "persistent://shop/payments/orders"


class Dropping:
    """A server that drops each connection with a change on it. After ``requests`` requests, another operator leads."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.requests = 1
        self.url = ""

    def deposed(self) -> bool:
        return len(self.seen) >= self.requests

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.method)
        if request.method != "GET":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"partitions": 0})


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dropping]:
    dropping = Dropping()
    runner = await serve(dropping.answer, tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    dropping.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield dropping
    await runner.cleanup()


async def test_a_change_is_not_sent_to_the_api_server_again(server: Dropping) -> None:
    async with Kube() as kube:
        kube.deposed = server.deposed
        with pytest.raises(KubeError, match="does not lead any more"):
            await kube.delete(STATEFUL_SET, "team", "main")
        # It may still read.
        await kube.get(STATEFUL_SET, "team", "main")
    assert server.seen == ["DELETE", "GET"]


async def test_a_deposed_operator_sends_no_change_to_the_api_server(server: Dropping) -> None:
    server.requests = 0
    orders = {"metadata": {"namespace": "here", "name": "orders"}}
    async with Kube() as kube:
        kube.deposed = server.deposed
        for change in (
            kube.create(TOPIC, orders),
            kube.patch(TOPIC, "here", "orders", {}),
            kube.replace(TOPIC, orders),
            kube.apply(TOPIC, orders),
            kube.delete(TOPIC, "here", "orders"),
        ):
            with pytest.raises(KubeError, match="does not lead any more"):
                await change
    assert server.seen == []


@pytest.mark.parametrize("requests", [1, 2])
async def test_a_change_is_not_sent_to_a_broker_after_a_request_that_preceded_it(
    server: Dropping, requests: int
) -> None:
    server.requests = requests
    session = BrokerSession(server.url, 0.0, server.deposed)
    with pytest.raises(AdminUnreachable, match="does not lead any more"):
        await session.delete("Topic", ORDERS, force=True)
    assert server.seen == ["GET", "DELETE"][:requests]
    await session.close()


async def test_a_change_is_not_sent_again_over_a_connection_to_other_brokers(server: Dropping) -> None:
    async with client_of(Access(server.url), server.deposed) as admin:
        with pytest.raises(AdminUnreachable, match="does not lead any more"):
            await admin.request("PUT", "/admin/v2/tenants/shop", body={})
    assert server.seen == ["PUT"]


@pytest.mark.parametrize("session_of", [BrokerSession, PulsarSession])
async def test_the_page_of_a_proxy_is_no_deletion(tmp_path: Path, session_of: type[PulsarSession]) -> None:
    answers = [
        web.Response(status=404, text="<h1>Not Found</h1>"),
        web.json_response({"reason": "Tenant does not exist"}, status=404),
    ]

    async def answer(request: web.Request) -> web.Response:
        return answers.pop(0)

    runner = await serve(answer, tmp_path / "kubeconfig")
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    session = session_of(url, 0.0, lambda: False, AdminClient(url))
    with pytest.raises(AdminRefused, match="HTTP 404 Not Found for /admin/v2/tenants/shop"):
        await session.delete("Tenant", "shop", force=False)
    await session.delete("Tenant", "shop", force=False)
    assert not answers
    await session.close()
    await runner.cleanup()


async def test_who_leads_sends_a_dropped_change_again(server: Dropping) -> None:
    server.requests = 100
    async with AdminClient(server.url, deposed=server.deposed) as admin:
        with pytest.raises(AdminUnreachable, match="no broker answers"):
            await admin.request("PUT", "/admin/v2/tenants/shop", body={})
    assert server.seen == ["PUT", "PUT"]


def test_a_change_is_sent_before_another_operator_may_lead() -> None:
    left_s = Times().duration_s - Times().renew_within_s
    assert left_s > client.CONNECT_S
    assert left_s > admin_client.CONNECT_S
