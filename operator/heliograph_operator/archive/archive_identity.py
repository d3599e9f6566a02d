"""The role of an archive's runs on brokers with authentication: it may consume the topic, and nothing else."""

from __future__ import annotations

from typing import Final

import structlog
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.broker_tokens import BrokerTokens, needs_token
from heliograph_operator.act.controller import Context
from heliograph_operator.act.program_secrets import keep_program_token
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.archive_cron_job import cron_job_name
from heliograph_operator.decide.program_tokens import ProgramToken, archive_token
from heliograph_operator.decide.user_grants import Grants, changes
from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import Body, key_of
from heliograph_operator.objects.targets import endpoint, http_url

log = structlog.get_logger(__name__)

_ACTIONS: Final = frozenset({"consume"})


class ArchiveIdentity:
    """The grants and the Secrets of archives."""

    def __init__(self, brokers: BrokerSessions, tokens: BrokerTokens) -> None:
        self._brokers = brokers
        self._tokens = tokens

    async def keep(self, context: Context, resource: Resource, topic: str, cluster: Body) -> str:
        """Grant the role its topic and keep its token; return the Secret's name, empty if brokers ask for none.

        Raises :class:`.ObjectRefused`, :class:`.client.KubeError`, AdminRefused or AdminUnreachable.
        """
        if not needs_token(cluster):
            return ""
        program = _program(resource)
        await self._grant(self._brokers.at(http_url(cluster)), program.role, Grants(topics={topic: _ACTIONS}))
        url, signer = endpoint(cluster, "broker"), self._tokens.signer(key_of(cluster))
        await keep_program_token(context, resource, program, url, signer, clock.now())
        return program.secret

    async def renew(self, context: Context, resource: Resource, cluster: Body) -> None:
        """Renew the token of a paused Topic's archive, whose runs go on.

        Raises :class:`.ObjectRefused`, or :class:`.client.KubeError`.
        """
        if needs_token(cluster) and (url := endpoint(cluster, "broker")):
            signer = self._tokens.signer(key_of(cluster))
            await keep_program_token(context, resource, _program(resource), url, signer, clock.now(), renew_only=True)

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

    @staticmethod
    async def _grant(broker: BrokerSession, role: str, stated: Grants) -> None:
        listing = await broker.recent_listing()
        if wanted := changes(role, stated, listing.grants.get(role, Grants()), listing.state):
            await broker.grant(role, wanted)


def _program(resource: Resource) -> ProgramToken:
    return archive_token(resource.key.namespace, resource.key.name, cron_job_name(resource.key.name))
