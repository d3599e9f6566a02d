"""The URLs at which Backups and archives reach the brokers of a BrokerCluster: with TLS wherever that can be used."""

from __future__ import annotations

from typing import NamedTuple

from heliograph_api.values.listeners import ENCRYPTED

from .kinds import Body
from .targets import endpoint, http_url


class ProgramUrls(NamedTuple):
    """The URLs of the binary protocol and of HTTP; empty while the BrokerCluster has not published them."""

    service_url: str
    http_url: str

    @property
    def encrypted(self) -> bool:
        """Whether they have TLS."""
        return self.service_url.startswith(ENCRYPTED)


def program_urls(cluster: Body) -> ProgramUrls:
    """Return those with TLS if brokers have it, unless they require certificates of clients: programs have none."""
    stated = (cluster.get("spec") or {}).get("tls") or {}
    encrypted = ProgramUrls(endpoint(cluster, "brokerTls"), endpoint(cluster, "https"))
    if stated.get("requireClientCertificate") is True or not all(encrypted):
        return ProgramUrls(endpoint(cluster, "broker"), http_url(cluster))
    return encrypted
