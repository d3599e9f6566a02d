"""TLS of a BrokerCluster's pods: the ports, the mounted certificate, and the settings and addresses that follow."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from heliograph_api.resources.cluster_tls_spec import ClusterTlsSpec
from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.objects.kinds import Body

from .authority_volumes import authority_volume
from .server_certificate import AUTHORITIES, CERTIFICATE, KEY

#: The directory of a broker's container with the certificate, which the kubelet keeps current.
TLS_PATH: Final = "/etc/heliograph/tls"
#: The same with the authorities of clients' certificates.
CLIENT_CA_PATH: Final = "/etc/heliograph/client-ca"
PULSAR_PORT_NAME: Final = "pulsar"
HTTP_PORT_NAME: Final = "http"
PULSAR_TLS_PORT_NAME: Final = "pulsar-ssl"
HTTPS_PORT_NAME: Final = "https"
_VOLUME: Final = "tls"
_CLIENT_CA_VOLUME: Final = "client-ca"


class OpenPorts(NamedTuple):
    """The ports that brokers have: those without TLS, and those with it."""

    plain: bool = True
    encrypted: bool = False


def server_secret_name(cluster: str) -> str:
    """Return the name of the Secret with the certificate that the operator makes, which brokers mount."""
    return f"{cluster}-tls"


def authority_secret_name(cluster: str) -> str:
    """Return the name of the Secret with the authorities and their keys, which only the operator reads."""
    return f"{cluster}-tls-authority"


def bundle_name(cluster: str) -> str:
    """Return the name of the ConfigMap with the certificates that clients trust."""
    return f"{cluster}-ca"


def wanted_ports(tls: ClusterTlsSpec) -> OpenPorts:
    """Return the ports that brokers are to have."""
    return OpenPorts(plain=not (tls.enabled and tls.only), encrypted=tls.enabled)


def ports_of(stateful_set: Body | None) -> OpenPorts | None:
    """Return the ports of the brokers of a StatefulSet; None without any."""
    template = (((stateful_set or {}).get("spec") or {}).get("template") or {}).get("spec") or {}
    names = {port.get("name") for each in template.get("containers") or () for port in each.get("ports") or ()}
    if not names & {PULSAR_PORT_NAME, PULSAR_TLS_PORT_NAME}:
        return None
    return OpenPorts(PULSAR_PORT_NAME in names, PULSAR_TLS_PORT_NAME in names)


def reachable_ports(tls: ClusterTlsSpec, stateful_set: Body | None) -> OpenPorts:
    """Return the ports that lead to brokers: those that they are to have, and those that they have until then."""
    wanted, now = wanted_ports(tls), ports_of(stateful_set) or OpenPorts(plain=False)
    return OpenPorts(wanted.plain or now.plain, wanted.encrypted or now.encrypted)


def tls_volumes(cluster: BrokerCluster, name: str) -> list[dict[str, Any]]:
    """Return the volumes of a broker's pod."""
    tls = cluster.spec.tls
    if not tls.enabled:
        return []
    items = [{"key": each, "path": each} for each in (CERTIFICATE, KEY)]
    secret = tls.secret_name or server_secret_name(name)
    volumes: list[dict[str, Any]] = [{"name": _VOLUME, "secret": {"secretName": secret, "items": items}}]
    if tls.client_ca is not None:
        volumes.append(authority_volume(_CLIENT_CA_VOLUME, tls.client_ca))
    return volumes


def tls_mounts(tls: ClusterTlsSpec) -> list[dict[str, Any]]:
    """Return the mounts of the volumes."""
    if not tls.enabled:
        return []
    mounts: list[dict[str, Any]] = [{"name": _VOLUME, "mountPath": TLS_PATH, "readOnly": True}]
    if tls.client_ca is not None:
        mounts.append({"name": _CLIENT_CA_VOLUME, "mountPath": CLIENT_CA_PATH, "readOnly": True})
    return mounts


def tls_settings(tls: ClusterTlsSpec) -> dict[str, Any]:
    """Return the broker's settings."""
    if not tls.enabled:
        return {}
    settings: dict[str, Any] = {"tls_cert": f"{TLS_PATH}/{CERTIFICATE}", "tls_key": f"{TLS_PATH}/{KEY}"}
    if tls.client_ca is not None:
        settings["tls_client_ca"] = f"{CLIENT_CA_PATH}/{AUTHORITIES}"
        settings["tls_require_client_certificate"] = tls.require_client_certificate
    if tls.only:
        settings["tls_only"] = True
    return settings


def server_names(name: str, namespace: str, domain: str, more: Iterable[str]) -> list[str]:
    """Return the host names that the brokers of a BrokerCluster are reached by; ``more`` are those of listeners."""
    services = [name, f"{name}-admin", f"{name}-metrics"]
    found = [f"{each}.{namespace}{end}" for each in services for end in ("", ".svc", f".svc.{domain}")]
    # Each broker's own name, which lookups answer.
    pods = [f"*.{name}-brokers.{namespace}.svc", f"*.{name}-brokers.{namespace}.svc.{domain}"]
    return sorted({*services, *found, *pods, *_nameable(more)})


def verified_names(name: str, namespace: str, domain: str, more: Iterable[str]) -> list[str]:
    """Return those of the names that clients verify in any case: the hosts that they connect to."""
    service = f"{namespace}.svc.{domain}"
    return [f"{name}.{service}", f"{name}-0.{name}-brokers.{service}", f"{name}-admin.{service}", *_nameable(more)]


def _nameable(hosts: Iterable[str]) -> list[str]:
    """Return the hosts that a certificate can name: names of 253 characters at most, each part of 63, and addresses.

    Addresses are as they are read from a certificate, which has them as numbers.
    """
    fitting = [
        each
        for each in hosts
        if 0 < len(each) <= 253 and each.isascii() and all(len(part) <= 63 for part in each.split("."))
    ]
    return [_canonical(each) for each in fitting]


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host


def hosts_of(urls: Sequence[str]) -> list[str]:
    """Return the hosts of URLs of the binary protocol."""
    hosts = (url.partition("://")[2].rpartition(":")[0] for url in urls)
    return [host.removeprefix("[").removesuffix("]") for host in hosts if host]
