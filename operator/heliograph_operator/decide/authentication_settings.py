"""Authentication of a BrokerCluster's pods: the settings, and the mounted files that they name."""

from __future__ import annotations

from typing import Any, Final

from heliograph_api.resources.authentication_spec import BACKUP_ROLE, METRICS_ROLE, OPERATOR_ROLE
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.values.issuers import KUBERNETES

from .authority_volumes import authority_volume
from .server_certificate import AUTHORITIES
from .token_keys import PUBLIC
from .token_secrets import public_name

#: The directory of a broker's container with the public halves of the keys, which the kubelet keeps current.
KEYS_PATH: Final = "/etc/heliograph/token-keys"
#: The same with the authorities of issuers' servers.
ISSUER_CA_PATH: Final = "/etc/heliograph/issuer-ca"
_KEYS_VOLUME: Final = "token-keys"
_ISSUER_CA_VOLUME: Final = "issuer-ca"


def authentication_volumes(cluster: BrokerCluster, name: str) -> list[dict[str, Any]]:
    """Return the volumes of a broker's pod."""
    stated = cluster.spec.authentication
    if not stated.enabled:
        return []
    items = [{"key": PUBLIC, "path": PUBLIC}]
    volumes: list[dict[str, Any]] = [
        {"name": _KEYS_VOLUME, "secret": {"secretName": public_name(name), "items": items}}
    ]
    if stated.oidc.ca is not None:
        volumes.append(authority_volume(_ISSUER_CA_VOLUME, stated.oidc.ca))
    return volumes


def authentication_mounts(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """Return the mounts of the volumes."""
    stated = cluster.spec.authentication
    if not stated.enabled:
        return []
    mounts: list[dict[str, Any]] = [{"name": _KEYS_VOLUME, "mountPath": KEYS_PATH, "readOnly": True}]
    if stated.oidc.ca is not None:
        mounts.append({"name": _ISSUER_CA_VOLUME, "mountPath": ISSUER_CA_PATH, "readOnly": True})
    return mounts


def authentication_settings(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the broker's settings that follow from ``spec.authentication``, together with those of ``spec.config``.

    A broker in a pod can be reached by other pods. Without authentication it needs a setting that says so.
    """
    config, stated = cluster.spec.config, cluster.spec.authentication
    if not stated.enabled:
        return {} if config.get("auth") or "insecure" in config else {"insecure": True}
    of_others = _settings_of_issuers(cluster)

    def with_config(setting: str, *first: str) -> str:
        return _joined(*first, *str(config.get(setting, "")).split(","))

    return {
        "auth": with_config("auth", "token", "oidc" if of_others else ""),
        "token_public_key": _joined(f"{KEYS_PATH}/{PUBLIC}", str(config.get("token_public_key", ""))),
        "superusers": with_config("superusers", OPERATOR_ROLE, *stated.superusers),
        "monitors": with_config("monitors", METRICS_ROLE),
        "backups": with_config("backups", BACKUP_ROLE),
        **of_others,
    }


def _settings_of_issuers(cluster: BrokerCluster) -> dict[str, Any]:
    """Return the settings for tokens of service accounts and identity providers, which add to those of the config."""
    config, stated = cluster.spec.config, cluster.spec.authentication
    pods, issuers = stated.service_accounts, stated.oidc
    found: dict[str, Any] = {}
    if pods.enabled:
        found["oidc_kubernetes"] = True
    if issuers.issuers:
        found["oidc_issuer"] = _joined(*issuers.issuers, *str(config.get("oidc_issuer", "")).split(","))
        found["oidc_role_claim"] = issuers.role_claim
    if issuers.ca is not None:
        found["oidc_ca"] = f"{ISSUER_CA_PATH}/{AUTHORITIES}"
    given = str(config.get("oidc_audience", "")).split(",")
    for_all = [*issuers.audiences, *given]
    by_issuer = [f"{each.issuer}={name}" for each in issuers.audiences_by_issuer for name in each.audiences]
    if pods.enabled and (issuers.issuers or config.get("oidc_issuer")):
        # A provider's token for the audience of pods is not from a pod, and pods have tokens for that audience only.
        by_issuer += [f"{KUBERNETES}={name.strip()}" for name in (pods.audience, *given) if name.strip()]
    elif pods.enabled:
        for_all = [pods.audience, *given]
    if found:
        by_issuer.append(str(config.get("oidc_audience_by_issuer", "")))
        named = {
            "oidc_audience": _joined(*for_all),
            "oidc_audience_by_issuer": _joined(*",".join(by_issuer).split(",")),
        }
        found |= {setting: text for setting, text in named.items() if text}
    return found


def _joined(*texts: str) -> str:
    return ",".join(dict.fromkeys(text.strip() for text in texts if text.strip()))
