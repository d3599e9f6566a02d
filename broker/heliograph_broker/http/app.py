"""The HTTP application: every route, the error middleware, and what runs as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, RATES, Endpoints
from heliograph_broker.http.base.errors import errors_as_json
from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.http.metrics.loop_lag import LoopLag
from heliograph_broker.messaging.broker.broker import Broker

from .base import not_supported as absent
from .base import openapi
from .brokers import admin_brokers, admin_clusters, apply, backup, health
from .metrics import metrics, trouble
from .namespaces import admin_namespace_operations, admin_namespaces, admin_tenants, namespace_settings
from .policies import (
    policy_routes,
    quota_routes,
    subscription_policy_routes,
    subscription_rates,
    unsupported_policies,
)
from .stats import admin_stats, broker_stats, internal_info
from .stats import broker_status as status
from .topics import (
    admin_backlog,
    admin_messages,
    admin_subscriptions,
    admin_topic_operations,
    admin_topics,
    lookup,
    schemas,
)

__all__ = ["Endpoints", "create_app"]

#: Enough for manifests of tens of thousands of topics.
_MAX_BODY_BYTES = 16 * 1024 * 1024


def create_app(broker: Broker, config: BrokerConfig, endpoints: Endpoints) -> web.Application:
    """Return the application; ``endpoints`` may be completed when the ports are known."""
    app = web.Application(middlewares=[errors_as_json], client_max_size=_MAX_BODY_BYTES)
    app[BROKER] = broker
    app[CONFIG] = config
    app[ENDPOINTS] = endpoints
    app[RATES] = RateSampler(broker, broker.clock)
    app[metrics.LAG] = LoopLag()
    app[openapi.DESCRIPTION] = openapi.Cached()
    for module in (
        admin_tenants,
        admin_namespaces,
        namespace_settings,
        policy_routes,
        quota_routes,
        subscription_rates,
        subscription_policy_routes,
        unsupported_policies,
        admin_namespace_operations,
        admin_brokers,
        admin_clusters,
        broker_stats,
        absent,
        schemas,
        admin_topics,
        admin_topic_operations,
        admin_messages,
        admin_subscriptions,
        admin_backlog,
        admin_stats,
        internal_info,
        trouble,
        lookup,
        apply,
        status,
        backup,
        metrics,
        health,
        openapi,
    ):
        app.add_routes(module.routes())
    app[backup.RUNNING] = backup.Running()
    app.on_shutdown.append(backup.end_running)
    app.cleanup_ctx.append(_background)
    return app


async def _background(app: web.Application) -> AsyncIterator[None]:
    """Sample rates and the event loop's lag from start to clean-up."""
    tasks = [asyncio.create_task(app[RATES].run()), asyncio.create_task(app[metrics.LAG].run())]
    yield
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
