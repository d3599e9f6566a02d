"""Gives the role of each User its grants and identities in the broker, and its clients a token in a Secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import OperatorResource, User
from heliograph_api.resources.role_state import ProvenIdentity, RoleSettings
from heliograph_api.values.durations import format_duration

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.broker_tokens import BrokerTokens, needs_token
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import changed_since, hold, release
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.act.program_secrets import CREDENTIALS
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.act.secret_write import discard_secret, find_secret, write_secret
from heliograph_operator.act.status_report import named, report
from heliograph_operator.decide.server_certificate import AUTHORITIES
from heliograph_operator.decide.stateful_set import metadata
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_activity import Activity, activity_fields, worth_writing
from heliograph_operator.decide.user_grants import Grants, changes, missing_namespaces, stated_grants
from heliograph_operator.decide.user_tokens import SECRET_TYPE, TokenPlan, Way, expiring, plan_token, token_verdicts
from heliograph_operator.objects import clock
from heliograph_operator.objects.backoff import REFUSED, UNREACHABLE
from heliograph_operator.objects.conditions import EXPIRING, Reason, Truth, Verdict, ready, timestamp
from heliograph_operator.objects.consent import user_refusal
from heliograph_operator.objects.kinds import Body, is_held, key_of, shown
from heliograph_operator.objects.targets import endpoint, http_url
from heliograph_operator.objects.user_identities import identities_of, not_in_effect
from heliograph_operator.objects.user_places import cluster_of, is_own_role, role_of
from heliograph_operator.objects.user_roles import UserRoles

#: Time (s) until something is tried again that only a change elsewhere makes possible; most of these are watched.
_WAITING_S: Final = 30.0
#: Time (s) between two checks of the Secret, which is not watched.
_CHECK_S: Final = 60.0
_MAX_NAMED: Final = 5


class _Blocked(Exception):
    """Nothing can be done yet; the text is for people. ``revokes``: nor may the role keep what it has."""

    def __init__(self, reason: StrEnum, message: str, *, revokes: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.revokes = revokes


@dataclass(frozen=True, slots=True)
class _Credentials:
    """The Secret of a User: its name, the plan for it, and why it is not as planned."""

    name: str = ""
    plan: TokenPlan | None = None
    problem: str = ""
    reason: StrEnum = Reason.CREDENTIALS_PENDING


@dataclass(frozen=True, slots=True)
class _Given:
    """The Ready condition of a role, when to try again, and whether the broker can give roles identities."""

    verdict: Verdict
    again_s: float | None = None
    knows_roles: bool = True
    #: The last answer of the broker; None: there was none.
    state: BrokerState | None = None


class UserReconciler:
    """The reconciler of Users."""

    def __init__(
        self,
        brokers: BrokerSessions,
        tokens: BrokerTokens,
        roles: UserRoles,
        trust: BrokerTrust,
        now: Callable[[], datetime] = clock.now,
    ) -> None:
        self._brokers = brokers
        self._tokens = tokens
        self._roles = roles
        self._trust = trust
        self._now = now

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        memory = resource.memory
        memory.observed, memory.unreachable = None, False
        if resource.deleted:
            return await self._delete(context, resource)
        if not resource.managed:
            await release(context, resource)
            return await self._say(context, resource, Reason.UNMANAGED, NOT_RECONCILED, "Unknown")
        model = resource.model
        # A consent that was taken back is, whatever the User says about itself.
        if (why := resource.suspended) and not self._lacks_consent(context, resource, model):
            return await self._say(context, resource, Reason.PAUSED, f"{why}: nothing is changed", "Unknown")
        if not isinstance(model, User):
            return await self._say(context, resource, Reason.INVALID, memory.problem)
        if not is_held(resource.body):
            return await self.reconcile(context, resource) if await hold(context, resource) else Outcome("gone")
        try:
            cluster = self._cluster(context, resource, model)
        except _Blocked as error:
            message = str(error)
            # Not what an older one has.
            revokes = error.revokes and self._roles.owner(resource.body) == resource.key
            if revokes and (left := await self._revoke(context, resource)):
                message = f"{message}. {left}"
            verdicts = [ready(error.reason, message), *self._late(resource, message)]
            await report(context, resource, verdicts, {"role": role_of(resource.body)})
            return Outcome("waiting", _WAITING_S)
        credentials = await self._credentials(context, resource, model, cluster)
        given = await self._give(context, resource, model, cluster)
        return await self._report(context, resource, model, cluster, credentials, given)

    @staticmethod
    def _lacks_consent(context: Context, resource: Resource, model: OperatorResource | None) -> bool:
        """Whether the role may have been given something that its BrokerCluster does not allow, or not any more."""
        cluster = context.cache.get(cluster_of(resource.body))
        if cluster is None or not isinstance(model, User) or not is_held(resource.body):
            return False
        return bool(user_refusal(cluster, resource.key, _tenants(model)))

    def _cluster(self, context: Context, resource: Resource, model: User) -> Body:
        """Return the BrokerCluster on which the User may have its role. Raises :class:`_Blocked`."""
        namespace, role = resource.key.namespace, role_of(resource.body)
        if not is_own_role(resource.body):
            message = (
                f"spec.role: {role} may be another Kubernetes namespace's; valid: a role that begins with {namespace}/"
            )
            raise _Blocked(Reason.NOT_ALLOWED, message)
        key = cluster_of(resource.body)
        cluster = context.cache.get(key)
        if cluster is None:
            raise _Blocked(Reason.PARENT_MISSING, f"{shown(key, namespace)} does not exist")
        if why := user_refusal(cluster, resource.key, _tenants(model)):
            raise _Blocked(Reason.NOT_ALLOWED, why, revokes=True)
        if not needs_token(cluster):
            message = f"{shown(key, namespace)} lets every client do everything; valid: authentication.enabled there"
            raise _Blocked(Reason.AUTHENTICATION_DISABLED, message)
        owner = self._roles.owner(resource.body)
        if owner is not None and owner != resource.key:
            raise _Blocked(Reason.CONFLICT, f"{owner} is older and has the role {role}; delete one of them")
        return cluster

    # -- credentials ---------------------------------------------------------------------------------------------------

    async def _credentials(self, context: Context, resource: Resource, model: User, cluster: Body) -> _Credentials:
        """Keep the Secret with the token as it has to be."""
        proof = model.spec.token
        if proof is None:
            await self._discard(context, resource)
            return _Credentials()
        name = proof.secret_name or f"{resource.key.name}-token"
        signer = self._tokens.signer(cluster_of(resource.body))
        if signer is not None and timedelta(milliseconds=proof.validity) > signer.longest:
            longest = format_duration(int(signer.longest.total_seconds() * 1000))
            message = (
                f"spec.authentication: a token of {format_duration(proof.validity)} is not allowed; valid: at most"
                f" {longest}, the authentication.maxTokenValidity of the BrokerCluster"
            )
            return _Credentials(name, problem=message, reason=Reason.NOT_ALLOWED)
        encrypted = endpoint(cluster, "brokerTls")
        url = encrypted or endpoint(cluster, "broker")
        if not url:
            return _Credentials(name, problem="the BrokerCluster has not published a broker address yet")
        try:
            found = await find_secret(context, resource, name)
            before, authorities = decoded(found), self._trust.bundle(cluster_of(resource.body))
            if authorities is None:
                # The operator has just started: what it published before is still valid.
                authorities = before.get(AUTHORITIES, "") if encrypted else ""
            way = Way(url, authorities)
            plan = plan_token(proof, role_of(resource.body), before, way, signer, self._now())
            if plan.entries is None:
                return _Credentials(name, problem="the BrokerCluster has no key that signs yet")
            about = metadata(resource.body, name) | {"labels": CREDENTIALS}
            await write_secret(context, resource, about, plan.entries, found, SECRET_TYPE)
        except ObjectRefused as error:
            return _Credentials(name, problem=str(error), reason=error.reason)
        await self._discard(context, resource, but=name)
        if plan.is_new and plan.issued is not None:
            message = f"Secret {name} has a new token, valid until {timestamp(plan.issued.expires)}"
            await context.events.emit(resource.body, "TokenIssued", message, repeat=True)
        return _Credentials(name, plan)

    async def _discard(self, context: Context, resource: Resource, *, but: str = "") -> None:
        """Take away the Secret that was issued under another name: its token would stay valid there."""
        name = str((resource.status.get("credentials") or {}).get("name") or but)
        if name == but:
            return
        valid = f"valid until {resource.status.get('tokenExpires', 'its end')}"
        try:
            if await discard_secret(context, resource, name):
                message = f"Secret {name} is deleted with its token, which stays {valid}"
                await context.events.emit(resource.body, "TokenRemoved", message)
        except ObjectRefused as error:
            # The operator may not use it any more, as its chart says by now: it cannot wait for that.
            message = f"Secret {name} still has a token, which is {valid}; delete it: {error}"
            await context.events.emit(resource.body, "TokenLeft", message, "Warning")

    # -- grants and identities -----------------------------------------------------------------------------------------

    async def _give(self, context: Context, resource: Resource, model: User, cluster: Body) -> _Given:
        """Make the grants and the identities of the role those of the User."""
        memory, role = resource.memory, role_of(resource.body)
        memory.http_url, memory.name = http_url(cluster), role
        if not memory.http_url:
            return _Given(
                ready(Reason.CLUSTER_NOT_READY, "the BrokerCluster has not published a broker address yet"), _WAITING_S
            )
        stated = stated_grants(model.spec.permissions)
        field = "spec.permissions"
        try:
            broker = self._brokers.at(memory.http_url)
            listing = await broker.recent_listing()
            if missing := missing_namespaces(stated, model.spec.permissions, listing.state):
                text = f"{field}: the broker does not have namespace {named(missing, _MAX_NAMED, ', ')}"
                return _Given(ready(Reason.PARENT_MISSING, text), _WAITING_S, listing.state.roles is not None)
            had = listing.grants.get(role, Grants())
            wanted = changes(role, stated, had, listing.state)
            if wanted:
                await broker.grant(role, wanted)
                listing = await broker.listing(0.0)
                had = listing.grants.get(role, Grants())
                if left := changes(role, stated, had, listing.state):
                    text = f"the broker accepted the grants but does not have them: {named(left)}"
                    return _Given(ready(Reason.NOT_APPLIED, text), _WAITING_S)
                await context.events.emit(resource.body, "GrantsChanged", f"role {role}: {named(wanted)}", repeat=True)
            # After the grants, so that a client has them as soon as it has the role.
            field = "spec.authentication"
            identities, taken = self._identities(resource.body)
            listing = await self._set_role(broker, listing, role, RoleSettings(identities, model.spec.limits.core()))
        except AdminRefused as error:
            memory.refused += 1
            # Another User may still have an identity in the broker that is this one's by now.
            for key in self._roles.others(resource.body):
                context.queue.add(key)
            return _Given(ready(Reason.REFUSED, f"{field}: {error.reason}"), REFUSED.delay(memory.refused))
        except AdminUnreachable as error:
            memory.unreachable = True
            return _Given(ready(Reason.BROKER_UNREACHABLE, str(error), "False"), UNREACHABLE.first_s)
        memory.refused, memory.observed = 0, listing.role(role)
        knows_roles = listing.state.roles is not None
        if taken:
            return _Given(ready(Reason.CONFLICT, named(taken)), _WAITING_S, knows_roles, listing.state)
        text = f"role {role} has the grants of spec.permissions"
        return _Given(ready(Reason.RECONCILED, text, "True"), None, knows_roles, listing.state)

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

    @staticmethod
    async def _set_role(broker: BrokerSession, listing: Listing, role: str, settings: RoleSettings | None) -> Listing:
        """Make what is set for a role this, None: nothing; return a listing with it."""
        if listing.state.roles is None or listing.role(role)[1] == settings:
            return listing
        await broker.set_role(role, settings)
        return await broker.listing(0.0)

    # -- the end, and the status ---------------------------------------------------------------------------------------

    async def _report(
        self,
        context: Context,
        resource: Resource,
        model: User,
        cluster: Body,
        credentials: _Credentials,
        given: _Given,
    ) -> Outcome:
        proof, now, granted, again_s = model.spec.token, self._now(), given.verdict, given.again_s
        verdicts = token_verdicts(proof, credentials.name, credentials.plan, credentials.problem)
        left_out = not_in_effect(resource.body, cluster, knows_roles=given.knows_roles)
        fields: dict[str, Any] = {"role": role_of(resource.body), "notInEffect": left_out or None}
        fields |= self._activity(resource, given)
        requeue_s = again_s if again_s is not None else context.settings.resync_s
        if proof is not None:
            requeue_s = min(requeue_s, _CHECK_S)
            issued = credentials.plan.issued if credentials.plan is not None else None
            if issued is not None and credentials.plan is not None and credentials.plan.due is not None:
                fields["credentials"] = {"name": credentials.name}
                fields["tokenIssued"] = timestamp(issued.issued)
                fields["tokenExpires"] = timestamp(issued.expires)
                requeue_s = min(requeue_s, max((credentials.plan.due - now).total_seconds(), 1.0))
            else:
                before = timedelta(milliseconds=proof.rotate_before)
                late = expiring(resource.status, before, now, credentials.problem)
                verdicts = [late if late is not None and each.type == EXPIRING else each for each in verdicts]
                if granted.status == "True":
                    granted = ready(credentials.reason, credentials.problem)
        else:
            fields |= {"credentials": None, "tokenIssued": None, "tokenExpires": None}
        await report(context, resource, [granted, *verdicts], fields)
        return Outcome("ready" if granted.status == "True" else "waiting", requeue_s)

    @staticmethod
    def _activity(resource: Resource, given: _Given) -> dict[str, Any]:
        """Return the fields of the status about the role's clients; those stay of which the broker does not tell."""
        memory = resource.memory
        if given.state is None:
            return {}
        activity, now_s = Activity.of(role_of(resource.body), given.state), asyncio.get_running_loop().time()
        if worth_writing(memory.activity, activity, now_s - memory.activity_at):
            memory.activity, memory.activity_at = activity, now_s
        return activity_fields(memory.activity)

    async def _delete(self, context: Context, resource: Resource) -> Outcome:
        """Take its grants from the role, unless another User has it, then release the resource."""
        if not is_held(resource.body):
            return Outcome("gone")
        heirs = self._roles.others(resource.body)
        # A pause keeps rights as they are; a deletion is newer, and no User is left that could take them away later.
        owned = self._roles.owner(resource.body) is None and resource.managed
        if owned:
            if (changed := await changed_since(context, resource)) is not None:
                return changed
            # Nobody looks at the role again: what it has since the last listing must not stay.
            if left := await self._revoke(context, resource, asyncio.get_running_loop().time()):
                await report(context, resource, [ready(Reason.DELETING, left)])
                return Outcome("waiting", UNREACHABLE.first_s)
        await release(context, resource)
        for key in heirs:
            context.queue.add(key)
        return Outcome("deleted")

    async def _revoke(self, context: Context, resource: Resource, since: float = 0.0) -> str:
        """Take all grants and identities from the role; return why some are still there, empty if none is.

        ``since`` (s, of the loop's clock): the oldest listing to look at.
        """
        cluster, role = context.cache.get(cluster_of(resource.body)), role_of(resource.body)
        if cluster is None or not is_own_role(resource.body):
            return ""
        # An open cluster may be closed again, by the same keys: tokens of the role would be valid then.
        if not http_url(cluster):
            # What a broker stored is there again when it starts.
            was_there = (cluster.get("status") or {}).get("storeFormat")
            why = f"{shown(key_of(cluster), resource.key.namespace)} has no broker now"
            return f"The rights of role {role} are still stored: {why}" if was_there else ""
        try:
            broker = self._brokers.at(http_url(cluster))
            listing = await broker.listing(since)
            if left := changes(role, Grants(), listing.grants.get(role, Grants()), listing.state):
                await broker.grant(role, left)
            await self._set_role(broker, listing, role, None)
        except (AdminRefused, AdminUnreachable) as error:
            return f"The rights of role {role} are still in the broker: {error}"
        return ""

    def _late(self, resource: Resource, problem: str) -> list[Verdict]:
        """Return the condition Expiring if the token is at its end and not replaced, because of ``problem``."""
        proof = resource.model.spec.token if isinstance(resource.model, User) else None
        if proof is None:
            return []
        late = expiring(resource.status, timedelta(milliseconds=proof.rotate_before), self._now(), problem)
        return [late] if late is not None else []

    async def _say(
        self, context: Context, resource: Resource, reason: Reason, message: str, status: Truth = "False"
    ) -> Outcome:
        verdicts = [ready(reason, message, status), *self._late(resource, message)]
        await report(context, resource, verdicts)
        return Outcome("waiting", context.settings.resync_s)


def _tenants(user: User) -> set[str]:
    """Return the tenants in which a User states permissions."""
    return {each.in_namespace.partition("/")[0] for each in user.spec.permissions}
