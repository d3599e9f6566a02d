"""Stores and rotates the keys of BrokerClusters with authentication, and the tokens of programs that they need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminClient, AdminError
from heliograph_api.resources.authentication_spec import OPERATOR_ROLE
from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.act.broker_tokens import BrokerTokens, needs_token
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.act.program_secrets import keep_program_token
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.secret_write import find_secret, orphan_secret, write_secret
from heliograph_operator.decide.program_tokens import backup_token, metrics_token
from heliograph_operator.decide.signed_tokens import signer_of
from heliograph_operator.decide.stateful_set import metadata
from heliograph_operator.decide.token_keys import (
    KeyPlan,
    Period,
    SigningKey,
    plan_keys,
    private_data,
    public_data,
    read_private,
    read_public,
)
from heliograph_operator.decide.token_secrets import decoded, private_name, public_name
from heliograph_operator.decide.user_tokens import Way
from heliograph_operator.kube.client import KubeError
from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import Body, Key

log = structlog.get_logger(__name__)

#: Time (s) between two checks of the Secrets, which are not watched: nobody may list all Secrets for that.
CHECK_S: Final = 60.0
#: Time (s) between two questions whether brokers accept a new key.
_ASK_S: Final = 10.0
#: Time (s) for such an answer.
_ANSWER_S: Final = 10.0
_ASKED_FOR: Final = timedelta(minutes=10)
#: Time for which the loss of one Secret alone changes nothing: who revokes all keys deletes one after the other.
REVOKED_WITHIN: Final = timedelta(seconds=20)
#: The longest period (ms) that a time can be added to; longer ones are as good as none.
_LONGEST_PERIOD_MS: Final = 1000 * 366 * 24 * 3_600_000


class ClusterKeys:
    """The keys of all BrokerClusters. What it remembers may be lost: the Secrets have the rest."""

    def __init__(
        self,
        tokens: BrokerTokens,
        now: Callable[[], datetime] = clock.now,
        trusted: Callable[[str], str] = lambda url: "",
    ) -> None:
        """``trusted`` returns the authorities, in PEM, that are trusted at the URL of brokers."""
        self._tokens = tokens
        self._trusted = trusted
        self._now = now
        #: The ids of keys that brokers were seen to accept.
        self._accepted: dict[Key, set[str]] = {}
        #: Since when one of the two Secrets alone is missing.
        self._missing: dict[Key, datetime] = {}
        #: Time (s) until the keys have to be looked at again.
        self._check_s: dict[Key, float] = {}

    async def reconcile(self, context: Context, resource: Resource, cluster: BrokerCluster, url: str) -> None:
        """Store the keys as they have to be. ``url`` is that of the brokers.

        Raises :class:`ObjectRefused`, or :class:`.client.KubeError` if a Secret could not be written; nothing is signed
        with a key that is not stored.
        """
        if not cluster.spec.authentication.enabled:
            self.forget(resource.key)
            return
        plan = await self._store(context, resource, cluster)
        is_ready = bool(resource.status.get("readyReplicas"))
        if plan.to_ask is not None and is_ready and await self._accepts(cluster, plan, plan.to_ask, url):
            self._accepted.setdefault(resource.key, set()).add(plan.to_ask.id)
            plan = await self._store(context, resource, cluster)
        until_s = CHECK_S
        if plan.to_ask is not None:
            until_s = _ASK_S
        elif plan.due is not None:
            until_s = max((plan.due - self._now()).total_seconds() + 0.1, 1.0)
        self._check_s[resource.key] = min(until_s, CHECK_S)

    async def keep_programs(self, context: Context, resource: Resource, cluster: BrokerCluster, url: str) -> None:
        """Keep the tokens of the programs that are clients of the brokers; ``url`` is the brokers' for clients.

        While the resource is paused, they are renewed, so that nobody loses the metrics by a pause.

        Raises :class:`ObjectRefused`, or :class:`.client.KubeError` if a Secret could not be written.
        """
        signer, refused = self._tokens.signer(resource.key), None
        if not cluster.spec.authentication.enabled or signer is None:
            return
        self._check_s.setdefault(resource.key, CHECK_S)
        for program in (metrics_token(resource.key.name), backup_token(resource.key.name)):
            try:
                await keep_program_token(
                    context, resource, program, Way(url), signer, self._now(), renew_only=resource.paused
                )
            except ObjectRefused as error:
                refused = error
        if refused is not None:
            raise refused

    def before_check(self, key: Key, outcome: Outcome) -> Outcome:
        """Return the outcome of a reconcile, with an earlier one if the keys have to be looked at before."""
        if key not in self._check_s or outcome.requeue_s is None:
            return outcome
        return replace(outcome, requeue_s=min(outcome.requeue_s, self._check_s[key]))

    def forget(self, key: Key) -> None:
        """Take in that a BrokerCluster is gone, or does without authentication."""
        self._tokens.forget(key)
        self._accepted.pop(key, None)
        self._missing.pop(key, None)
        self._check_s.pop(key, None)

    async def read(self, context: Context, resource: Resource, cluster: BrokerCluster) -> None:
        """Use the keys that are stored, and change nothing: the resource is paused, not managed, or being deleted."""
        if not cluster.spec.authentication.enabled:
            return
        try:
            private = await find_secret(context, resource, private_name(resource.key.name))
            public = await find_secret(context, resource, public_name(resource.key.name))
        except (ObjectRefused, KubeError) as error:
            log.warning("could not read the keys", resource=str(resource.key), error=str(error))
            return
        stored = {each.id for each in read_private(decoded(private)) if each.since}
        plan = self._plan(resource, cluster, private, public)
        if plan.signer is not None and plan.signer.id in stored:
            self._use(context, resource, cluster, plan)

    async def _store(self, context: Context, resource: Resource, cluster: BrokerCluster) -> KeyPlan:
        body, name = resource.body, resource.key.name
        private = await find_secret(context, resource, private_name(name))
        public = await find_secret(context, resource, public_name(name))
        plan = self._plan(resource, cluster, private, public)
        if (until := self._waits(resource.key, private, public)) is not None:
            return replace(plan, to_ask=None, due=until)
        made = {each.id for each in plan.keys} - {each.id for each in read_private(decoded(private))}
        try:
            await write_secret(context, resource, metadata(body, private_name(name)), private_data(plan.keys), private)
        except (ObjectRefused, KubeError):
            self._stop_signing(resource, plan)
            raise
        if plan.signer is None or plan.signer.id in {each.id for each in read_public(decoded(public))}:
            # Whatever becomes of the next write: the key before may have retired with this one.
            self._use(context, resource, cluster, plan)
        await write_secret(context, resource, metadata(body, public_name(name)), public_data(plan.published), public)
        if any(each.private for each in plan.keys if each.id in made):
            await context.events.emit(body, "TokenKeyMade", "a key for tokens was made; brokers get its public half")
        self._use(context, resource, cluster, plan)
        return plan

    def _stop_signing(self, resource: Resource, plan: KeyPlan) -> None:
        """Sign nothing for now by a key that a write retires which may have taken effect."""
        signer = self._tokens.signer(resource.key)
        if signer is not None and (plan.signer is None or plan.signer.id != signer.key):
            self._tokens.use(resource.body, None)

    def _waits(self, key: Key, private: Body | None, public: Body | None) -> datetime | None:
        """Return until when nothing is written, as all keys may be about to be revoked; None: it may be.

        What one Secret has is written to the other one: keys would come back that somebody has just revoked.
        """
        if (private is None) == (public is None):
            self._missing.pop(key, None)
            return None
        until = self._missing.setdefault(key, self._now()) + REVOKED_WITHIN
        return until if self._now() < until else None

    def _plan(self, resource: Resource, cluster: BrokerCluster, private: Body | None, public: Body | None) -> KeyPlan:
        stated = cluster.spec.authentication
        every_ms = stated.key_rotation.every
        period = Period(
            timedelta(milliseconds=every_ms) if 0 <= every_ms <= _LONGEST_PERIOD_MS else None,
            timedelta(milliseconds=stated.max_token_validity),
        )
        return plan_keys(
            read_private(decoded(private)),
            read_public(decoded(public)),
            period,
            self._now(),
            accepted=self._accepted.get(resource.key, ()),
        )

    def _use(self, context: Context, resource: Resource, cluster: BrokerCluster, plan: KeyPlan) -> None:
        signer = signer_of(cluster, plan.keys, plan.signer) if plan.signer is not None else None
        before = self._tokens.signer(resource.key)
        if before is not None and signer is not None and before.key == signer.key and before.facts == signer.facts:
            return
        if self._tokens.use(resource.body, signer) and signer is not None:
            for key in context.cache.named_by(resource.key):
                context.queue.add(key)

    async def _accepts(self, cluster: BrokerCluster, plan: KeyPlan, key: SigningKey, url: str) -> bool:
        """Whether the brokers trust a key: they are asked for their version with a token that it signed."""
        token = signer_of(cluster, plan.keys, key).sign(OPERATOR_ROLE, _ASKED_FOR, self._now())
        try:
            client = AdminClient(url, token=token, trusted=self._trusted(url))
            async with asyncio.timeout(_ANSWER_S), client:
                await client.broker_version()
        except (AdminError, TimeoutError) as error:
            log.info("the brokers do not accept a new key yet", url=url, key=key.id, error=str(error))
            return False
        return True


async def orphan_keys(context: Context, resource: Resource) -> None:
    """Leave the Secrets where the brokers stay that use them."""
    if needs_token(resource.body):
        for name in (private_name(resource.key.name), public_name(resource.key.name)):
            await orphan_secret(context, resource, name)
