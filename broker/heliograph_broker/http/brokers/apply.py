"""POST /heliograph/v1/apply: manifests as a file would hold them, applied to the running broker."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from aiohttp import web
from heliograph_api.values.names import SubscriptionName, TopicName

from heliograph_broker.http.base.context import BROKER, as_json, committed, grown
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Media, operation
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.messaging.log.record_set import RecordSet
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.usecases.apply_results import Applied


class Manifest(msgspec.Struct, rename="camel"):
    """One manifest as kubectl takes it; a body may hold several, as YAML documents."""

    api_version: Literal["heliograph.dev/v1alpha1"]
    kind: Literal["BrokerCluster", "Tenant", "Namespace", "Topic", "Subscription"]
    metadata: dict[str, Any]
    spec: dict[str, Any] = {}


class ApplyAnswer(msgspec.Struct):
    """The actions per resource, in the order of application."""

    results: list[Applied]


@operation(
    "Create and configure everything that manifests describe, or nothing.",
    body=Media(("application/yaml",), Manifest),
    body_required=True,
    answers={200: ApplyAnswer},
    example='{"apiVersion": "heliograph.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "acme"}, "spec": {}}',
    needs=Need.SUPERUSER,
)
async def apply(request: web.Request) -> web.Response:
    """Answer with the result of each resource, once durable; nothing is applied if anything is wrong."""
    # The models of resources take long to import, and most brokers are never asked for them; in a thread, so that
    # traffic goes on meanwhile.
    core = await asyncio.to_thread(importlib.import_module, "heliograph_broker.usecases.apply")
    from heliograph_api.manifests.manifest_error import ManifestError
    from heliograph_api.manifests.manifest_reader import parse

    broker = request.app[BROKER]
    body = await request.read()
    try:
        resources = parse(body.decode(), "request body")
    except UnicodeDecodeError as error:
        raise ApiError(400, f"request body: not UTF-8: {error}") from error
    except ManifestError as error:
        raise ApiError(422, str(error)) from error
    applied: list[Applied] = core.apply_resources(broker, resources)
    for each in applied:
        if each.kind == "Topic":
            await grown(broker, TopicName.parse(each.name))
    # Resources that were unchanged wait too: they may not be durable yet.
    await committed(broker, [broker.records, *_sets(broker, applied)])
    return as_json(ApplyAnswer(applied))


def _sets(broker: Broker, applied: list[Applied]) -> Iterator[RecordSet]:
    """Yield the sets of records of the topics that were applied, or whose subscriptions were."""
    names = {TopicName.parse(each.name) for each in applied if each.kind == "Topic"}
    names |= {SubscriptionName.parse(each.name).topic for each in applied if each.kind == "Subscription"}
    for name in sorted(names, key=str):
        for concrete in broker.directory.concrete_names(name):
            topic = broker.directory.topics.get(str(concrete))
            if topic is not None and topic.persistent:
                yield topic.records


def routes() -> list[web.RouteDef]:
    return [web.post("/heliograph/v1/apply", apply)]
