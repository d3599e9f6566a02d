"""Gives the role of each User its grants and identities in the broker, and its clients a token in a Secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from heliograph_api.resources.model import OperatorResource, User

from heliograph_operator.act.broker_sessions import BrokerSessions
from heliograph_operator.act.broker_tokens import BrokerTokens, needs_token
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import changed_since, hold, release
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.act.status_report import report
from heliograph_operator.decide.user_activity import Activity, activity_fields, worth_writing
from heliograph_operator.decide.user_tokens import expiring, token_verdicts
from heliograph_operator.objects import clock
from heliograph_operator.objects.backoff import UNREACHABLE
from heliograph_operator.objects.conditions import EXPIRING, Reason, Truth, Verdict, ready, timestamp
from heliograph_operator.objects.consent import user_refusal
from heliograph_operator.objects.kinds import Body, Key, is_held, key_of, shown
from heliograph_operator.objects.user_identities import not_in_effect
from heliograph_operator.objects.user_places import cluster_of, is_own_role, role_of
from heliograph_operator.objects.user_roles import UserRoles

from .user_credentials import Credentials, UserCredentials
from .user_rights import WAITING_S, Given, UserRights

#: Time (s) between two checks of the Secret, which is not watched: nobody may list all Secrets for that.
_CHECK_S: Final = 60.0
#: Such checks in a second, for all Users: with more than 1,200 each Secret is checked less often.
_CHECKS_PER_S: Final = 20
#: Time (s) between two checks whether another User can take over a role.
_HEIR_S: Final = 1.0


class _Blocked(Exception):
    """Nothing can be done yet; the text is for people. ``revokes``: nor may the role keep what it has."""

    def __init__(self, reason: StrEnum, message: str, *, revokes: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.revokes = revokes


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
        self._credentials = UserCredentials(tokens, trust, now)
        self._rights = UserRights(brokers, roles)
        self._roles = roles
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
            if revokes and (left := await self._rights.revoke(context, resource)):
                message = f"{message}. {left}"
            verdicts = [ready(error.reason, message), *self._late(resource, message)]
            await report(context, resource, verdicts, {"role": role_of(resource.body)})
            return Outcome("waiting", WAITING_S)
        credentials = await self._credentials.keep(context, resource, model, cluster)
        given = await self._rights.give(context, resource, model, cluster)
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

    async def _report(
        self,
        context: Context,
        resource: Resource,
        model: User,
        cluster: Body,
        credentials: Credentials,
        given: Given,
    ) -> Outcome:
        proof, now, granted, again_s = model.spec.token, self._now(), given.verdict, given.again_s
        verdicts = token_verdicts(proof, credentials.name, credentials.plan, credentials.problem)
        left_out = not_in_effect(resource.body, cluster, knows_roles=given.knows_roles)
        fields: dict[str, Any] = {"role": role_of(resource.body), "notInEffect": left_out or None}
        fields |= self._activity(resource, given)
        requeue_s = again_s if again_s is not None else context.settings.resync_s
        if proof is not None:
            requeue_s = min(requeue_s, max(_CHECK_S, len(self._roles) / _CHECKS_PER_S))
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
    def _activity(resource: Resource, given: Given) -> dict[str, Any]:
        """Return the fields of the status about the role's clients; those stay of which the broker does not tell."""
        memory = resource.memory
        if given.state is None:
            return {}
        activity, now_s = Activity.of(role_of(resource.body), given.state), asyncio.get_running_loop().time()
        if activity is None and given.knows_roles:
            activity = Activity.of_new(given.state)
        if worth_writing(memory.activity, activity, now_s - memory.activity_at):
            memory.activity, memory.activity_at = activity, now_s
        return activity_fields(memory.activity)

    async def _delete(self, context: Context, resource: Resource) -> Outcome:
        """Take the rights that no User states any more from the role, then release the resource."""
        if not is_held(resource.body):
            return Outcome("gone")
        others = self._roles.others(resource.body)
        heir = self._roles.heir(resource.body)
        # One that waits for nothing takes over by itself, and no right is missing meanwhile.
        waits = heir is not None and self._waits(context, key_of(heir))
        if resource.managed and heir is not None and not waits and not is_held(heir):
            # It may be deleted before its first reconcile, and nobody would take the rights away then.
            context.queue.add(key_of(heir))
            return Outcome("waiting", _HEIR_S)
        # A pause keeps rights as they are; a deletion is newer, and no User is left that could take them away later.
        if resource.managed and (waits or self._roles.owner(resource.body) is None):
            if (changed := await changed_since(context, resource)) is not None:
                return changed
            keeps = self._keeping(context, key_of(heir)) if heir is not None else None
            # Nobody looks at the role again: what it has since the last listing must not stay.
            if left := await self._rights.revoke(context, resource, asyncio.get_running_loop().time(), keeps):
                await report(context, resource, [ready(Reason.DELETING, left)])
                return Outcome("waiting", UNREACHABLE.first_s)
        await release(context, resource)
        for key in others:
            context.queue.add(key)
        return Outcome("deleted")

    @staticmethod
    def _waits(context: Context, key: Key) -> bool:
        """Whether a User changes nothing at present: it is paused or invalid."""
        user = context.resource(key)
        return user is not None and (bool(user.suspended) or not isinstance(user.model, User))

    def _keeping(self, context: Context, key: Key) -> Resource | None:
        """Return a User that waits if its role keeps what it states and has; None: the role keeps nothing."""
        user = context.resource(key)
        if user is None or not isinstance(user.model, User):
            return None
        # Without the finalizer nobody would take the rights away at its deletion.
        return user if is_held(user.body) and not self._lacks_consent(context, user, user.model) else None

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
