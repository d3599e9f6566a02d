"""The access of an archive's runs to brokers: the role that may consume the topic and nothing else, and the Secret.

The Secret has the token of the role, and the authorities by which runs verify brokers with TLS.
"""

from __future__ import annotations

from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.broker_tokens import BrokerTokens, needs_token
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.act.program_secrets import CREDENTIALS, keep_program_token
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.secret_write import find_secret, write_secret
from heliograph_operator.decide.archive_access import NO_ACCESS, ArchiveAccess, authorities_secret
from heliograph_operator.decide.archive_cron_job import Source, cron_job_name
from heliograph_operator.decide.program_tokens import ProgramToken, archive_token
from heliograph_operator.decide.server_certificate import AUTHORITIES
from heliograph_operator.decide.stateful_set import metadata
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_grants import Grants, changes
from heliograph_operator.decide.user_tokens import Way
from heliograph_operator.objects import clock
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.kinds import Body, key_of
from heliograph_operator.objects.program_urls import program_urls
from heliograph_operator.objects.targets import http_url

log = structlog.get_logger(__name__)

_ACTIONS: Final = frozenset({"consume"})


class ArchiveIdentity:
    """The grants and the Secrets of archives."""

    def __init__(self, brokers: BrokerSessions, tokens: BrokerTokens, trust: BrokerTrust) -> None:
        self._brokers = brokers
        self._tokens = tokens
        self._trust = trust

    async def keep(self, context: Context, resource: Resource, topic: str, cluster: Body) -> Source:
        """Grant the role its topic and keep the Secret of the runs; return how they reach the topic.

        Raises :class:`.ObjectRefused`, :class:`.client.KubeError`, AdminRefused or AdminUnreachable.
        """
        urls, secret = program_urls(cluster), _secret(resource, cluster)
        authorities = await self._authorities(context, resource, cluster, secret) if urls.encrypted else ""
        access = ArchiveAccess(secret, token=needs_token(cluster), authorities=bool(authorities))
        if access.token:
            program, signer = _program(resource), self._tokens.signer(key_of(cluster))
            await self._grant(self._brokers.at(http_url(cluster)), program.role, Grants(topics={topic: _ACTIONS}))
            if signer is None and authorities:
                message = f"{key_of(cluster)} has no key that signs yet, so its authorities have no Secret for runs"
                raise ObjectRefused(Reason.CLUSTER_NOT_READY, message)
            stated = Way(urls.service_url, authorities)
            await keep_program_token(context, resource, program, stated, signer, clock.now())
        elif access.authorities:
            found = await find_secret(context, resource, secret)
            await _keep_authorities(context, resource, secret, authorities, found)
        else:
            access = NO_ACCESS
        return Source(topic, urls.service_url, urls.http_url, access)

    async def renew(self, context: Context, resource: Resource, cluster: Body) -> None:
        """Renew the token and the authorities of a paused Topic's archive, whose runs go on.

        Raises :class:`.ObjectRefused`, or :class:`.client.KubeError`.
        """
        urls, secret, with_token = program_urls(cluster), _secret(resource, cluster), needs_token(cluster)
        authorities = self._trust.bundle(key_of(cluster)) if urls.encrypted else ""
        if not urls.service_url:
            return
        if with_token:
            if authorities is None:
                # The operator has just started: what it stored before is still valid.
                authorities = decoded(await find_secret(context, resource, secret)).get(AUTHORITIES, "")
            program, signer, now = _program(resource), self._tokens.signer(key_of(cluster)), clock.now()
            stated = Way(urls.service_url, authorities)
            await keep_program_token(context, resource, program, stated, signer, now, renew_only=True)
        elif authorities and (found := await find_secret(context, resource, secret)) is not None:
            await _keep_authorities(context, resource, secret, authorities, found)

    async def revoke(self, resource: Resource, cluster: Body | None) -> None:
        """Take its grant from the role of an archive that has ended, whose last token expires within a day.

        To be called again until it is taken: the broker may not answer, and the operator may end before.
        """
        if cluster is None or not needs_token(cluster) or not http_url(cluster):
            return
        try:
            await self._grant(self._brokers.at(http_url(cluster)), _program(resource).role, Grants())
        except (AdminRefused, AdminUnreachable) as error:
            log.warning("the grant of an archive is still in the broker", resource=str(resource.key), error=str(error))

    async def _authorities(self, context: Context, resource: Resource, cluster: Body, secret: str) -> str:
        """Return the authorities, in PEM, that runs trust; empty: those of the system.

        Raises :class:`.ObjectRefused` while they are not known: others could pose as the brokers.
        """
        known = self._trust.bundle(key_of(cluster))
        if known is not None:
            return known
        # The operator has just started, and has not read what it published before.
        published = (cluster.get("status") or {}).get("tls")
        if published is not None and not published.get("authorities"):
            return ""
        stored = decoded(await find_secret(context, resource, secret)).get(AUTHORITIES, "")
        if not stored:
            message = f"the operator does not know yet which authorities runs are to trust at {key_of(cluster)}"
            raise ObjectRefused(Reason.CLUSTER_NOT_READY, message)
        return stored

    @staticmethod
    async def _grant(broker: BrokerSession, role: str, stated: Grants) -> None:
        listing = await broker.recent_listing(role=role)
        if wanted := changes(role, stated, listing.grants.get(role, Grants()), listing.state):
            await broker.grant(role, wanted)


def _secret(resource: Resource, cluster: Body) -> str:
    """Return the name of the Secret that runs use."""
    return _program(resource).secret if needs_token(cluster) else authorities_secret(cron_job_name(resource.key.name))


async def _keep_authorities(
    context: Context, resource: Resource, secret: str, authorities: str, found: Body | None
) -> None:
    """Keep the Secret of an archive without a token, which is ``found`` there.

    Raises :class:`.ObjectRefused`, or :class:`.client.KubeError`.
    """
    about = metadata(resource.body, secret) | {"labels": CREDENTIALS}
    await write_secret(context, resource, about, {AUTHORITIES: authorities}, found)


def _program(resource: Resource) -> ProgramToken:
    return archive_token(resource.key.namespace, resource.key.name, cron_job_name(resource.key.name))
