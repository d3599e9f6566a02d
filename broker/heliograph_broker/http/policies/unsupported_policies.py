"""Policies of Pulsar that this broker does not support: reading returns unset, setting is refused.

A setting that nobody would heed is never taken silently: the refusal says why. The value a broker of this kind has
anyway may be set.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.context import BROKER, CONFIG, accepted, as_json, body_as, flag, namespace_of
from heliograph_broker.http.base.operations import JSON, Handler, Media, Parameter, Refusal, operation
from heliograph_broker.http.topics.admin_topics import TOPIC_PATH
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.broker.broker import Broker

from .policy_documents import DispatchRateDocument
from .policy_routes import APPLIED, NAMESPACE_PATH, policy_topic

_STORAGE = "the broker stores messages itself: there are no bookies"
_OFFLOAD = "offloading to other storage is not supported"
_REPLICATION = "there is only one cluster, so nothing is replicated"
_FILTERS = "the broker loads no entry filters"
_GROUPS = "brokers have no resource groups"
_PLACEMENT = "namespaces are not isolated from each other"
_SNAPSHOTS = "deduplication takes no snapshots by interval"
_METRICS = "topics' properties are not shown in metrics"
_PAUSE = "dispatching does not wait for the state of acknowledgements to be stored"
_SHADOW = "shadow topics are not supported"
_AUTO_UPDATE = "deprecated in favour of schemaCompatibilityStrategy: set that"


class Unsupported(msgspec.Struct, frozen=True):
    """One of them: its paths behind a namespace's and a topic's, what it shows, and why it cannot be set.

    ``shown`` is the value it has (None: 204), and may be set to; ``applied`` what a topic shows for it with
    ``applied=true``.
    """

    reason: str
    namespace: str = ""
    topic: str = ""
    verbs: tuple[str, ...] = ("POST",)
    shown: Any = None
    applied: Any = None
    removable: bool = True
    #: how the path goes on when something is set
    suffix: str = ""


_NO_RATE = DispatchRateDocument(0, 0)
UNSUPPORTED: Final = (
    Unsupported(_STORAGE, "persistence", "persistence"),
    Unsupported(_STORAGE, "persistence/bookieAffinity"),
    Unsupported(_OFFLOAD, "offloadPolicies", "offloadPolicies"),
    Unsupported(_OFFLOAD, "offloadThreshold", verbs=("PUT",), shown=-1, removable=False),
    Unsupported(_OFFLOAD, "offloadThresholdInSeconds", verbs=("PUT",), shown=-1, removable=False),
    Unsupported(_OFFLOAD, "offloadDeletionLagMs", verbs=("PUT",)),
    Unsupported(_REPLICATION, "replicatorDispatchRate", "replicatorDispatchRate", applied=_NO_RATE),
    Unsupported(_FILTERS, "entryFilters", "entryFilters", applied={"entryFilterNames": ""}),
    Unsupported(_GROUPS, "resourcegroup", suffix="/{resourcegroup}"),
    Unsupported(_PLACEMENT, "antiAffinity"),
    Unsupported(_SNAPSHOTS, "deduplicationSnapshotInterval", "deduplicationSnapshotInterval"),
    Unsupported(
        _PAUSE,
        "dispatcherPauseOnAckStatePersistent",
        "dispatcherPauseOnAckStatePersistent",
        shown=False,
        applied=False,
    ),
    Unsupported("there is no authorization of subscriptions", "subscriptionAuthMode", shown="None", removable=False),
    Unsupported(_METRICS, "allowedTopicPropertyKeysForMetrics"),
    Unsupported(_AUTO_UPDATE, "schemaAutoUpdateCompatibilityStrategy", verbs=("PUT",)),
    Unsupported(_SHADOW, topic="shadowTopics", verbs=("PUT",)),
)


def _kind_of(shown: Any) -> Any:
    """Return the type of a value for the API's description."""
    return Media((JSON,)) if isinstance(shown, str) else dict[str, Any] if isinstance(shown, dict) else type(shown)


