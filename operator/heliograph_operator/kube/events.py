"""Kubernetes Events, which ``kubectl describe`` shows below an object."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final, Literal

import structlog

from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import Body, Kind

from .client import Kube, KubeError

log = structlog.get_logger(__name__)

EVENT: Final = Kind("Event", "events", "v1")
#: The API server rejects a longer one.
_MAX_MESSAGE_LENGTH = 1024
#: Time (s) in which an Event about an object is not repeated.
_REPEAT_AFTER_S = 300.0


class Events:
    """Emits Events about objects, the same one at most once in five minutes."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        #: When (s, of the loop's clock) each was emitted in the last five minutes, oldest first.
        self._emitted: dict[tuple[str, str, str], float] = {}

    async def emit(
        self,
        body: Body,
        reason: str,
        message: str,
        kind: Literal["Normal", "Warning"] = "Normal",
        *,
        repeat: bool = False,
    ) -> None:
        """Emit an event; with ``repeat`` even if it was emitted before.

        An Event that cannot be created (its namespace is being deleted, say) is only logged.
        """
        metadata = body["metadata"]
        event_id = (metadata.get("uid", ""), reason, message)
        if self._was_emitted(event_id) and not repeat:
            return
        self._emitted.pop(event_id, None)
        self._emitted[event_id] = asyncio.get_running_loop().time()
        namespace = metadata.get("namespace", "default")
        text = message if len(message) <= _MAX_MESSAGE_LENGTH else f"{message[: _MAX_MESSAGE_LENGTH - 3]}..."
        at = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            # An Event's name is longer than that of its object, which may have the most characters allowed.
            "metadata": {"name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": body["apiVersion"],
                "kind": body["kind"],
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata.get("uid", ""),
                "resourceVersion": metadata.get("resourceVersion", ""),
            },
            "reason": reason,
            "message": text,
            "type": kind,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "source": {"component": "heliograph-operator"},
            "reportingComponent": "heliograph.dev/operator",
            "reportingInstance": self._identity,
        }
        log.info("event", kind=body["kind"], namespace=namespace, name=metadata["name"], reason=reason, message=text)
        try:
            await self._kube.create(EVENT, event)
        except KubeError as error:
            log.warning("could not create an event", reason=reason, error=str(error))

    def _was_emitted(self, event_id: tuple[str, str, str]) -> bool:
        """Forget what may be repeated; return whether this one may not."""
        since = asyncio.get_running_loop().time() - _REPEAT_AFTER_S
        while self._emitted and self._emitted[oldest := next(iter(self._emitted))] <= since:
            del self._emitted[oldest]
        return event_id in self._emitted
