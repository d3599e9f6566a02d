"""Decides whether a client may do what it wants to, and names the rule that decided.

Everything that no rule allows is denied. The rules, in their order: superusers may do everything; administrators of
a tenant, everything below it; other roles, what is granted to them. A decision never depends on whether the object
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from heliograph_api.policies.grants import ADMINISTRATION

from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.topic.directory import Directory
from heliograph_broker.security.identity import Identity

from .grants import NamespaceGrants
from .needs import EVERY_SUBSCRIPTION, Decision, Need, Resource

_ACTIONS: Final[dict[Need, tuple[str, ...]]] = {
    Need.LOOKUP: ("produce", "consume", ADMINISTRATION),
    Need.PRODUCE: ("produce", ADMINISTRATION),
    Need.CONSUME: ("consume", ADMINISTRATION),
    Need.ADMIN: (ADMINISTRATION,),
}
"""The actions of a grant each of which meets a need."""

_WANTED: Final[dict[Need, str]] = {
    Need.LOOKUP: "produce or consume",
    Need.PRODUCE: "produce",
    Need.CONSUME: "consume",
    Need.ADMIN: "administration",
}


def _nothing(role: str) -> None:
    """Nobody counts denials."""


class Authorizer:
    """See the module. A change of a tenant or a namespace takes effect with the next decision."""

    __slots__ = (
        "_admins",
        "_backups",
        "_directory",
        "_grants",
        "_monitors",
        "_on_denial",
        "_proxies",
        "_superusers",
        "allowed",
        "denied",
    )

    def __init__(
        self,
        directory: Directory,
        superusers: Collection[str],
        proxies: Collection[str] = (),
        monitors: Collection[str] = (),
        backups: Collection[str] = (),
        on_denial: Callable[[str], None] = _nothing,
    ) -> None:
        """``on_denial`` is called with the role of each request that is denied."""
        self._directory = directory
        self._superusers = frozenset(superusers)
        self._proxies = frozenset(proxies)
        self._monitors = frozenset(monitors)
        self._backups = frozenset(backups)
        self._on_denial = on_denial
        #: By tenant and by namespace: the record of the last decision, and its roles or grants.
        self._admins: dict[str, tuple[TenantRecord, frozenset[str]]] = {}
        self._grants: dict[str, tuple[NamespaceRecord, NamespaceGrants]] = {}
        #: Decisions by what was needed.
        self.allowed: dict[Need, int] = dict.fromkeys(Need, 0)
        self.denied: dict[Need, int] = dict.fromkeys(Need, 0)

    def decide(self, identity: Identity, need: Need, on: Resource) -> Decision:
        """Return whether a client may do something, and count the decision."""
        decision = self.explain(identity, need, on)
        if decision.allowed:
            self.allowed[need] += 1
        else:
            self.denied[need] += 1
            self._on_denial(identity.role)
        return decision

    def explain(self, identity: Identity, need: Need, on: Resource) -> Decision:
        """Return what :meth:`decide` does, without counting: for questions about decisions."""
        via = identity.via
        if not via:
            if identity.role in self._proxies:
                return Decision(False, f"role {identity.role} is a proxy, which has to name the client it speaks for")
            return self._of_role(identity.role, need, on)
        if via not in self._proxies:
            return Decision(False, f"role {via} is not one of the proxies, so it may not speak for {identity.role}")
        if identity.role in self._proxies:
            return Decision(False, f"role {identity.role} is a proxy, for which no other proxy may speak")
        own = self._of_role(via, need, on)
        if not own.allowed:
            return Decision(False, f"the proxy is not allowed it itself: {own.rule}")
        return self._of_role(identity.role, need, on)

    def _of_role(self, role: str, need: Need, on: Resource) -> Decision:
        if need is Need.NOTHING:
            return Decision(True, "everybody may")
        if not role:
            return Decision(False, "the client has no role")
        if role in self._superusers:
            return Decision(True, f"role {role} is a superuser")
        if need is Need.IDENTITY:
            return Decision(True, "every authenticated client may")
        if need is Need.MONITOR:
            return _listed(role, self._monitors, "monitors", "read metrics and statistics of the whole broker")
        if need is Need.BACKUP:
            return _listed(role, self._backups, "backups", "fetch backups and read the state of the broker")
        if need is Need.SUPERUSER:
            return Decision(False, f"role {role} is not a superuser")
        if on.tenant and role in self._admins_of(on.tenant):
            return Decision(True, f"role {role} administers tenant {on.tenant}")
        if not on.namespace:
            return Decision(False, _no_administrator(role, on))
        grants = self._grants_of(on.namespace)
        grant = grants.find(role, on.topic, *_ACTIONS[need]) if grants is not None else None
        if grant is None:
            return Decision(False, _no_grant(role, need, on))
        if need is Need.CONSUME and on.subscription and grants is not None and grant.action != ADMINISTRATION:
            refused = self._refused_subscription(role, grants, on)
            if refused:
                return Decision(False, refused)
        return Decision(True, f"role {role} has {grant.action} on {grant.on}")

    def _refused_subscription(self, role: str, grants: NamespaceGrants, on: Resource) -> str:
        """Return why a role that may consume may not do so with a subscription, "" if it may."""
        if on.subscription == EVERY_SUBSCRIPTION:
            if not grants.prefix_mode and not grants.any_for_others(role):
                return ""
            reason = f"not every subscription in namespace {on.namespace} is open to role {role}"
        elif grants.for_others(on.subscription, role):
            reason = f"subscription {on.subscription} in namespace {on.namespace} is granted to other roles than {role}"
        elif grants.prefix_mode and not on.subscription.startswith(role):
            reason = (
                f"subscription {on.subscription} does not begin with the role {role},"
                f" as the subscriptionAuthMode Prefix of namespace {on.namespace} requires"
            )
        else:
            return ""
        # Only another grant of the role was found before.
        return "" if grants.find(role, on.topic, ADMINISTRATION) is not None else reason

    def _admins_of(self, tenant: str) -> frozenset[str]:
        record = self._directory.tenants.get(tenant)
        known = self._admins.get(tenant)
        if known is not None and known[0] is record:
            return known[1]
        if record is None:
            self._admins.pop(tenant, None)
            return frozenset()
        admins = frozenset(record.admin_roles)
        self._admins[tenant] = (record, admins)
        if len(self._admins) > len(self._directory.tenants):
            self._admins = {name: each for name, each in self._admins.items() if name in self._directory.tenants}
        return admins

    def _grants_of(self, namespace: str) -> NamespaceGrants | None:
        record = self._directory.namespaces.get(namespace)
        known = self._grants.get(namespace)
        if known is not None and known[0] is record:
            return known[1]
        if record is None:
            self._grants.pop(namespace, None)
            return None
        grants = NamespaceGrants(namespace, record, known[1] if known is not None else None)
        self._grants[namespace] = (record, grants)
        if len(self._grants) > len(self._directory.namespaces):
            self._grants = {name: each for name, each in self._grants.items() if name in self._directory.namespaces}
        return grants


def _listed(role: str, roles: Collection[str], setting: str, right: str) -> Decision:
    """Return whether a role is among those of a setting, which have a right."""
    if role in roles:
        return Decision(True, f"role {role} is in the setting {setting}")
    return Decision(False, f"role {role} may not {right}; superusers may, and the roles in the setting {setting}")


def _no_administrator(role: str, on: Resource) -> str:
    if not on.tenant:
        return f"role {role} is not a superuser"
    return f"role {role} does not administer tenant {on.tenant}"


def _no_grant(role: str, need: Need, on: Resource) -> str:
    where = f"{on.topic} or its namespace" if on.topic else f"namespace {on.namespace}"
    if need is Need.ADMIN:
        # No request gives this action alone, as Pulsar has none for it.
        granted = f"administrators of tenant {on.tenant} and superusers have it, and roles with the action admin"
    else:
        granted = f"administrators of tenant {on.tenant} and superusers can grant it"
    return f"no grant of {_WANTED[need]} for role {role} on {where}; {granted}"
