"""Texts on an object that existed before its resource: the changes that it gets, and the settings it would lose."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph_api.resources.model import OfBroker

from heliograph_operator.objects.conditions import POLICIES_APPLIED, condition
from heliograph_operator.objects.kinds import Body, is_adopted, is_held

from .broker_differences import Difference


def was_never_applied(body: Body) -> bool:
    """Whether a resource is held and could not be applied ever since: what exists by its name is not its own.

    One that an operator was about to report on when it was killed does not count.
    """
    status = body.get("status") or {}
    refused = condition(status, POLICIES_APPLIED).get("status") == "False"
    return is_held(body) and not is_adopted(body) and "name" not in status and refused


def is_somebody_elses(body: Body, found: Sequence[Difference]) -> bool:
    """Whether an object that exists was created by somebody else after its resource was held, by its differences.

    The operator applies all of a resource at once: what it created itself has none.
    """
    unreported = is_held(body) and not is_adopted(body) and "name" not in (body.get("status") or {})
    return was_never_applied(body) or (unreported and bool(found))


def unnamed(resource: OfBroker, name: str, found: Sequence[Difference]) -> str:
    """Return why an existing object is not changed: it has settings that the resource does not name; empty if it may.

    All differences are shown, so that a person sees what a confirmation does.
    """
    lost = [each for each in found if each.removes]
    if not lost or resource.spec.adoption_policy == "Replace":
        return ""
    message = (
        f"{name} existed before this resource and has settings that it does not name:"
        f" {'; '.join(f'{each.field} {each.was}' for each in lost)};"
        " valid: add them to the spec, or remove them with spec.adoptionPolicy: Replace"
    )
    others = [str(each) for each in found if not each.removes]
    return f"{message}. It would change: {'; '.join(others)}" if others else message


def adoption_message(resource: OfBroker, name: str, found: Sequence[Difference]) -> str:
    """Return what becomes of an object that existed before its resource."""
    stated = resource.spec.deletion_policy
    deletion = f"is {stated}" if stated else "is not set: it stays when the resource is deleted"
    changes = "; ".join(map(str, found)) or "none"
    return f"{name} existed before this resource; changes: {changes}; spec.deletionPolicy {deletion}"
