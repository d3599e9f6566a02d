"""Resource quotas of bundles: kept and shown, without effect, as there is no load to balance among brokers."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from heliograph_broker.http.base.bundles import check_bundle
from heliograph_broker.http.base.context import BROKER, accepted, as_json, namespace_of, required_body
from heliograph_broker.http.base.operations import operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.security.authorization.needs import Need

_PATH: Final = "/admin/v2/resource-quotas"
_OF_BUNDLE: Final = f"{_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
_KIND: Final = "resource_quota"
_DEFAULT: Final = ""
_EXAMPLE: Final = '{"msgRateIn": 1000, "msgRateOut": 2000, "bandwidthIn": 1048576, "memory": 64, "dynamic": false}'


class QuotaDocument(msgspec.Struct, rename="camel"):
    """Pulsar's ResourceQuota: messages and bytes a second, and memory in MB, that a bundle is expected to need."""

    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    bandwidth_in: float = 0.0
    bandwidth_out: float = 0.0
    memory: float = 0.0
    dynamic: bool = True


#: Pulsar's own default.
_UNSET: Final = QuotaDocument(40.0, 120.0, 100_000.0, 300_000.0, 80.0)


def _name(request: web.Request) -> str:
    """Return the name of a quota: the default's, or a bundle's. Raises what says that there is no such bundle."""
    if "bundle" not in request.match_info:
        return _DEFAULT
    namespace, bundle = namespace_of(request), request.match_info["bundle"]
    check_bundle(namespace, bundle, request.app[BROKER].directory.namespace(namespace))
    return f"{namespace}/{bundle}"


@operation("Get the resource quota of a bundle, or the default.", answers={200: QuotaDocument}, needs=Need.SUPERUSER)
async def get_quota(request: web.Request) -> web.Response:
    kept = request.app[BROKER].policies.settings.documents(_KIND)
    return as_json(kept.get(_name(request)) or kept.get(_DEFAULT) or _UNSET)


@operation(
    "Keep the resource quota of a bundle, or the default; it has no effect.",
    body=QuotaDocument,
    body_required=True,
    example=_EXAMPLE,
    needs=Need.SUPERUSER,
)
async def set_quota(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    document = await required_body(request, QuotaDocument, _EXAMPLE)
    broker.policies.settings.keep_document(_KIND, _name(request), msgspec.to_builtins(document))
    warn(request, "resource quotas are kept and shown, but have no effect here: there is no load to balance")
    return await accepted(broker)


@operation("Remove the resource quota of a bundle, so that the default is shown.", needs=Need.SUPERUSER)
async def remove_quota(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.policies.settings.keep_document(_KIND, _name(request), None)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.get(_PATH, get_quota),
        web.post(_PATH, set_quota),
        web.get(_OF_BUNDLE, get_quota),
        web.post(_OF_BUNDLE, set_quota),
        web.delete(_OF_BUNDLE, remove_quota),
    ]