def _answers(*shown: Any) -> dict[int, Any]:
    kinds = [_kind_of(value) for value in shown if value is not None]
    answers: dict[int, Any] = {200: kinds[0]} if kinds else {}
    return answers if None not in shown else {**answers, 204: None}


def _namespace_checked(request: web.Request) -> Broker:
    broker = request.app[BROKER]
    broker.directory.namespace(namespace_of(request))
    return broker


def _topic_checked(request: web.Request) -> Broker:
    policy_topic(request)
    return request.app[BROKER]


def _get(policy: Unsupported, path: str, *, of_topic: bool) -> Handler:
    checked = _topic_checked if of_topic else _namespace_checked
    query: tuple[Parameter, ...] = (APPLIED,) if of_topic else ()
    shapes = (policy.shown, policy.applied) if of_topic and policy.applied is not None else (policy.shown,)

    @operation(f"Get {path}: never set, as {policy.reason}.", query=query, answers=_answers(*shapes))
    async def get(request: web.Request) -> web.Response:
        checked(request)
        shown = policy.shown
        if of_topic and flag(request, "applied") and policy.applied is not None:
            shown = policy.applied
        return web.Response(status=204) if shown is None else as_json(shown)

    return get


def _set(policy: Unsupported, path: str, *, of_topic: bool) -> Handler:
    checked = _topic_checked if of_topic else _namespace_checked

    answers: dict[int, Any] = {412: Refusal} if policy.shown is None else {204: None, 412: Refusal}

    example = "" if policy.shown is None else msgspec.json.encode(policy.shown).decode()

    @operation(f"Set {path}: refused, as {policy.reason}.", body=Any, answers=answers, example=example)
    async def refuse(request: web.Request) -> web.Response:
        broker = checked(request)
        # Jackson leaves out nothing of these: what is asked for is what is compared.
        if policy.shown is not None and await body_as(request, Any) == policy.shown:
            return await accepted(broker)
        raise PreconditionFailed(f"{path} cannot be set: {policy.reason}")

    return refuse


def _remove(path: str, *, of_topic: bool) -> Handler:
    checked = _topic_checked if of_topic else _namespace_checked

    @operation(f"Remove {path}: has no effect, as it is never set.")
    async def remove(request: web.Request) -> web.Response:
        checked(request)
        return web.Response(status=204)

    return remove


# -- what does not fit the table -----------------------------------------------------------------------------------


@operation("Get the allowed clusters: those of the tenant.", answers={200: list[str]})
async def get_allowed_clusters(request: web.Request) -> web.Response:
    _namespace_checked(request)
    return as_json([])


@operation("Set the allowed clusters; valid: this one.", body=list[str], body_required=True)
async def set_allowed_clusters(request: web.Request) -> web.Response:
    broker = _namespace_checked(request)
    config: BrokerConfig = request.app[CONFIG]
    if any(cluster != config.cluster_name for cluster in await body_as(request, list[str]) or ()):
        raise PreconditionFailed(f"allowedClusters cannot be set: {_REPLICATION}")
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    listed: list[web.RouteDef] = [
        web.get(f"{NAMESPACE_PATH}/allowedClusters", get_allowed_clusters),
        web.post(f"{NAMESPACE_PATH}/allowedClusters", set_allowed_clusters),
        web.delete(f"{NAMESPACE_PATH}/removeOffloadPolicies", _remove("removeOffloadPolicies", of_topic=False)),
    ]
    for policy in UNSUPPORTED:
        for base, path in ((NAMESPACE_PATH, policy.namespace), (TOPIC_PATH, policy.topic)):
            if not path:
                continue
            of_topic = base == TOPIC_PATH
            listed.append(web.get(f"{base}/{path}", _get(policy, path, of_topic=of_topic)))
            listed += [
                web.route(verb, f"{base}/{path}{policy.suffix}", _set(policy, path, of_topic=of_topic))
                for verb in policy.verbs
            ]
            if policy.removable:
                listed.append(web.delete(f"{base}/{path}", _remove(path, of_topic=of_topic)))
    return listed
