"""The paths of kept settings, of namespaces and of topics: read, set, remove."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName

from heliograph_broker.http.base.access import is_on
from heliograph_broker.http.base.context import (
    BROKER,
    CONFIG,
    accepted,
    as_json,
    body_as,
    flag,
    namespace_of,
)
from heliograph_broker.http.base.operations import JSON, Handler, Media, Refusal, operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.authorization.needs import Need

from .kept_documents import OFFLOAD_DEFAULTS
from .kept_settings import KEPT, OFFLOAD_POLICIES, REPLICATION_CLUSTERS, KeptSetting, checked, keep, kept_value
from .policy_routes import (
    APPLIED,
    GLOBAL,
    NAMESPACE_PATH,
    namespace_policies,
    policy_topic,
    refuse_global,
    topic_policies,
)


def _answers(setting: KeptSetting) -> dict[int, Any]:
    text = msgspec.json.schema(setting.document).get("type") == "string"
    kind = Media((JSON,), setting.document) if text else setting.document
    return {200: kind} if setting.shown is not None else {200: kind, 204: None}


def _setting(setting: KeptSetting, path: str, level: str) -> str:
    """Return what the operation does that sets it."""
    if setting.holds:
        return f"Set {path} for the {level}: {setting.reason}."
    return f"Keep {path} for the {level}; it has no effect: {setting.reason}."


def _answer(setting: KeptSetting, value: Any) -> web.Response:
    if value is None:
        return web.Response(status=204)
    if setting.document is str:
        # As it was given, quoted or not, for Pulsar's tools take it as it is.
        return web.Response(text=value, content_type="application/json")
    return as_json(value)


async def _given(request: web.Request, setting: KeptSetting) -> Any:
    """Return the value of the request, None to remove it."""
    if setting.switched is not None:
        value = await body_as(request, setting.document)
        return setting.switched if value is None else value
    if setting.document is str:
        # Pulsar's tools send the text itself, its libraries JSON; the quotes of JSON are a part of it on Pulsar, too.
        text = (await request.read()).decode("utf-8", "replace").strip()
        return checked(setting, None if text in ("", "null") else text, request.app[CONFIG])
    # No body removes it, as Pulsar's tools do for a number.
    return checked(setting, await body_as(request, setting.document), request.app[CONFIG])


def _with_offload_field(policies: Policies, field: str, value: Any) -> None:
    """Set a field of the offload policies, None for none; all of them are shown from then on."""
    document = kept_value(policies, OFFLOAD_POLICIES) or msgspec.to_builtins(OFFLOAD_DEFAULTS)
    others = {known: kept for known, kept in document.items() if known != field}
    keep(policies, OFFLOAD_POLICIES, others if value is None else others | {field: value})


def _own_value(policies: Policies, setting: KeptSetting) -> Any:
    in_offload = (kept_value(policies, OFFLOAD_POLICIES) or {}).get(setting.offload_field)
    return kept_value(policies, setting.name) if in_offload is None else in_offload


def set_for_namespace(broker: Broker, namespace: str, name: str, value: Any) -> None:
    """Keep a value for a namespace; None removes it. Raises :class:`NamespaceNotFound`."""
    policies = namespace_policies(broker, namespace)
    keep(policies, name, value)
    broker.namespaces.set_policies(namespace, policies)


def set_for_topic(broker: Broker, name: TopicName, setting: str, value: Any) -> None:
    """Keep a value for a topic; None removes it. Raises :class:`TopicNotFound`."""
    policies = topic_policies(broker, name)
    keep(policies, setting, value)
    broker.policies.set_topic(name, policies)


def _set_of(broker: Broker, namespace: str, setting: KeptSetting, value: Any) -> None:
    policies = namespace_policies(broker, namespace)
    # As on Pulsar, what is a field of the offload policies is not shown as a setting of its own.
    keep(policies, setting.name, None if setting.offload_field else value)
    if setting.offload_field:
        _with_offload_field(policies, setting.offload_field, value)
    broker.namespaces.set_policies(namespace, policies)


# -- namespaces ----------------------------------------------------------------------------------------------------


def _get_of_namespace(setting: KeptSetting) -> Handler:
    @operation(
        f"Get the namespace's own {setting.namespace}: {setting.reason}.", answers=_answers(setting), needs=Need.ADMIN
    )
    async def get(request: web.Request) -> web.Response:
        record = request.app[BROKER].directory.namespace(namespace_of(request))
        value = _own_value(record.policies, setting)
        return _answer(setting, setting.shown if value is None else value)

    return get


def _set_of_namespace(setting: KeptSetting) -> Handler:
    @operation(
        _setting(setting, setting.namespace, "namespace"),
        body=setting.document,
        body_required=setting.switched is None,
        example=setting.example,
        answers={204: None, **dict.fromkeys(setting.refusals, Refusal)},
        needs=Need.ADMIN,
    )
    async def set_value(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        namespace = namespace_of(request)
        broker.directory.namespace(namespace)
        value = await _given(request, setting)
        _set_of(broker, namespace, setting, value)
        if value is not None and not setting.has_effect(is_on(request)):
            warn(request, setting.warning)
        return await accepted(broker)

    return set_value


def _remove_of_namespace(setting: KeptSetting) -> Handler:
    @operation(f"Remove the namespace's {setting.namespace}.", needs=Need.ADMIN)
    async def remove(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        _set_of(broker, namespace_of(request), setting, None)
        return await accepted(broker)

    return remove


# -- topics --------------------------------------------------------------------------------------------------------


def _applied(broker: Broker, name: TopicName, setting: KeptSetting) -> Any:
    record = broker.directory.namespaces[name.namespace_name]
    for level in (broker.policies.of_topic(name), record.policies):
        value = kept_value(level, setting.name)
        if value is not None:
            return value
    return record.replication_clusters if setting.name == REPLICATION_CLUSTERS else setting.applied


def _get_of_topic(setting: KeptSetting) -> Handler:
    @operation(
        f"Get the topic's own {setting.topic}: {setting.reason}.",
        query=(APPLIED, GLOBAL),
        answers=_answers(setting),
        needs=Need.ADMIN,
    )
    async def get(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name = policy_topic(request)
        if flag(request, "applied"):
            return _answer(setting, _applied(broker, name, setting))
        own = broker.policies.of_topic(name) if not flag(request, "isGlobal") else None
        value = kept_value(own, setting.name)
        return _answer(setting, setting.shown if value is None else value)

    return get


def _set_of_topic(setting: KeptSetting) -> Handler:
    @operation(
        _setting(setting, setting.topic, "topic"),
        body=setting.document,
        body_required=setting.switched is None,
        query=(GLOBAL,),
        example=setting.example,
        answers={204: None, **dict.fromkeys(setting.refusals, Refusal)},
        needs=Need.ADMIN,
    )
    async def set_value(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        policy_topic(request)
        refuse_global(request)
        value = await _given(request, setting)
        # The topic may be gone by now.
        set_for_topic(broker, policy_topic(request), setting.name, value)
        if value is not None and not setting.has_effect(is_on(request)):
            warn(request, setting.warning)
        return await accepted(broker)

    return set_value


def _remove_of_topic(setting: KeptSetting) -> Handler:
    @operation(
        f"Remove the topic's {setting.topic}, so that the namespace's is shown.", query=(GLOBAL,), needs=Need.ADMIN
    )
    async def remove(request: web.Request) -> web.Response:
        broker = request.app[BROKER]
        name = policy_topic(request)
        if not flag(request, "isGlobal"):
            set_for_topic(broker, name, setting.name, None)
        return await accepted(broker)

    return remove


def routes() -> list[web.RouteDef]:
    listed: list[web.RouteDef] = [
        web.delete(f"{NAMESPACE_PATH}/removeOffloadPolicies", _remove_of_namespace(_BY_NAME[OFFLOAD_POLICIES]))
    ]
    for setting in KEPT:
        if setting.namespace:
            path = f"{NAMESPACE_PATH}/{setting.namespace}"
            listed += [
                web.get(path, _get_of_namespace(setting)),
                web.route(setting.verbs[0], path, _set_of_namespace(setting)),
                web.delete(path, _remove_of_namespace(setting)),
            ]
        if setting.topic:
            path = f"{TOPIC_PATH}/{setting.topic}"
            listed += [
                web.get(path, _get_of_topic(setting)),
                web.route(setting.verbs[1], path, _set_of_topic(setting)),
                web.delete(path, _remove_of_topic(setting)),
            ]
    return listed


_BY_NAME = {setting.name: setting for setting in KEPT}
