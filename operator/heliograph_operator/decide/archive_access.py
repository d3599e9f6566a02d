"""The access of an archive's runs to brokers: one Secret in all their pods, with a token and the authorities to trust.

Executors of Spark can mount Secrets, and no ConfigMaps. The Secret is mounted whole: a pod that asks for an entry which
is gone, because TLS was switched off, would not start, and hold up the runs after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .program_tokens import TOKEN_FILE, TOKEN_PATH, token_mount, token_volume
from .server_certificate import AUTHORITIES

#: The file with the authorities.
_AUTHORITIES_FILE: Final = f"{TOKEN_PATH}/{AUTHORITIES}"


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """The Secret that the pods of runs mount, and what they use of it."""

    #: Its name; empty: there is none.
    secret: str = ""
    #: Whether runs show its token.
    token: bool = False
    #: Whether they trust its authorities; otherwise those of the system.
    authorities: bool = False

    def options(self) -> dict[str, str]:
        """Return the options of the data source, which reads the files each time."""
        found: dict[str, str] = {}
        if self.token:
            found["pulsar.client.authPluginClassName"] = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            found["pulsar.client.authParams"] = f"file://{TOKEN_FILE}"
        if self.authorities:
            found["pulsar.client.tlsTrustCertsFilePath"] = _AUTHORITIES_FILE
        return found

    def volumes(self) -> list[dict[str, Any]]:
        """Return the volumes of the driver's pod."""
        return [token_volume(self.secret, whole=True)] if self.secret else []

    def mounts(self) -> list[dict[str, Any]]:
        """Return the mounts of its container."""
        return [token_mount()] if self.secret else []

    def executors(self) -> dict[str, str]:
        """Return the Spark configuration that mounts the Secret in executors where the driver has it."""
        return {f"spark.kubernetes.executor.secrets.{self.secret}": TOKEN_PATH} if self.secret else {}


NO_ACCESS: Final = ArchiveAccess()
"""That to brokers without TLS that ask for no token."""


def authorities_secret(cron_job: str) -> str:
    """Return the name of the Secret of an archive whose brokers have TLS and ask for no token."""
    return f"{cron_job}-ca"
