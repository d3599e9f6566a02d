"""Explains one resource: what it is in the broker, each of its conditions with what to do, and what happened to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from heliograph_operator.objects.kinds import (
    BROKER_CONNECTION,
    annotation,
    cluster_key,
    full_name,
    is_adopted,
    is_held,
    is_managed,
    is_paused,
    key_of,
)
from heliograph_operator.objects.reason_guide import guide


def explanation(body: dict[str, Any], events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines about a resource and its events, oldest first."""
    _, namespace, name = key_of(body)
    status = body.get("status") or {}
    yield f"{full_name(body['kind'])} {name} in the Kubernetes namespace {namespace}"
    yield from (f"  {line}" for line in _place(body, status))
    yield ""
    conditions = status.get("conditions") or ()
    if not conditions:
        logs = "kubectl heliograph logs --operator -n OPERATOR-NAMESPACE"
        yield f"The operator has not reported anything yet: see `{logs}`."
    for condition in conditions:
        yield f"{condition['type']} is {condition['status']}: {condition['reason']}"
        yield from _about(body["kind"], condition)
    if events:
        yield ""
        yield "Events:"
    for event in events:
        count = f" ({event['count']} times)" if event.get("count", 1) > 1 else ""
        when = event.get("lastTimestamp") or event.get("eventTime") or "-"
        yield f"  {when} {event['reason']}: {event.get('message', '')}{count}"


def _place(body: dict[str, Any], status: dict[str, Any]) -> Iterator[str]:
    if annotation(body, "broker-object"):
        yield f"object in the broker: {annotation(body, 'broker-object')}"
    if note := annotation(body, "cluster"):
        brokers = cluster_key(body, note)
        yield f"{brokers.kind}: {note.removeprefix(f'{BROKER_CONNECTION.name}:')}"
    if is_adopted(body):
        yield "adopted: the object existed before the resource, and outlives it unless deletionPolicy says otherwise"
    if is_paused(body):
        yield "paused: nothing is changed until the annotation heliograph.dev/paused is removed"
    if not is_managed(body):
        yield "not managed: nothing is changed until the annotation heliograph.dev/managed is removed"
    deleted = body["metadata"].get("deletionTimestamp")
    if deleted:
        held = ", and waits for the operator" if is_held(body) else ""
        yield f"its deletion was requested at {deleted}{held}"
    generation, observed = body["metadata"].get("generation"), status.get("observedGeneration")
    if observed is not None and observed != generation:
        yield f"the status is about generation {observed} of the spec; the spec is at generation {generation}"


def _about(kind: str, condition: dict[str, Any]) -> Iterator[str]:
    if condition.get("message"):
        yield f"  {condition['message']}"
    found = guide(kind, condition["reason"])
    if found is not None:
        yield f"  It means: {found.means}."
        if found.advice:
            yield f"  What to do: {found.advice}."
