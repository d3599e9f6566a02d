"""The rights of a User's role in the broker: its grants, the identities that prove it, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import User
from heliograph_api.resources.role_state import ProvenIdentity, RoleSettings
from msgspec.structs import replace

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.status_report import named
from heliograph_operator.decide.user_grants import Grants, changes, common_grants, missing_namespaces, stated_grants
from heliograph_operator.objects.backoff import REFUSED, UNREACHABLE
from heliograph_operator.objects.conditions import Reason, Verdict, ready
from heliograph_operator.objects.kinds import Body, key_of, shown
from heliograph_operator.objects.targets import http_url
from heliograph_operator.objects.user_identities import identities_of
from heliograph_operator.objects.user_places import cluster_of, is_own_role, role_of
from heliograph_operator.objects.user_roles import UserRoles

#: Time (s) until something is tried again that only a change elsewhere makes possible; most of these are watched.
WAITING_S: Final = 30.0
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Given:
    """The Ready condition of a role, when to try again, and whether the broker can give roles identities."""

    verdict: Verdict
    again_s: float | None = None
    knows_roles: bool = True
    #: The last answer of the broker; None: there was none.
    state: BrokerState | None = None


class UserRights:
    """Gives roles what their Users state, and takes it away."""

    def __init__(self, brokers: BrokerSessions, roles: UserRoles) -> None:
        self._brokers = brokers
        self._roles = roles

    async def give(self, context: Context, resource: Resource, model: User, cluster: Body) -> Given:
        """Make the grants and the identities of the role those of the User."""
        memory, role = resource.memory, role_of(resource.body)
        memory.http_url, memory.name = http_url(cluster), role
        if not memory.http_url:
            return Given(
                ready(Reason.CLUSTER_NOT_READY, "the BrokerCluster has not published a broker address yet"), WAITING_S
            )
        stated = stated_grants(model.spec.permissions)
        field = "spec.permissions"
        try:
            broker = self._brokers.at(memory.http_url)
            listing = await broker.recent_listing(role=role)
            knows_roles = listing.state.roles is not None
            if missing := missing_namespaces(stated, model.spec.permissions, listing.state):
                await self._reduce(broker, listing, role, resource)
                text = f"{field}: the broker does not have namespace {named(missing, _MAX_NAMED, ', ')}"
                return Given(ready(Reason.PARENT_MISSING, text), WAITING_S, knows_roles)
            had, had_settings = listing.role(role)
            wanted = changes(role, stated, had, listing.state)
            identities, taken = self._identities(resource.body)
            settings = RoleSettings(identities, model.spec.limits.core()) if knows_roles else None
            lacks_settings = settings != had_settings
            # Their effect is in the next listing, of all roles: one for each User would be too many.
            before, before_settings = memory.sent or ((), None)
            memory.sent = (wanted, settings if lacks_settings else None) if wanted or lacks_settings else None
            again = any(each in before for each in wanted) or (lacks_settings and settings == before_settings)
            if wanted:
                await broker.grant(role, wanted)
                await context.events.emit(resource.body, "GrantsChanged", f"role {role}: {named(wanted)}", repeat=True)
            # After the grants, so that a client has them as soon as it has the role.
            field = "spec.authentication"
            if lacks_settings:
                await broker.set_role(role, settings)
            if again:
                # The broker has forgotten the same before, or somebody else took it away.
                listing = await broker.listing(0.0, role)
                if lacking := _lacking(role, stated, settings, listing):
                    return Given(ready(Reason.NOT_APPLIED, lacking), WAITING_S, knows_roles, listing.state)
                memory.sent = None
        except AdminRefused as error:
            memory.refused += 1
            # Another User may still have an identity in the broker that is this one's by now.
            for key in self._roles.others(resource.body):
                context.queue.add(key)
            return Given(ready(Reason.REFUSED, f"{field}: {error.reason}"), REFUSED.delay(memory.refused))
        except AdminUnreachable as error:
            memory.unreachable = True
            return Given(ready(Reason.BROKER_UNREACHABLE, str(error), "False"), UNREACHABLE.first_s)
        memory.refused, memory.observed = 0, (stated, settings)
        if taken:
            return Given(ready(Reason.CONFLICT, named(taken)), WAITING_S, knows_roles, listing.state)
        text = f"role {role} has the grants of spec.permissions"
        return Given(ready(Reason.RECONCILED, text, "True"), None, knows_roles, listing.state)

    def _identities(self, user: Body) -> tuple[list[ProvenIdentity], list[str]]:
        """Return the identities of a User, and for each that an older one has, who has it."""
        own, taken, key = [], [], key_of(user)
        for identity, field in identities_of(user).items():
            owner = self._roles.owner_of(identity, user)
            if owner in (None, key):
                own.append(identity)
            else:
                taken.append(f"{field}: {owner} is older and has {identity}; remove it from one of them")
        return own, taken

    async def revoke(
        self, context: Context, resource: Resource, since: float = 0.0, keeps: Resource | None = None
    ) -> str:
        """Take the rights from the role; return why some are still there, empty if none is.

        ``since`` (s, of the loop's clock): the oldest listing to look at. ``keeps``: a User with the same role, which
        keeps those that it states; it gets no others.
        """
        cluster, role = context.cache.get(cluster_of(resource.body)), role_of(resource.body)
        if cluster is None or not is_own_role(resource.body):
            return ""
        # An open cluster may be closed again, by the same keys: tokens of the role would be valid then.
        if not http_url(cluster):
            # A broker that starts again has the rights that it stored.
            was_there = (cluster.get("status") or {}).get("storeFormat")
            why = f"{shown(key_of(cluster), resource.key.namespace)} has no broker now"
            return f"The rights of role {role} are still stored: {why}" if was_there else ""
        try:
            broker = self._brokers.at(http_url(cluster))
            listing = await broker.listing(since, role)
            await self._reduce(broker, listing, role, keeps)
        except (AdminRefused, AdminUnreachable) as error:
            return f"The rights of role {role} are still in the broker: {error}"
        return ""

    async def _reduce(self, broker: BrokerSession, listing: Listing, role: str, keeps: Resource | None) -> None:
        """Take from a role what ``keeps``, a User with this role, does not state; None: everything."""
        had, had_settings = listing.role(role)
        kept, settings = Grants(), None
        if keeps is not None and isinstance(keeps.model, User):
            kept = common_grants(had, stated_grants(keeps.model.spec.permissions))
            own, _ = self._identities(keeps.body)
            if had_settings is not None:
                # A limit takes no right: it stays until the User's are set.
                settings = replace(had_settings, identities=[x for x in had_settings.identities if x in own])
        if left := changes(role, kept, had, listing.state):
            await broker.grant(role, left)
        if settings != had_settings:
            await broker.set_role(role, settings)


def _lacking(role: str, stated: Grants, settings: RoleSettings | None, listing: Listing) -> str:
    """Return what a role lacks in a listing after the broker accepted it; empty if it has everything."""
    had, had_settings = listing.role(role)
    if left := changes(role, stated, had, listing.state):
        return f"the broker accepted the grants but does not have them: {named(left)}"
    return "" if settings == had_settings else "the broker accepted the identities and limits but does not have them"
