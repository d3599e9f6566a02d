"""Watches all kinds with kopf, caches their objects, and enqueues the resources that are affected.

It also passes on what watches tell of the objects that resources own.
Nothing here waits or writes, and kopf stores nothing in the resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import kopf
import structlog

from heliograph_operator.decide.owned_objects import resources_of
from heliograph_operator.kube.client import PAGE, credentials
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import (
    BROKER_CONNECTION,
    CLUSTER_KINDS,
    GROUP,
    KINDS,
    TOPIC,
    VERSION,
    Body,
    Key,
    Kind,
    is_deleted,
    is_managed,
    is_paused,
    key_of,
    own_annotations,
)
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.objects.subscriptions import named_subscriptions
from heliograph_operator.objects.targets import claim_of, parent_of

from .owned_watch import OwnedWatch
from .work_queue import WorkQueue

log = structlog.get_logger(__name__)


class Watcher:
    """Updates the cache from watches and listings, and enqueues."""

    def __init__(self, cache: ResourceCache, queue: WorkQueue[Key]) -> None:
        self._cache = cache
        self._queue = queue
        # Responses to the operator's own writes update the cache too, and sooner than the watch does.
        cache.listeners.append(self._updated)
        # The owner of an object, and the resources that wait for it, have to know of every change.
        cache.ownership_listeners.append(self._concerned)
        #: Called with the key of each deleted object.
        self.on_deleted: list[Callable[[Key], None]] = []

    def seen(self, body: Body) -> None:
        """Take in an object of a watch or a listing: new, changed, or as before."""
        key = key_of(body)
        if not self._cache.is_newer(key, body):
            return
        before = self._cache.put(body)
        if before is None or _reconcile_inputs(before) != _reconcile_inputs(body):
            self._queue.add(key)

    def deleted(self, key: Key, uid: str = "") -> None:
        """Take in that an object (of this uid, if it is known) is gone, and enqueue those that waited for that."""
        known = self._cache.get(key)
        if uid and known is not None and known["metadata"]["uid"] != uid:
            # It was recreated meanwhile.
            return
        before = self._cache.remove(key)
        self._queue.add(key)
        if before is not None:
            self._enqueue_dependents(key, before)
        for callback in self.on_deleted:
            callback(key)

    def _concerned(self, keys: set[Key]) -> None:
        for key in sorted(keys):
            self._queue.add(key)

    def _updated(self, before: Body | None, body: Body) -> None:
        key = key_of(body)
        if before is not None and _spec_version(before) != _spec_version(body):
            # The response to the operator's own write may be the first to show it; to the watch it is no news then.
            self._queue.add(key)
        if before is None or _exported_state(before) != _exported_state(body):
            self._enqueue_dependents(key, body)

    def _enqueue_dependents(self, key: Key, body: Body) -> None:
        if key.kind in CLUSTER_KINDS:
            for other in self._cache.named_by(key):
                self._queue.add(other)
            return
        for child in self._cache.children(key):
            self._queue.add(child)
        if key.kind == TOPIC.name and (claim := claim_of(self._cache, body)) is not None:
            # Subscriptions may refer to it by its name in the broker.
            for child in self._cache.ownership.below(claim):
                self._queue.add(child)
        for owner in resources_of(body):
            # A schedule waits for its Backups.
            if self._cache.get(owner) is not None:
                self._queue.add(owner)
        # A deleted parent waits for its children.
        parent = parent_of(body)
        above = self._cache.get(parent) if parent is not None else None
        if parent is not None and above is not None and is_deleted(above):
            self._queue.add(parent)


def _reconcile_inputs(body: Body) -> Any:
    """Return all that a reconcile depends on: everything but the API server's bookkeeping."""
    return _spec_version(body), body["metadata"].get("finalizers"), own_annotations(body), body.get("status")


def _spec_version(body: Body) -> Any:
    """Return the fields the operator itself never writes."""
    metadata = body["metadata"]
    generation, deleted = metadata.get("generation"), metadata.get("deletionTimestamp")
    return metadata.get("uid"), generation, deleted, is_managed(body), is_paused(body)


def _exported_state(body: Body) -> Any:
    """Return the fields other resources depend on: deletion, names, readiness, phase, endpoints and consents."""
    metadata, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
    found = condition(status, READY)
    ready = found.get("status", "")
    # Its resources say why it has not reached its brokers.
    why = (found.get("reason"), found.get("message")) if body["kind"] == BROKER_CONNECTION.name else ()
    stated = spec.get("name"), spec.get("consents"), spec.get("archives")
    named = named_subscriptions(body) if body["kind"] == TOPIC.name else ()
    reported = ready, why, status.get("phase"), status.get("endpoints")
    return metadata.get("uid"), metadata.get("deletionTimestamp"), stated, named, reported


def register(watcher: Watcher, owned: OwnedWatch, kinds: Iterable[Kind]) -> kopf.OperatorRegistry:
    """Return a registry with the login and one handler for each kind: of resources, and ``kinds`` of their objects."""
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return credentials()

    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:
        raw = dict(body)
        if type == "DELETED":
            watcher.deleted(key_of(raw), raw["metadata"]["uid"])
        else:
            watcher.seen(raw)

    kopf.on.login(registry=registry, id="login")(login)
    for kind in KINDS.values():
        kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=f"watch-{kind.plural}")(event)

    def of_kind(kind: Kind) -> Callable[..., Any]:
        async def event(type: str | None, body: kopf.Body, **_: Any) -> None:
            owned.seen(kind, dict(body), deleted=type == "DELETED")

        return event

    for kind in kinds:
        kopf.on.event(*_names_of(kind), registry=registry, id=f"watch-{kind.plural}")(of_kind(kind))
    return registry


def _names_of(kind: Kind) -> tuple[str, str, str]:
    """Return group, version and plural of a kind."""
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural


def kopf_settings(selectors: Mapping[Kind, str]) -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no Events or annotations of its own, watches that end in time."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.chunk_size = PAGE
    for kind, selector in selectors.items():
        settings.watching.label_selectors[_names_of(kind)] = selector
    # A connection that died silently is noticed when it ends, at the latest.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    return settings
