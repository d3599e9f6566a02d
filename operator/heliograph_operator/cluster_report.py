"""The status of a BrokerCluster, written only if a person would see a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from heliograph_broker.resources.broker_state import BrokerState

from .conditions import READY, Verdict, condition, with_verdicts
from .controller import Context
from .figures import Figures, totals_of, worth_writing
from .kinds import BROKER_CLUSTER, Body, key_of
from .kube import KubeRefused
from .memory import Memory
from .reports import merge_patch


def figures_of_broker(state: BrokerState) -> Figures:
    """Return the figures of all tenants together."""
    totals = totals_of(state)
    tenants = [totals[name] for name in state.tenants]
    return Figures(
        messages=sum(each.messages for each in tenants),
        bytes=sum(each.bytes for each in tenants),
        oldest_age_ms=max((each.oldest_age_ms for each in tenants), default=-1),
        storage_bytes=sum(each.storage_bytes for each in tenants),
        topics=sum(each.topics or 0 for each in tenants),
    )


async def report(
    context: Context,
    memory: Memory,
    body: Body,
    verdicts: Sequence[Verdict],
    fields: Mapping[str, Any] | None = None,
    state: BrokerState | None = None,
) -> None:
    """Write the status if anything but small movements of figures changed. A field of None is taken away."""
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
    if state is not None:
        figures, now = figures_of_broker(state), asyncio.get_running_loop().time()
        if worth_writing(memory.written, figures, now - memory.written_at):
            memory.written, memory.written_at = figures, now
            after |= figures.shown()
        after["tenants"] = len(state.tenants)
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
        memory.written = None
        raise
    context.store.put(written)
    was, now_is = condition(before, READY), condition(after, READY)
    if (was.get("status"), was.get("reason")) != (now_is.get("status"), now_is.get("reason")):
        warn = now_is["status"] == "False" and now_is["reason"] not in ("PodMissing", "RollingOut", "Stopped")
        await context.events.emit(body, now_is["reason"], now_is["message"], "Warning" if warn else "Normal")
