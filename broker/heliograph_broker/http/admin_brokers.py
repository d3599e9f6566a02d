"""The cluster and its one broker: /admin/v2/clusters and /admin/v2/brokers."""

from __future__ import annotations

from aiohttp import web

from heliograph_broker import __version__
from heliograph_broker.messaging.errors import BrokerError

from .context import BROKER, CONFIG, ENDPOINTS, as_json, as_text
from .health import check_ready


class ClusterNotFound(BrokerError):
    http_status = 404


def _check_cluster(request: web.Request) -> None:
    if request.match_info["cluster"] != request.app[CONFIG].cluster_name:
        raise ClusterNotFound("Cluster does not exist")


async def list_clusters(request: web.Request) -> web.Response:
    return as_json([request.app[CONFIG].cluster_name])


async def get_cluster(request: web.Request) -> web.Response:
    _check_cluster(request)
    endpoints = request.app[ENDPOINTS]
    return as_json(
        {
            "serviceUrl": endpoints.http_url,
            "brokerServiceUrl": endpoints.broker_url,
            "brokerClientTlsEnabled": False,
            "tlsAllowInsecureConnection": False,
            "brokerClientTlsEnabledWithKeyStore": False,
            "brokerClientTlsTrustStoreType": "JKS",
            "brokerClientTlsKeyStoreType": "JKS",
            "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
        }
    )


async def version(request: web.Request) -> web.Response:
    return as_text(__version__)


def own_address(request: web.Request) -> str:
    """Return host:port of the HTTP endpoint, Pulsar's name of a broker."""
    return request.app[ENDPOINTS].http_url.partition("://")[2]


async def active_brokers(request: web.Request) -> web.Response:
    if "cluster" in request.match_info:
        _check_cluster(request)
    return as_json([own_address(request)])


async def leader(request: web.Request) -> web.Response:
    address = own_address(request)
    return as_json({"brokerId": address, "serviceUrl": request.app[ENDPOINTS].http_url})


async def healthy(request: web.Request) -> web.Response:
    await check_ready(request.app[BROKER])
    return as_text("ok")


def routes() -> list[web.RouteDef]:
    return [
        web.get("/admin/v2/clusters", list_clusters),
        web.get("/admin/v2/clusters/{cluster}", get_cluster),
        web.get("/admin/v2/brokers", active_brokers),
        web.get("/admin/v2/brokers/version", version),
        web.get("/admin/v2/brokers/health", healthy),
        web.get("/admin/v2/brokers/ready", healthy),
        web.get("/admin/v2/brokers/leaderBroker", leader),
        web.get("/admin/v2/brokers/{cluster}", active_brokers),
    ]
