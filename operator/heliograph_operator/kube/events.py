"""Kubernetes Events: what a person sees under ``kubectl describe``."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Final, Literal

import structlog

from heliograph_operator.objects.kinds import Body, Kind

from .client import Kube, KubeError

log = structlog.get_logger(__name__)

EVENT: Final = Kind("Event", "events", "v1")
#: The API server refuses more.
_LONGEST_MESSAGE = 1024
#: Time (s) in which the same is not said again of the same resource.
_SILENCE_S = 300.0


class Events:
    """Emits Events about resources, at most one of a kind and wording in five minutes."""

    def __init__(self, kube: Kube, identity: str) -> None:
        self._kube = kube
        self._identity = identity
        self._said: dict[tuple[str, str, str], float] = {}

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

        An Event that cannot be stored (its namespace is being deleted, say) is logged and left out.
        """
        metadata = body["metadata"]
        now = datetime.now(UTC)
        said = (metadata.get("uid", ""), reason, message)
        if not repeat and now.timestamp() - self._said.get(said, 0.0) < _SILENCE_S:
            return
        self._said = {key: at for key, at in self._said.items() if now.timestamp() - at < _SILENCE_S}
        self._said[said] = now.timestamp()
        namespace = metadata.get("namespace", "default")
        text = message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}..."
        at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            # An object's name may have 253 characters; its Events' names have to end in time.
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
            log.warning("an event could not be stored", reason=reason, error=str(error))
