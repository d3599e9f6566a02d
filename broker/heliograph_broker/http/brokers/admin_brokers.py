"""Routes of the broker: /admin/v2/brokers."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from aiohttp import web
from heliograph_api import __version__

from heliograph_broker.http.base.bundles import bundle_boundaries
from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, as_json, as_text
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.security.authorization.needs import Need

from .admin_clusters import check_cluster
from .health import check_ready

_PATH = "/admin/v2/brokers"
_TOPIC_VERSION = Parameter(
    "topicVersion", str, "Version of Pulsar's health topic; ignored, as there are no health topics."
)
_BROKER_ID = Parameter("brokerId", str, "Host and port of the broker that is checked: this one.")
_READY = {200: str, 503: Refusal}
_READY_HERE = _READY | {404: Refusal}


class LeaderDocument(msgspec.Struct, rename="camel"):
    """Pulsar's BrokerInfo."""

    service_url: str
    broker_id: str


class OwnershipDocument(msgspec.Struct):
    """Pulsar's NamespaceOwnershipStatus: how a bundle came to this broker."""

    broker_assignment: str = "shared"
    is_controlled: bool = False
    is_active: bool = True


class InternalConfiguration(msgspec.Struct, rename="camel"):
    """Pulsar's InternalConfigurationData; there is no store of metadata beside the broker's own directory."""

    metadata_store_url: str
    configuration_metadata_store_url: str
    ledgers_root_path: str


class MigrationDocument(msgspec.Struct, rename="camel"):
    """Pulsar's MigrationState: how far the metadata is moved to another store."""

    phase: str = "NOT_STARTED"
    target_url: str | None = None


@operation("The broker's version.", answers={200: str}, needs=Need.IDENTITY)
async def version(request: web.Request) -> web.Response:
    return as_text(__version__)


def own_address(request: web.Request) -> str:
    """Return host:port of the HTTP endpoint, Pulsar's name of a broker."""
    return request.app[ENDPOINTS].admin_url.partition("://")[2]


def _check_broker(request: web.Request, broker_id: str) -> None:
    if broker_id != own_address(request):
        raise ApiError(404, f"Broker id '{broker_id}' not found in available brokers.")


@operation("List the active brokers by host and port.", answers={200: list[str]}, needs=Need.SUPERUSER)
async def active_brokers(request: web.Request) -> web.Response:
    if "cluster" in request.match_info:
        check_cluster(request)
    return as_json([own_address(request)])


@operation("Get the leader of the brokers: this broker.", answers={200: LeaderDocument}, needs=Need.SUPERUSER)
async def leader(request: web.Request) -> web.Response:
    return as_json(LeaderDocument(request.app[ENDPOINTS].admin_url, own_address(request)))


@operation(
    "Check whether the broker can store messages.",
    query=(_TOPIC_VERSION, _BROKER_ID),
    answers=_READY_HERE,
    needs=Need.SUPERUSER,
)
async def healthy(request: web.Request) -> web.Response:
    _check_broker(request, request.query.get(_BROKER_ID.name) or own_address(request))
    await check_ready(request.app[BROKER])
    return as_text("ok")


@operation("Check whether the broker can store messages.", answers=_READY, needs=Need.IDENTITY)
async def ready(request: web.Request) -> web.Response:
    await check_ready(request.app[BROKER])
    return as_text("ok")


# -- configuration -------------------------------------------------------------------------------------------------


@operation("Get where the broker stores its metadata.", answers={200: InternalConfiguration}, needs=Need.SUPERUSER)
async def internal_configuration(request: web.Request) -> web.Response:
    url = f"lmdb:{request.app[CONFIG].data_dir}"
    return as_json(InternalConfiguration(url, url, ""))


@operation(
    "Get how far the metadata is moved to another store: never begun.",
    answers={200: MigrationDocument},
    needs=Need.SUPERUSER,
)
async def metadata_migration(request: web.Request) -> web.Response:
    return as_json(MigrationDocument())


# -- the rest ------------------------------------------------------------------------------------------------------


@operation(
    "Check all backlog quotas now: has no effect, as the broker checks them whenever they are due.",
    needs=Need.SUPERUSER,
)
async def check_quotas(request: web.Request) -> web.Response:
    return web.Response(status=204)


@operation(
    "List the bundles a broker serves: all of them.", answers={200: dict[str, OwnershipDocument]}, needs=Need.SUPERUSER
)
async def owned_bundles(request: web.Request) -> web.Response:
    check_cluster(request)
    _check_broker(request, request.match_info["broker"])
    owned: dict[str, OwnershipDocument] = {}
    for namespace, record in request.app[BROKER].directory.namespaces.items():
        edges = bundle_boundaries(record)
        owned |= {f"{namespace}/{low}_{high}": OwnershipDocument() for low, high in pairwise(edges)}
    return as_json(owned)


@operation(
    "Shut down the broker: refused; send SIGTERM to its process instead.", answers={405: Refusal}, needs=Need.SUPERUSER
)
async def shutdown(request: web.Request) -> web.Response:
    raise ApiError(405, "The broker cannot be shut down through this API; send SIGTERM to its process")


def routes() -> list[web.RouteDef]:
    return [
        web.get(_PATH, active_brokers),
        web.get(f"{_PATH}/version", version),
        web.get(f"{_PATH}/health", healthy),
        web.get(f"{_PATH}/ready", ready),
        web.get(f"{_PATH}/leaderBroker", leader),
        web.get(f"{_PATH}/backlog-quota-check", check_quotas),
        web.get(f"{_PATH}/internal-configuration", internal_configuration),
        web.get("/admin/v2/metadata/migration/status", metadata_migration),
        web.post(f"{_PATH}/shutdown", shutdown),
        web.get(f"{_PATH}/{{cluster}}", active_brokers),
        web.get(f"{_PATH}/{{cluster}}/{{broker}}/ownedNamespaces", owned_bundles),
    ]
