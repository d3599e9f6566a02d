"""Backlog quotas by size and by age, of namespaces and topics: set and removed one by one, read together."""

from __future__ import annotations

from aiohttp import web
from heliograph_api.policies.policies import BACKLOG_QUOTA_POLICIES, Policies
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.context import BROKER, accepted, as_json, flag, namespace_of, new_setting
from heliograph_broker.http.base.operations import Parameter, operation
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.security.authorization.needs import Need

from .policy_documents import AGE_QUOTA, SIZE_QUOTA, QuotaDocument
from .policy_routes import (
    APPLIED,
    GLOBAL,
    NAMESPACE_PATH,
    namespace_policies,
    policy_topic,
    refuse_global,
    topic_policies,
)
from .quota_rules import QUOTA_FIELDS, QuotaMap, check_kind, check_quota, put_quota, quota_map

_EXAMPLE = '{"limitSize": 10485760, "policy": "producer_exception"}'
_UNLIMITED = QuotaDocument(policy=BACKLOG_QUOTA_POLICIES[0], limit=-1, limit_size=-1, limit_time=-1)
_KIND = Parameter(
    "backlogQuotaType", str, "Type of the quota; default: destination_storage.", choices=(SIZE_QUOTA, AGE_QUOTA)
)


def _kind(request: web.Request) -> str:
    return check_kind(request.query.get("backlogQuotaType", SIZE_QUOTA))


def _refuse_unstored(name: TopicName) -> None:
    if not name.is_persistent:
        raise PreconditionFailed(f"backlogQuota is for persistent topics only, as {name} stores nothing")


@operation("Get the namespace's own backlog quotas.", answers={200: QuotaMap}, needs=Need.ADMIN)
async def get_of_namespace(request: web.Request) -> web.Response:
    return as_json(quota_map(request.app[BROKER].directory.namespace(namespace_of(request)).policies))


@operation(
    "Set a backlog quota for the namespace.",
    body=QuotaDocument,
    body_required=True,
    query=(_KIND,),
    example=_EXAMPLE,
    needs=Need.ADMIN,
)
async def set_of_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    broker.directory.namespace(namespace)
    kind = _kind(request)
    document = await new_setting(request, QuotaDocument, _EXAMPLE)
    policies = namespace_policies(broker, namespace)
    if document is None:
        setattr(policies, QUOTA_FIELDS[kind], None)
    else:
        put_quota(policies, kind, document)
    check_quota(broker, policies)
    broker.namespaces.set_policies(namespace, policies)
    return await accepted(broker)


@operation("Remove a backlog quota of the namespace, so that the broker's applies.", query=(_KIND,), needs=Need.ADMIN)
async def remove_of_namespace(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    namespace = namespace_of(request)
    policies = namespace_policies(broker, namespace)
    setattr(policies, QUOTA_FIELDS[_kind(request)], None)
    broker.namespaces.set_policies(namespace, policies)
    return await accepted(broker)


@operation("Get the topic's own backlog quotas.", query=(APPLIED, GLOBAL), answers={200: QuotaMap}, needs=Need.ADMIN)
async def get_of_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = policy_topic(request)
    if flag(request, "applied"):
        quotas = quota_map(broker.policies.effective(name))
        levels = (broker.policies.of_topic(name), broker.directory.namespace(name.namespace_name).policies)
        for kind, field in QUOTA_FIELDS.items():
            if any(getattr(level, field, None) is not None for level in levels):
                quotas.setdefault(kind, _UNLIMITED)
        return as_json(quotas or dict.fromkeys(QUOTA_FIELDS, _UNLIMITED))
    own = broker.policies.of_topic(name) if not flag(request, "isGlobal") else None
    return as_json(quota_map(own or Policies()))


@operation(
    "Set a backlog quota for the topic.",
    body=QuotaDocument,
    body_required=True,
    query=(_KIND, GLOBAL),
    example=_EXAMPLE,
    needs=Need.ADMIN,
)
async def set_of_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = policy_topic(request)
    refuse_global(request)
    _refuse_unstored(name)
    kind = _kind(request)
    document = await new_setting(request, QuotaDocument, _EXAMPLE)
    name = policy_topic(request)
    policies = topic_policies(broker, name)
    if document is None:
        setattr(policies, QUOTA_FIELDS[kind], None)
    else:
        put_quota(policies, kind, document)
    check_quota(broker, policies, name)
    broker.policies.set_topic(name, policies)
    return await accepted(broker)


@operation(
    "Remove a backlog quota of the topic, so that the namespace's applies.", query=(_KIND, GLOBAL), needs=Need.ADMIN
)
async def remove_of_topic(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    name = policy_topic(request)
    kind = _kind(request)
    if not flag(request, "isGlobal"):
        policies = topic_policies(broker, name)
        setattr(policies, QUOTA_FIELDS[kind], None)
        broker.policies.set_topic(name, policies)
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [
        web.get(f"{NAMESPACE_PATH}/backlogQuotaMap", get_of_namespace),
        web.post(f"{NAMESPACE_PATH}/backlogQuota", set_of_namespace),
        web.delete(f"{NAMESPACE_PATH}/backlogQuota", remove_of_namespace),
        web.get(f"{TOPIC_PATH}/backlogQuotaMap", get_of_topic),
        web.post(f"{TOPIC_PATH}/backlogQuota", set_of_topic),
        web.delete(f"{TOPIC_PATH}/backlogQuota", remove_of_topic),
    ]
