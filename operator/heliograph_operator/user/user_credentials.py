"""The token of a User in a Secret: issued, renewed, and taken away again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from heliograph_api.resources.model import User
from heliograph_api.values.durations import format_duration

from heliograph_operator.act.broker_tokens import BrokerTokens
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.act.program_secrets import CREDENTIALS
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.secret_write import discard_secret, find_secret, write_secret
from heliograph_operator.decide.server_certificate import AUTHORITIES
from heliograph_operator.decide.stateful_set import metadata
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_tokens import SECRET_TYPE, TokenPlan, Way, plan_token
from heliograph_operator.objects.conditions import Reason, timestamp
from heliograph_operator.objects.kinds import Body
from heliograph_operator.objects.targets import endpoint
from heliograph_operator.objects.user_places import cluster_of, role_of


@dataclass(frozen=True, slots=True)
class Credentials:
    """The Secret of a User: its name, the plan for it, and why it is not as planned."""

    name: str = ""
    plan: TokenPlan | None = None
    problem: str = ""
    reason: StrEnum = Reason.CREDENTIALS_PENDING


class UserCredentials:
    """Keeps the Secrets of Users."""

    def __init__(self, tokens: BrokerTokens, trust: BrokerTrust, now: Callable[[], datetime]) -> None:
        self._tokens = tokens
        self._trust = trust
        self._now = now

    async def keep(self, context: Context, resource: Resource, model: User, cluster: Body) -> Credentials:
        """Keep the Secret with the token as it has to be."""
        proof = model.spec.token
        if proof is None:
            await self._discard(context, resource)
            return Credentials()
        name = proof.secret_name or f"{resource.key.name}-token"
        signer = self._tokens.signer(cluster_of(resource.body))
        if signer is not None and timedelta(milliseconds=proof.validity) > signer.longest:
            longest = format_duration(int(signer.longest.total_seconds() * 1000))
            message = (
                f"spec.authentication: a token of {format_duration(proof.validity)} is not allowed; valid: at most"
                f" {longest}, the authentication.maxTokenValidity of the BrokerCluster"
            )
            return Credentials(name, problem=message, reason=Reason.NOT_ALLOWED)
        encrypted = endpoint(cluster, "brokerTls")
        url = encrypted or endpoint(cluster, "broker")
        if not url:
            return Credentials(name, problem="the BrokerCluster has not published a broker address yet")
        try:
            found = await find_secret(context, resource, name)
            before, authorities = decoded(found), self._trust.bundle(cluster_of(resource.body))
            if authorities is None:
                # The operator has just started: what it published before is still valid.
                authorities = before.get(AUTHORITIES, "") if encrypted else ""
            way = Way(url, authorities)
            plan = plan_token(proof, role_of(resource.body), before, way, signer, self._now())
            if plan.entries is None:
                return Credentials(name, problem="the BrokerCluster has no key that signs yet")
            about = metadata(resource.body, name) | {"labels": CREDENTIALS}
            await write_secret(context, resource, about, plan.entries, found, SECRET_TYPE)
        except ObjectRefused as error:
            return Credentials(name, problem=str(error), reason=error.reason)
        await self._discard(context, resource, but=name)
        if plan.is_new and plan.issued is not None:
            message = f"Secret {name} has a new token, valid until {timestamp(plan.issued.expires)}"
            await context.events.emit(resource.body, "TokenIssued", message, repeat=True)
        return Credentials(name, plan)

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
