"""Namespace isolation policies: which brokers serve which namespaces.

One broker serves all of them here, so each policy that names this broker holds. One that keeps its namespaces from
this broker is refused: they would be served all the same.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import re2
from aiohttp import web
from heliograph_api.values.names import check_part

from heliograph_broker.http.base.context import BROKER, accepted, as_json, required_body
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import operation
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.security.authorization.needs import Need

from .admin_brokers import own_address
from .admin_clusters import check_cluster

_PATH: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_KIND: Final = "isolation_policy"
_POLICY_TYPES: Final = ("min_available",)
_PARAMETERS: Final = ("min_limit", "usage_threshold")
_EXAMPLE: Final = (
    '{"namespaces": ["shop/.*"], "primary": [".*"], "secondary": [], "auto_failover_policy":'
    ' {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}}}'
)


class FailoverDocument(msgspec.Struct):
    """Pulsar's AutoFailoverPolicyData: from when on secondary brokers are used."""

    parameters: dict[str, str] = {}
    policy_type: str = ""


class IsolationDocument(msgspec.Struct, omit_defaults=True):
    """Pulsar's NamespaceIsolationData: patterns of namespaces, and of the brokers that may serve them."""

    namespaces: list[str] = msgspec.field(default_factory=lambda: [""])
    primary: list[str] = msgspec.field(default_factory=lambda: [""])
    secondary: list[str] | None = None
    auto_failover_policy: FailoverDocument | None = None
    unload_scope: str | None = None


class IsolatedBroker(msgspec.Struct, rename="camel", omit_defaults=True):
    """Pulsar's BrokerNamespaceIsolationData: the policy that has a broker, if any."""

    broker_name: str
    policy_name: str | None
    namespace_regex: list[str]
    primary: bool


def _kept(request: web.Request) -> dict[str, Any]:
    check_cluster(request)
    return request.app[BROKER].policies.settings.documents(_KIND)


def _matches(patterns: list[str] | None, broker: str) -> bool:
    return any(re2.fullmatch(pattern, broker) for pattern in patterns or ())


def _check(document: IsolationDocument, name: str, broker: str) -> None:
    """Check a policy. Raises :class:`ApiError` 400 for one that says nothing, or what it would promise in vain."""
    failover = document.auto_failover_policy
    problem = ""
    if not all(document.namespaces) or not document.namespaces:
        problem = "namespaces should be patterns such as shop/.*"
    elif not all(document.primary) or not document.primary:
        problem = "primary should be patterns of brokers such as .*"
    elif document.secondary is None:
        problem = "secondary should be a list, empty for none"
    elif failover is None or failover.policy_type not in _POLICY_TYPES:
        problem = f"auto_failover_policy.policy_type should be {_POLICY_TYPES[0]}"
    elif not all(failover.parameters.get(each, "").isdecimal() for each in _PARAMETERS):
        problem = f"auto_failover_policy.parameters should have the numbers {' and '.join(_PARAMETERS)}"
    if problem:
        raise ApiError(400, f"Invalid format of input policy data. policy: {name}; {problem}")
    try:
        served = _matches(document.primary, broker) or _matches(document.secondary, broker)
        _matches(document.namespaces, "")
    except re2.error as error:
        raise ApiError(400, f"Invalid format of input policy data. policy: {name}; {error}") from error
    if not served:
        raise PreconditionFailed(
            f"policy {name} names no broker of this cluster, which is {broker} only: its namespaces would be served"
            " here all the same"
        )


def _of_broker(request: web.Request, broker: str) -> IsolatedBroker:
    for name, kept in _kept(request).items():
        if _matches(kept["primary"], broker) or _matches(kept["secondary"], broker):
            return IsolatedBroker(broker, name, kept["namespaces"], _matches(kept["primary"], broker))
    return IsolatedBroker(broker, None, [], False)


@operation(
    "Get the namespace isolation policies by name.", answers={200: dict[str, IsolationDocument]}, needs=Need.SUPERUSER
)
async def list_policies(request: web.Request) -> web.Response:
    return as_json(_kept(request))


@operation("Get a namespace isolation policy.", answers={200: IsolationDocument}, needs=Need.SUPERUSER)
async def get_policy(request: web.Request) -> web.Response:
    kept, name = _kept(request), request.match_info["policy"]
    if name not in kept:
        raise ApiError(404, f"Cannot find NamespaceIsolationPolicy {name} for cluster {request.match_info['cluster']}")
    return as_json(kept[name])


@operation(
    "List the brokers with the policy that each is in.", answers={200: list[IsolatedBroker]}, needs=Need.SUPERUSER
)
async def list_brokers(request: web.Request) -> web.Response:
    return as_json([_of_broker(request, own_address(request))])


@operation("Get the policy that a broker is in.", answers={200: IsolatedBroker}, needs=Need.SUPERUSER)
async def get_broker(request: web.Request) -> web.Response:
    return as_json(_of_broker(request, request.match_info["broker"]))


@operation(
    "Set a namespace isolation policy, or replace it; it has to name this broker, which serves all namespaces.",
    body=IsolationDocument,
    body_required=True,
    example=_EXAMPLE,
    needs=Need.SUPERUSER,
)
async def set_policy(request: web.Request) -> web.Response:
    check_cluster(request)
    broker = request.app[BROKER]
    name = request.match_info["policy"]
    check_part("isolation policy", name)
    document = await required_body(request, IsolationDocument, _EXAMPLE)
    _check(document, name, own_address(request))
    broker.policies.settings.keep_document(_KIND, name, msgspec.to_builtins(document))
    return await accepted(broker)


@operation("Delete a namespace isolation policy, if there is such a one.", needs=Need.SUPERUSER)
async def delete_policy(request: web.Request) -> web.Response:
    check_cluster(request)
    broker = request.app[BROKER]
    broker.policies.settings.keep_document(_KIND, request.match_info["policy"], None)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.get(_PATH, list_policies),
        web.get(f"{_PATH}/brokers", list_brokers),
        web.get(f"{_PATH}/brokers/{{broker}}", get_broker),
        web.get(f"{_PATH}/{{policy}}", get_policy),
        web.post(f"{_PATH}/{{policy}}", set_policy),
        web.delete(f"{_PATH}/{{policy}}", delete_policy),
    ]
