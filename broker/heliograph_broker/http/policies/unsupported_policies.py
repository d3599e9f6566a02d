"""Policies of Pulsar that this broker refuses, because keeping them would promise what it does not do.

Messages would have to be filtered or copied; a setting that says so is never taken silently.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from heliograph_broker.http.base.context import BROKER, accepted, as_json, body_as, flag, namespace_of, required_body
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.security.authorization.needs import Need

from .policy_routes import APPLIED, NAMESPACE_PATH, policy_topic

REFUSED = ("entryFilters", "shadowTopics", "migration")
"""The ends of their paths."""


class EntryFiltersDocument(msgspec.Struct, rename="camel"):
    """Pulsar's EntryFilters: the names of filters, separated by commas."""

    entry_filter_names: str = ""


def _check_namespace(request: web.Request) -> None:
    request.app[BROKER].directory.namespace(namespace_of(request))


async def _refuse_filters(request: web.Request) -> web.Response:
    document = await body_as(request, EntryFiltersDocument)
    names = [name.strip() for name in document.entry_filter_names.split(",")] if document is not None else []
    if not any(names):
        raise ApiError(400, "entryFilterNames can't be empty. To remove entry filters use the remove method.")
    # The broker loads none, so none is found.
    raise ApiError(400, f"Entry filter '{next(filter(None, names))}' not found")


@operation("Get the namespace's entry filters: none, as the broker loads none.", answers={204: None}, needs=Need.ADMIN)
async def get_filters(request: web.Request) -> web.Response:
    _check_namespace(request)
    return web.Response(status=204)


@operation(
    "Set entry filters: refused, as the broker loads none.",
    body=EntryFiltersDocument,
    answers={400: Refusal},
    needs=Need.ADMIN,
)
async def set_filters(request: web.Request) -> web.Response:
    _check_namespace(request)
    return await _refuse_filters(request)


@operation("Remove the namespace's entry filters: there are none.", needs=Need.ADMIN)
async def remove_filters(request: web.Request) -> web.Response:
    _check_namespace(request)
    return await accepted(request.app[BROKER])


@operation(
    "Get the topic's entry filters: none, as the broker loads none.",
    query=(APPLIED,),
    answers={200: EntryFiltersDocument, 204: None},
    needs=Need.ADMIN,
)
async def get_topic_filters(request: web.Request) -> web.Response:
    policy_topic(request)
    return as_json(EntryFiltersDocument()) if flag(request, "applied") else web.Response(status=204)


@operation(
    "Set entry filters: refused, as the broker loads none.",
    body=EntryFiltersDocument,
    answers={400: Refusal},
    needs=Need.ADMIN,
)
async def set_topic_filters(request: web.Request) -> web.Response:
    policy_topic(request)
    return await _refuse_filters(request)


@operation("Remove what is never set: there is nothing to remove.", needs=Need.ADMIN)
async def remove_nothing(request: web.Request) -> web.Response:
    policy_topic(request)
    return web.Response(status=204)


@operation(
    "Get the shadow topics: none, as topics are not copied.",
    query=(APPLIED,),
    answers={200: list[str]},
    needs=Need.ADMIN,
)
async def get_shadows(request: web.Request) -> web.Response:
    policy_topic(request)
    return as_json([])


@operation(
    "Set shadow topics: refused, as topics are not copied.", body=list[str], answers={412: Refusal}, needs=Need.ADMIN
)
async def set_shadows(request: web.Request) -> web.Response:
    policy_topic(request)
    if not await body_as(request, list[str]):
        raise PreconditionFailed("Cannot specify empty shadow topics, please use remove command instead.")
    raise PreconditionFailed("shadowTopics cannot be set: a topic's messages are not copied to others")


@operation(
    "Mark the namespace as moved to another cluster: refused, as there is none.",
    body=bool,
    body_required=True,
    example="false",
    answers={204: None, 412: Refusal},
    needs=Need.SUPERUSER,
)
async def set_migration(request: web.Request) -> web.Response:
    _check_namespace(request)
    if await required_body(request, bool, "false"):
        raise PreconditionFailed("migration cannot be set: there is no other cluster to move to")
    return await accepted(request.app[BROKER])


def routes() -> list[web.RouteDef]:
    listed: list[Any] = [
        web.get(f"{NAMESPACE_PATH}/entryFilters", get_filters),
        web.post(f"{NAMESPACE_PATH}/entryFilters", set_filters),
        web.delete(f"{NAMESPACE_PATH}/entryFilters", remove_filters),
        web.get(f"{TOPIC_PATH}/entryFilters", get_topic_filters),
        web.post(f"{TOPIC_PATH}/entryFilters", set_topic_filters),
        web.delete(f"{TOPIC_PATH}/entryFilters", remove_nothing),
        web.get(f"{TOPIC_PATH}/shadowTopics", get_shadows),
        web.put(f"{TOPIC_PATH}/shadowTopics", set_shadows),
        web.delete(f"{TOPIC_PATH}/shadowTopics", remove_nothing),
        web.post(f"{NAMESPACE_PATH}/migration", set_migration),
    ]
    return listed
