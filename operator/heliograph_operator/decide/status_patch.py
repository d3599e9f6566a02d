"""The status that follows from the one before, and the patch between the two."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from heliograph_operator.objects.conditions import Verdict, with_verdicts

from .resource_stats import STATUS_FIELDS, ResourceStats


def status_after(
    before: Mapping[str, Any],
    fields: Mapping[str, Any],
    verdicts: Sequence[Verdict],
    generation: int,
    now: datetime,
    *,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """Return the status that follows ``before``: a field of None is removed, as are conditions of types ``without``."""
    known = [each for each in before.get("conditions") or () if each.get("type") not in without]
    after = {
        **before,
        **fields,
        "observedGeneration": generation,
        "conditions": with_verdicts(known, verdicts, generation, now),
    }
    return {name: value for name, value in after.items() if value is not None}


def policy_fields(
    before: Mapping[str, Any], name: str, stats: ResourceStats | None, archive: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the status fields of a Tenant, Namespace or Topic; without ``stats``, those in ``before`` stay.

    ``archive`` are the fields of the archive without its lag, which is one of the statistics; None: no archive.
    """
    lag = (before.get("archive") or {}).get("lag")
    fields: dict[str, Any] = {}
    if stats is not None:
        fields = {**dict.fromkeys(STATUS_FIELDS), **stats.shown()}
        lag = (fields.get("archive") or {}).get("lag")
    fields["archive"] = None
    if archive is not None:
        fields["archive"] = {**archive, "lag": lag} if lag is not None else dict(archive)
    if name:
        fields["name"] = name
    return fields


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch from one to the other; lists are replaced whole."""
    patch: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    for name, value in after.items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            if inner := merge_patch(was, value):
                patch[name] = inner
        elif name not in before or was != value:
            patch[name] = value
    return patch
