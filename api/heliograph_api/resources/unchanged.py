"""Rules for fields that cannot be changed once a resource exists."""

from __future__ import annotations

from typing import Final

from .cel import Rule

_FOR_GOOD: Final = "cannot be changed; valid: the previous value, or a new resource"


def unchanged(field: str, within: str = "") -> Rule:
    """Return the rule that a field stays as it is; ``within`` is a path to it, such as ``.spec``."""
    return Rule(f"self{within}.{field} == oldSelf{within}.{field}", _FOR_GOOD, f"{within}.{field}")


def cluster_unchanged() -> Rule:
    """Return the rule that ``clusterRef`` stays once it is set."""
    condition = "!has(oldSelf.clusterRef) || (has(self.clusterRef) && self.clusterRef == oldSelf.clusterRef)"
    return Rule(condition, _FOR_GOOD, ".clusterRef")


def name_unchanged() -> Rule:
    """Return the rule, for a whole resource, that its name in the broker stays."""
    name = "(has({x}.spec.name) ? {x}.spec.name : {x}.metadata.name)"
    # Tenants may be without a spec.
    return Rule(f"{name.format(x='self')} == {name.format(x='oldSelf')}", _FOR_GOOD, ".spec.name")
