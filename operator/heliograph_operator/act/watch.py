"""Kopf's part: it watches the four kinds; whatever it sees goes into the store, and whom it concerns into the queue.

Nothing here waits or writes, and kopf keeps no notes of its own on the resources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kopf
import structlog

from heliograph_operator.kube.client import credentials
from heliograph_operator.objects.kinds import (
    API_VERSION,
    GROUP,
    KINDS,
    VERSION,
    Body,
    Key,
    is_deleted,
    is_managed,
    is_paused,
    key_of,
)
from heliograph_operator.objects.resource_cache import Store, parent_of

from .work_queue import WorkQueue

log = structlog.get_logger(__name__)


class Watcher:
    """Takes in what is seen of the resources."""

    def __init__(self, store: Store, queue: WorkQueue[Key]) -> None:
        self._store = store
        self._queue = queue
        # Answers to the operator's own writes tell something new as well, and sooner than the watch does.
        store.listeners.append(self._learnt)
        #: Called with a key that is gone.
        self.gone: list[Callable[[Key], None]] = []

    def seen(self, body: Body) -> None:
        """An object is there, new or changed or as before."""
        if not self._store.is_news(body):
            return
        key = key_of(body)
        before = self._store.put(body)
        if before is None or _asks(before) != _asks(body):
            self._queue.add(key)

    def _learnt(self, before: Body | None, body: Body) -> None:
        if before is not None and _wishes(before) != _wishes(body):
            # The answer to a write of the operator's own may be what tells it first; to the watch it is no news then.
            self._queue.add(key_of(body))
        if before is None or _offers(before) != _offers(body):
            self._tell_others(key_of(body), body)

    def vanished(self, key: Key, uid: str = "") -> None:
        """An object is gone (that of this uid, if it is known): those it stood in the way of go on."""
        known = self._store.get(key)
        if uid and known is not None and known["metadata"]["uid"] != uid:
            # There is another one of this name by now.
            return
        rivals = self._store.rivals(key)
        before = self._store.remove(key)
        self._queue.add(key)
        for rival in rivals:
            self._queue.add(rival)
        if before is not None:
            self._tell_others(key, before)
        for callback in self.gone:
            callback(key)

    def _tell_others(self, key: Key, body: Body) -> None:
        if key.kind == "BrokerCluster":
            for other in self._store.keys(namespace=key.namespace):
                if other != key:
                    self._queue.add(other)
            return
        for child in self._store.children(key):
            self._queue.add(child)
        # A parent that waits for its children's end.
        parent = parent_of(body)
        above = self._store.get(parent) if parent is not None else None
        if parent is not None and above is not None and is_deleted(above):
            self._queue.add(parent)


def _asks(body: Body) -> Any:
    """What of an object changes what is to be done: all but the bookkeeping of the API server."""
    metadata = body["metadata"]
    own = {name: text for name, text in (metadata.get("annotations") or {}).items() if name.startswith(f"{GROUP}/")}
    return _wishes(body), metadata.get("finalizers"), own, body.get("status")


def _wishes(body: Body) -> Any:
    """What of an object only others change."""
    metadata = body["metadata"]
    generation, deleted = metadata.get("generation"), metadata.get("deletionTimestamp")
    return metadata.get("uid"), generation, deleted, is_managed(body), is_paused(body)


def _offers(body: Body) -> Any:
    """What of an object others go by: whether it stays, what it is called, and whether the broker has it."""
    metadata, status, spec = body["metadata"], body.get("status") or {}, body.get("spec") or {}
    ready = next((each.get("status") for each in status.get("conditions") or () if each.get("type") == "Ready"), "")
    return metadata.get("uid"), metadata.get("deletionTimestamp"), spec.get("name"), ready, status.get("endpoints")


def register(watcher: Watcher) -> kopf.OperatorRegistry:
    """Return a registry with the login and one handler for each kind."""
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        return credentials()

    async def event(type: str | None, body: kopf.Body, **_: Any) -> None:
        raw = dict(body)
        if type == "DELETED":
            watcher.vanished(key_of(raw), raw["metadata"]["uid"])
        else:
            watcher.seen(raw)

    kopf.on.login(registry=registry, id="login")(login)
    for kind in KINDS.values():
        kopf.on.event(GROUP, VERSION, kind.plural, registry=registry, id=f"watch-{kind.plural}")(event)
    return registry


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no events and annotations of its own, watches that end in time."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    # A connection that died silently is noticed by its end at the latest.
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.persistence.finalizer = f"{GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    return settings


__all__ = ["API_VERSION", "Watcher", "kopf_settings", "register"]
