"""The session of a BrokerConnection follows its credentials, its address, and what answers there."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState, TenantState
from heliograph_api.resources.model import Tenant as TenantManifest
from heliograph_operator.act import broker_sessions
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.connection import connection_reconciler
from heliograph_operator.objects.kinds import Key
from heliograph_operator.objects.targets import broker_address

from .bodies import body, tenant
from .http_server import serve
from .installation import Installation, Operator
from .test_broker_connections import CONNECTION, ON, TENANT, connection

SECRET = Key("Secret", "team", "pulsar")
AUTH: dict[str, Any] = {"auth": {"secretRef": {"name": "pulsar"}}}


class Pulsar:
    """The admin API of an Apache Pulsar that knows one token, as far as tenants need it; or of a Heliograph."""

    def __init__(self) -> None:
        self.url = ""
        self.token = "first"
        self.version = "4.2.4"
        self.heliograph = False
        self.store_id = ""
        self.tenants: dict[str, Any] = {}
        self.tokens: list[str] = []
        #: The requests that were to change something.
        self.changes: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.tokens[-1] != self.token:
            return web.Response(status=401)
        if request.method != "GET":
            self.changes.append(f"{request.method} {request.path}")
        if request.path == "/admin/v2/brokers/version":
            return web.Response(text=self.version)
        if request.path == "/heliograph/v1/status" and self.heliograph:
            return web.json_response(json.loads(msgspec.json.encode(self._state())))
        if request.path == "/heliograph/v1/apply" and self.heliograph:
            return await self._apply(request)
        if request.path == "/admin/v2/clusters":
            return web.json_response(["standalone"])
        if request.path.startswith("/admin/v2/namespaces/"):
            return web.json_response([])
        if request.path.startswith("/admin/v2/tenants/"):
            return await self._tenant(request, request.path.rpartition("/")[2])
        return web.Response(status=404)

    def _state(self) -> BrokerState:
        tenants = {
            name: TenantState(made.get("adminRoles") or [], made.get("allowedClusters") or ["standalone"], Policies())
            for name, made in self.tenants.items()
        }
        return BrokerState(self.version, Policies(), Policies(), tenants, {}, {}, store_id=self.store_id)

    async def _apply(self, request: web.Request) -> web.Response:
        for text in (await request.text()).split("\n---\n"):
            model = TenantManifest.model_validate(json.loads(text))
            self.tenants[model.tenant] = {"adminRoles": model.spec.admin_roles}
        return web.json_response({"results": []})

    async def _tenant(self, request: web.Request, name: str) -> web.Response:
        if request.method in ("PUT", "POST"):
            self.tenants[name] = await request.json()
        elif request.method == "DELETE":
            self.tenants.pop(name, None)
        elif name in self.tenants:
            return web.json_response(self.tenants[name])
        else:
            return web.Response(status=404)
        return web.Response(status=204)


@pytest.fixture
async def pulsar(tmp_path: Path) -> AsyncIterator[Pulsar]:
    served = Pulsar()
    runner = await serve(served.answer, tmp_path / "unused")
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


@pytest.fixture
async def sessions() -> AsyncIterator[BrokerSessions]:
    opened = BrokerSessions(0.0)
    yield opened
    await opened.close()


def secret(token: str) -> dict[str, Any]:
    return {**body("Secret", "pulsar"), "data": {"token": base64.b64encode(token.encode()).decode()}}


async def connected(pulsar: Pulsar, sessions: BrokerSessions, *others: Any) -> tuple[Installation, Operator]:
    installation = Installation(connection(adminUrl=pulsar.url, **AUTH), secret("first"), *others)
    operator = installation.started(sessions=sessions)
    await operator.settle()
    assert installation.ready(CONNECTION)[0] == "Reconciled"
    return installation, operator


async def test_a_connection_that_is_being_deleted_reads_a_new_token(
    pulsar: Pulsar, sessions: BrokerSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation, operator = await connected(pulsar, sessions, tenant(**ON, deletionPolicy="Delete"))
    assert installation.ready(TENANT)[0] == "Reconciled"
    pulsar.token = "second"
    installation.delete(TENANT)
    installation.delete(CONNECTION)
    await operator.settle()
    assert installation.ready(CONNECTION)[0] == "ChildrenExist"
    assert "shop" in pulsar.tenants
    installation.server.objects[SECRET] = secret("second")
    pulsar.tokens.clear()
    # Secrets are read once in a while only.
    await operator.resync()
    assert "second" not in pulsar.tokens
    monkeypatch.setattr(connection_reconciler, "CHECK_S", 0.0)
    for _ in range(3):
        await operator.resync()
    assert "second" in pulsar.tokens
    assert TENANT not in installation.server.objects
    assert CONNECTION not in installation.server.objects
    assert pulsar.tenants == {}


async def test_what_answers_is_asked_again_when_it_was_replaced(
    pulsar: Pulsar, sessions: BrokerSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every check lists again.
    monkeypatch.setattr(broker_sessions, "FRESH_S", 0.0)
    installation, operator = await connected(pulsar, sessions)

    def shown() -> tuple[str, str]:
        status = installation.body(CONNECTION)["status"]
        return status["product"], status["version"]

    assert shown() == ("Apache Pulsar", "4.2.4")
    pulsar.version, pulsar.heliograph = "1.0", True
    await operator.resync()
    assert shown() == ("Heliograph", "1.0")
    assert type(sessions.at(broker_address(connection()))) is BrokerSession
    pulsar.version, pulsar.heliograph = "4.3.0", False
    await operator.resync()
    # Heliograph's listing is not there any more: nothing is applied by its API, and the next check asks what it is.
    assert installation.ready(CONNECTION)[0] == "Refused"
    assert not sessions.has(broker_address(connection()))
    await operator.resync()
    assert shown() == ("Apache Pulsar", "4.3.0")
    assert installation.ready(CONNECTION)[0] == "Reconciled"


async def test_a_url_that_no_request_can_be_sent_to_is_named_by_its_field(sessions: BrokerSessions) -> None:
    installation = Installation(connection(adminUrl="http://a..b"))
    await installation.started(sessions=sessions).settle()
    reason, message = installation.ready(CONNECTION)
    assert reason == "BrokerUnreachable"
    assert message.startswith("spec.adminUrl: http://a..b ")
