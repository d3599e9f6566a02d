"""The status of a BrokerCluster, written only when it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from heliograph_operator.act.controller import Context
from heliograph_operator.act.status_report import merge_patch
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import READY, Verdict, condition, with_verdicts
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Body, key_of


async def report(
    context: Context,
    body: Body,
    verdicts: Sequence[Verdict],
    fields: Mapping[str, Any] | None = None,
) -> None:
    """Write the status if it is not the present one. A field of None is taken away."""
    metadata = body["metadata"]
    # What the API server said last, which may be newer than what this look began with.
    body = context.store.get(key_of(body)) or body
    before: dict[str, Any] = dict(body.get("status") or {})
    after: dict[str, Any] = {
        **before,
        **(fields or {}),
        "observedGeneration": metadata.get("generation", 0),
        "conditions": with_verdicts(
            before.get("conditions") or (), verdicts, metadata.get("generation", 0), datetime.now(UTC)
        ),
    }
    patch = merge_patch(before, {name: value for name, value in after.items() if value is not None})
    if not patch:
        return
    try:
        written = await context.kube.patch(
            BROKER_CLUSTER, metadata["namespace"], metadata["name"], {"status": patch}, subresource="status"
        )
    except KubeRefused as error:
        if error.status == 404:
            return
        raise
    context.store.put(written)
    was, now_is = condition(before, READY), condition(after, READY)
    if (was.get("status"), was.get("reason")) != (now_is.get("status"), now_is.get("reason")):
        warn = now_is["status"] == "False" and now_is["reason"] not in ("PodMissing", "RollingOut", "Stopped")
        await context.events.emit(body, now_is["reason"], now_is["message"], "Warning" if warn else "Normal")
