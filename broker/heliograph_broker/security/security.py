"""Authentication and authorization of a broker, as its settings switch them on."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.values.comma_separated import comma_separated

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.broker.roles import Roles
from heliograph_broker.messaging.topic.directory import Directory

from .authentication.authenticator import Authenticator
from .authentication.failure_log import FailureLog
from .authorization.authorizer import Authorizer

log = structlog.get_logger(__name__)


@dataclass(slots=True, frozen=True)
class Security:
    """Shared by all ports of a broker; a broker without authentication has none."""

    authenticator: Authenticator
    authorizer: Authorizer
    failures: FailureLog
    #: Credentials that have expired are found within this time (s), and renewed within as much again.
    refresh_check_s: float

    @classmethod
    def from_config(cls, config: BrokerConfig, directory: Directory, roles: Roles, clock: Clock) -> Security | None:
        """Return what the settings switch on, None if that is nothing. Reads keys, which blocks.

        Raises :class:`KeyUnusable` with the name of a key that cannot be used, and :class:`ProviderUnusable` with the
        setting that is wrong.
        """
        if not comma_separated(config.auth):
            return None
        # The libraries of keys and certificates take megabytes, which a broker without authentication does not need.
        from .providers import providers_of

        proxies, monitors = comma_separated(config.proxies), comma_separated(config.monitors)
        superusers, backups = comma_separated(config.superusers), comma_separated(config.backups)
        if not superusers and not any(tenant.admin_roles for tenant in directory.tenants.values()):
            log.warning(
                "no role may create topics or grant rights: name a superuser",
                setting="superusers",
                option="--superuser",
            )
        authenticator = Authenticator(
            providers_of(config, clock),
            anonymous_role=config.anonymous_role,
            proxies=proxies,
            assigned=roles.role_of,
            fixed=[*superusers, *monitors, *backups, *proxies],
        )
        return cls(
            authenticator,
            Authorizer(
                directory,
                superusers,
                proxies,
                monitors=monitors,
                backups=backups,
                on_denial=roles.activity.denied,
            ),
            FailureLog(clock),
            config.auth_refresh_check_s,
        )
