"""The HTTP application: every route, the error middleware, and what runs as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web, web_response, web_urldispatcher
from aiohttp.typedefs import Middleware
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.access import AUTHORIZER, authorized
from heliograph_broker.http.base.audit import audit_log
from heliograph_broker.http.base.authentication import authentication
from heliograph_broker.http.base.bodies import (
    BODIES,
    LARGEST_BODY_BYTES,
    BodyRoom,
    arrived,
    asked_for_later,
    uncompressed,
)
from heliograph_broker.http.base.challenges import METHODS
from heliograph_broker.http.base.context import BROKER, CONFIG, ENDPOINTS, RATES, Endpoints
from heliograph_broker.http.base.errors import errors_as_json
from heliograph_broker.http.base.rates import RateSampler
from heliograph_broker.http.base.unread_bodies import limit_unread
from heliograph_broker.http.base.warning_header import warnings_as_header
from heliograph_broker.http.metrics.loop_lag import LoopLag
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.broker.role_activity import RoleActivity
from heliograph_broker.security.security import Security

from .base import not_supported as absent
from .base import openapi
from .brokers import (
    admin_brokers,
    admin_clusters,
    apply,
    backup,
    can_i,
    dynamic_settings,
    health,
    isolation_policies,
    resource_quotas,
    roles,
)
from .metrics import load_report, metrics, trouble
from .namespaces import (
    admin_namespace_operations,
    admin_namespaces,
    admin_tenants,
    bundle_splits,
    namespace_settings,
    permissions,
    resource_groups,
)
from .policies import (
    kept_routes,
    policy_routes,
    quota_routes,
    subscription_policy_routes,
    subscription_rates,
    unsupported_policies,
)
from .stats import admin_stats, broker_stats, explain, internal_info
from .stats import broker_status as status
from .topics import (
    admin_backlog,
    admin_messages,
    admin_subscriptions,
    admin_topic_operations,
    admin_topics,
    lookup,
    schemas,
    unacked_messages,
)

__all__ = ["Endpoints", "create_app", "create_metrics_app"]

# Each answer names who gives it, also to clients that nobody knows. The library has no setting for it, and would name
# its version and Python's, by which known weaknesses are looked up.
vars(web_response)["SERVER_SOFTWARE"] = "Heliograph"
# The library would ask for a body before the first middleware runs, and has a setting for single routes only: not for a
# path that is none.
vars(web_urldispatcher)["_default_expect_handler"] = asked_for_later


def create_app(
    broker: Broker, config: BrokerConfig, endpoints: Endpoints, security: Security | None = None
) -> web.Application:
    """Return the application; ``endpoints`` may be completed when the ports are known.

    Without ``security`` everybody may send every request.
    """
    middlewares = [
        audit_log(broker.clock.monotonic),
        errors_as_json,
        *_guards(security, broker.roles.activity),
        uncompressed,
        warnings_as_header,
    ]
    app = web.Application(middlewares=middlewares, client_max_size=LARGEST_BODY_BYTES)
    if security is not None:
        _close(app, security)
        app[BODIES] = BodyRoom()
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
        permissions,
        resource_groups,
        policy_routes,
        kept_routes,
        quota_routes,
        subscription_rates,
        subscription_policy_routes,
        unsupported_policies,
        admin_namespace_operations,
        bundle_splits,
        dynamic_settings,
        admin_brokers,
        admin_clusters,
        isolation_policies,
        resource_quotas,
        broker_stats,
        load_report,
        absent,
        schemas,
        admin_topics,
        admin_topic_operations,
        admin_messages,
        unacked_messages,
        admin_subscriptions,
        admin_backlog,
        admin_stats,
        internal_info,
        explain,
        trouble,
        lookup,
        apply,
        can_i,
        roles,
        status,
        backup,
        metrics,
        health,
        openapi,
    ):
        app.add_routes(module.routes())
    app[backup.RUNNING] = backup.Running()
    app.on_shutdown.append(backup.end_running)
    app.on_response_prepare.append(limit_unread)
    app.cleanup_ctx.append(_background)
    return app


def _guards(security: Security | None, activity: RoleActivity) -> list[Middleware]:
    return [arrived] if security is None else [authentication(security, activity), authorized]


def _close(app: web.Application, security: Security) -> None:
    app[AUTHORIZER] = security.authorizer
    app[METHODS] = security.authenticator.methods


def create_metrics_app(app: web.Application, security: Security | None = None) -> web.Application:
    """Return an application that serves the metrics of ``app``, which must run, and nothing else."""
    only = web.Application(middlewares=[errors_as_json, *_guards(security, app[BROKER].roles.activity)])
    if security is not None:
        _close(only, security)
        only[BODIES] = app[BODIES]
    only[BROKER] = app[BROKER]
    only[CONFIG] = app[CONFIG]
    only[RATES] = app[RATES]
    only[metrics.LAG] = app[metrics.LAG]
    only.add_routes(metrics.routes())
    only.on_response_prepare.append(limit_unread)
    return only


async def _background(app: web.Application) -> AsyncIterator[None]:
    """Sample rates and the event loop's lag from start to clean-up."""
    tasks = [asyncio.create_task(app[RATES].run()), asyncio.create_task(app[metrics.LAG].run())]
    yield
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
