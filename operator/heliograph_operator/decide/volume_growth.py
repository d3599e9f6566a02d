"""Follows the growth of volumes to its end: by the capacity and the conditions of their claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from heliograph_operator.objects.kinds import Body

from .cluster_status import ClusterReason, Problem
from .quantity import bytes_of

#: Conditions of a claim, most telling first; the first two end the attempt until somebody helps.
_ERRORS: Final = ("ControllerResizeError", "NodeResizeError")
_STEPS: Final = ("FileSystemResizePending", "Resizing")
#: Ends of ``status.allocatedResourceStatuses.storage`` that say the same as an error.
_FAILED: Final = ("Infeasible", "Failed")


def requested(claim: Body) -> str:
    """Return the size that a claim asks for."""
    return str(claim["spec"]["resources"]["requests"]["storage"])


def growth_of(claims: Sequence[Body]) -> Problem | None:
    """Return why volumes do not have the size that their claims ask for yet; None if they all have.

    A volume that could not grow comes before those that still do. A claim without a volume has no capacity, and does
    not count.
    """
    growing, failed = [], []
    for claim in sorted(claims, key=lambda claim: str(claim["metadata"]["name"])):
        status: Mapping[str, Any] = claim.get("status") or {}
        capacity = (status.get("capacity") or {}).get("storage")
        if capacity is None or bytes_of(str(capacity)) >= bytes_of(requested(claim)):
            continue
        text = f"volume {claim['metadata']['name']} has {capacity} of {requested(claim)}"
        error = _condition(status, _ERRORS)
        resize = str((status.get("allocatedResourceStatuses") or {}).get("storage") or "")
        if error or resize.endswith(_FAILED):
            failed.append(f"{text}: {error or resize}")
        else:
            step = _condition(status, _STEPS) or resize
            growing.append(f"{text}: {step}" if step else text)
    if failed:
        return ClusterReason.VOLUME_GROWTH_FAILED, "; ".join(failed)
    return (ClusterReason.VOLUMES_GROWING, "; ".join(growing)) if growing else None


def _condition(status: Mapping[str, Any], types: Sequence[str]) -> str:
    """Return the first condition of these types that is true, with its message."""
    there = {each.get("type"): each for each in status.get("conditions") or () if each.get("status") == "True"}
    for type_ in types:
        if type_ in there:
            message = there[type_].get("message")
            return f"{type_}: {message}" if message else type_
    return ""
