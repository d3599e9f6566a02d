"""/admin/v2/broker-stats/load-report: the load of the broker, as Pulsar's load managers report it."""

from __future__ import annotations

import asyncio
import os
import time
from itertools import pairwise
from typing import Final

import msgspec
from aiohttp import web
from heliograph_api import __version__

from heliograph_broker.http.base.bundles import bundle_boundaries
from heliograph_broker.http.base.context import BROKER, ENDPOINTS, RATES, as_json
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.brokers.admin_brokers import own_address
from heliograph_broker.http.stats.stats import topic_stats
from heliograph_broker.security.authorization.needs import Need

from .process_metrics import anonymous_bytes

#: Topics looked at between two turns of the event loop.
_AT_ONCE: Final = 100
_MB: Final = 1024 * 1024
_STARTED: Final = time.monotonic()


class Usage(msgspec.Struct):
    """Pulsar's ResourceUsage; a negative limit is none."""

    usage: float
    limit: float


class LoadReport(msgspec.Struct, rename="camel"):
    """Pulsar's LocalBrokerData: addresses, use of resources (percent of one core, MB), and counts of what is served."""

    web_service_url: str | None
    pulsar_service_url: str | None
    cpu: Usage
    memory: Usage
    msg_rate_in: float
    msg_rate_out: float
    msg_throughput_in: float
    msg_throughput_out: float
    last_update: int
    num_topics: int
    num_bundles: int
    num_consumers: int
    num_producers: int
    bundles: list[str]
    web_service_url_tls: str | None = None
    pulsar_service_url_tls: str | None = None
    broker_version_string: str = __version__
    persistent_topics_enabled: bool = True
    non_persistent_topics_enabled: bool = True
    load_report_type: str = "LocalBrokerData"


@operation(
    "Get the load of the broker: resources, rates, and what it serves.", answers={200: LoadReport}, needs=Need.MONITOR
)
async def load_report(request: web.Request) -> web.Response:
    broker, endpoints, sampler = request.app[BROKER], request.app[ENDPOINTS], request.app[RATES]
    rates_in = rates_out = bytes_in = bytes_out = 0.0
    consumers = producers = 0
    topics = list(broker.directory.topics.values())
    for at, topic in enumerate(topics):
        if at % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        if topic.closed:
            continue
        producers += len(topic.producers)
        consumers += sum(len(each.consumers) for each in topic.subscriptions.values())
        traffic = topic_stats(topic, sampler, own_address(request))
        rates_in, rates_out = rates_in + traffic.msg_rate_in, rates_out + traffic.msg_rate_out
        bytes_in, bytes_out = bytes_in + traffic.msg_throughput_in, bytes_out + traffic.msg_throughput_out
    bundles = [
        f"{namespace}/{low}_{high}"
        for namespace, record in broker.directory.namespaces.items()
        for low, high in pairwise(bundle_boundaries(record))
    ]
    return as_json(
        LoadReport(
            endpoints.http_url or None,
            endpoints.broker_url or None,
            Usage(_cpu_percent(), 100.0 * (os.cpu_count() or 1)),
            Usage((anonymous_bytes() or 0) / _MB, _memory_bytes() / _MB),
            rates_in,
            rates_out,
            bytes_in,
            bytes_out,
            broker.clock.now_ms(),
            len(topics),
            len(bundles),
            consumers,
            producers,
            bundles,
            endpoints.https_url or None,
            endpoints.broker_tls_url or None,
        )
    )


def _cpu_percent() -> float:
    """Return the part of one core that the process has used since it started."""
    return round(100 * time.process_time() / max(1.0, time.monotonic() - _STARTED), 3)


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def routes() -> list[web.RouteDef]:
    return [web.get("/admin/v2/broker-stats/load-report", load_report)]
