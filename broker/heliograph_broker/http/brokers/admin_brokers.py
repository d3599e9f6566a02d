"""Routes of the broker: /admin/v2/brokers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from aiohttp import web
from heliograph_api import __version__

from heliograph_broker.http.base.bundles import bundle_boundaries
from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, as_json, as_text
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.messaging.base.errors import PreconditionFailed

from .admin_clusters import check_cluster
from .health import check_ready

_PATH = "/admin/v2/brokers"
_TOPIC_VERSION = Parameter(
    "topicVersion", str, "Version of Pulsar's health topic; ignored, as there are no health topics."
)
_READY = {200: str, 503: Refusal}


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


@operation("The broker's version.", answers={200: str})
async def version(request: web.Request) -> web.Response:
    return as_text(__version__)


def own_address(request: web.Request) -> str:
    """Return host:port of the HTTP endpoint, Pulsar's name of a broker."""
    return request.app[ENDPOINTS].http_url.partition("://")[2]


@operation("List the active brokers by host and port.", answers={200: list[str]})
async def active_brokers(request: web.Request) -> web.Response:
    if "cluster" in request.match_info:
        check_cluster(request)
    return as_json([own_address(request)])


@operation("Get the leader of the brokers: this broker.", answers={200: LeaderDocument})
async def leader(request: web.Request) -> web.Response:
    return as_json(LeaderDocument(request.app[ENDPOINTS].http_url, own_address(request)))


@operation("Check whether the broker can store messages.", query=(_TOPIC_VERSION,), answers=_READY)
async def healthy(request: web.Request) -> web.Response:
    await check_ready(request.app[BROKER])
    return as_text("ok")


@operation("Check whether the broker can store messages.", answers=_READY)
async def ready(request: web.Request) -> web.Response:
    await check_ready(request.app[BROKER])
    return as_text("ok")


# -- configuration -------------------------------------------------------------------------------------------------


@operation("List the settings that can be changed at run time: none.", answers={200: list[str]})
async def dynamic_settings(request: web.Request) -> web.Response:
    return as_json([])


@operation("List the settings that were changed at run time: none.", answers={200: dict[str, str]})
async def changed_settings(request: web.Request) -> web.Response:
    return as_json({})


@operation("Get all settings of the broker, as text.", answers={200: dict[str, str]})
async def running_settings(request: web.Request) -> web.Response:
    settings: dict[str, Any] = msgspec.to_builtins(request.app[CONFIG])
    return as_json({name: _as_text(value) for name, value in settings.items()})


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


@operation("Change a setting: refused, as settings are read only at the start.", answers={412: Refusal})
async def set_setting(request: web.Request) -> web.Response:
    raise PreconditionFailed("Can't update non-dynamic configuration")


@operation("Revert a setting: refused, as settings cannot be changed at run time.", answers={412: Refusal})
async def reset_setting(request: web.Request) -> web.Response:
    raise PreconditionFailed("Can't delete non-dynamic configuration")


@operation("Get where the broker stores its metadata.", answers={200: InternalConfiguration})
async def internal_configuration(request: web.Request) -> web.Response:
    url = f"lmdb:{request.app[CONFIG].data_dir}"
    return as_json(InternalConfiguration(url, url, ""))


# -- the rest ------------------------------------------------------------------------------------------------------


@operation("Check all backlog quotas now: has no effect, as the broker checks them whenever they are due.")
async def check_quotas(request: web.Request) -> web.Response:
    return web.Response(status=204)


@operation("List the bundles a broker serves: all of them.", answers={200: dict[str, OwnershipDocument]})
async def owned_bundles(request: web.Request) -> web.Response:
    check_cluster(request)
    if request.match_info["broker"] != own_address(request):
        raise ApiError(404, f"Broker id '{request.match_info['broker']}' not found in available brokers.")
    owned: dict[str, OwnershipDocument] = {}
    for namespace, record in request.app[BROKER].directory.namespaces.items():
        edges = bundle_boundaries(record.bundles)
        owned |= {f"{namespace}/{low}_{high}": OwnershipDocument() for low, high in pairwise(edges)}
    return as_json(owned)


@operation("Shut down the broker: refused; send SIGTERM to its process instead.", answers={405: Refusal})
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
        web.get(f"{_PATH}/configuration", dynamic_settings),
        web.get(f"{_PATH}/configuration/values", changed_settings),
        web.get(f"{_PATH}/configuration/runtime", running_settings),
        web.post(f"{_PATH}/configuration/{{setting}}/{{value}}", set_setting),
        web.delete(f"{_PATH}/configuration/{{setting}}", reset_setting),
        web.get(f"{_PATH}/internal-configuration", internal_configuration),
        web.post(f"{_PATH}/shutdown", shutdown),
        web.get(f"{_PATH}/{{cluster}}", active_brokers),
        web.get(f"{_PATH}/{{cluster}}/{{broker}}/ownedNamespaces", owned_bundles),
    ]
