"""Permissions of roles that no User has: those of identities from outside, stated by the place they are for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.policies.grants import RESERVED, Actions, AuthPolicies
from heliograph_api.values.names import check_local
from heliograph_api.values.quoting import quoted

from .authentication_spec import MAX_ROLE
from .cel import InSchema, Rule
from .fields import UNFIT, Contradiction, Model, SubscriptionText, Unique
from .patterns import matching

MAX_PERMISSIONS: Final = 100
"""The most permissions of a resource."""
_MAX_TOPICS: Final = 512
_TOPICS: Final = "[^/\\\\s*]+[*]"
_NO_ROLE: Final = "not a role: it begins or ends with white space, or has characters that cannot be printed"
_IS_RESERVED: Final = f"roles that begin with {RESERVED} are Heliograph's own; valid: another role"
_NO_PREFIX: Final = (
    "not the beginning of topics' names; valid: some characters and a * at the end, as in orders-*; a single topic's"
    " permissions go into its Topic"
)
_NO_CONSUMER: Final = "are for those that consume; valid: leave it out, or consume among actions"


def _role(text: str) -> str:
    check_local("role", text)
    if text.startswith(RESERVED):
        raise ValueError(f"{quoted(text)}: {_IS_RESERVED}")
    return text


class TopicPermissionSpec(Model):
    """Actions that a role may take."""

    role: Annotated[
        str,
        AfterValidator(_role),
        Field(max_length=MAX_ROLE),
        InSchema({"minLength": 1}),
        Rule(f"!self.matches('{UNFIT}')", _NO_ROLE),
        Rule(f"!self.startsWith('{RESERVED}')", _IS_RESERVED),
    ]
    """The role, as clients prove it. Roles of Users are left to these."""
    actions: Annotated[
        Unique[Literal["produce", "consume", "admin"]],
        Field(min_length=1, max_length=3),
        Rule("size(self) > 0", "names no action; valid: produce, consume, admin"),
    ]
    """Actions: produce, consume, or admin for everything."""


class NamespacePermissionSpec(TopicPermissionSpec):
    """Actions that a role may take on a namespace, or on some of its topics."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.subscriptions) || size(self.subscriptions) == 0 || 'consume' in self.actions",
            _NO_CONSUMER,
            ".subscriptions",
        ),
    )

    topics: Annotated[str, *matching(_TOPICS, _NO_PREFIX, _MAX_TOPICS)] | None = None
    """Persistent topics whose own names begin so: orders-*. Default: all topics of the namespace."""
    subscriptions: Annotated[Unique[SubscriptionText], Field(max_length=20)] = Field(default_factory=list)
    """Subscriptions of the namespace that only this role, and others that name them, may use; default: none. A role
    that may consume may use all others, too."""

    @model_validator(mode="after")
    def _consumes_with_subscriptions(self) -> Self:
        if self.subscriptions and "consume" not in self.actions:
            raise Contradiction([("subscriptions", _NO_CONSUMER)])
        return self


def topic_actions(permissions: Iterable[TopicPermissionSpec]) -> Actions:
    """Return the actions by role; those of a role that is there twice together."""
    found: Actions = {}
    for each in permissions:
        found[each.role] = list(dict.fromkeys([*found.get(each.role, []), *each.actions]))
    return found


def namespace_grants(permissions: Iterable[NamespacePermissionSpec], namespace: str) -> AuthPolicies:
    """Return the grants that permissions state for a namespace (``tenant/namespace``)."""
    by_place: dict[str, list[TopicPermissionSpec]] = {}
    found = AuthPolicies()
    for each in permissions:
        by_place.setdefault(each.topics or "", []).append(each)
        for name in each.subscriptions:
            roles = found.subscription_auth_roles.setdefault(name, [])
            if each.role not in roles:
                roles.append(each.role)
    for topics, stated in by_place.items():
        if topics:
            found.destination_auth[f"persistent://{namespace}/{topics}"] = topic_actions(stated)
        else:
            found.namespace_auth = topic_actions(stated)
    return found
