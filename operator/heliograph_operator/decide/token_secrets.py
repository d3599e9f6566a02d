"""The Secrets with the keys of a BrokerCluster with authentication, and the settings of its brokers that name them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from heliograph_api.resources.authentication_spec import BACKUP_ROLE, METRICS_ROLE, OPERATOR_ROLE
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.values.issuers import KUBERNETES

from heliograph_operator.objects.kinds import Body, Kind

from .token_keys import PUBLIC

SECRET: Final = Kind("Secret", "secrets", "v1")
#: The directory of a broker's container with the public halves, which the kubelet keeps current.
KEYS_PATH: Final = "/etc/heliograph/token-keys"
#: The volume with them.
KEYS_VOLUME: Final = "token-keys"


def private_name(cluster: str) -> str:
    """Return the name of the Secret with the private halves, which only the operator reads."""
    return f"{cluster}-token-signing-key"


def public_name(cluster: str) -> str:
    """Return the name of the Secret with the public halves, which is mounted into the brokers."""
    return f"{cluster}-token-keys"


def keys_volume(cluster: str) -> dict[str, Any]:
    """Return the volume of a broker's pod with the public halves."""
    items = [{"key": PUBLIC, "path": PUBLIC}]
    return {"name": KEYS_VOLUME, "secret": {"secretName": public_name(cluster), "items": items}}


def keys_mount() -> dict[str, Any]:
    """Return the mount of the volume."""
    return {"name": KEYS_VOLUME, "mountPath": KEYS_PATH, "readOnly": True}


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


def decoded(secret: Body | None) -> dict[str, str]:
    """Return the entries of a Secret that are texts."""
    found = {}
    for name, text in ((secret or {}).get("data") or {}).items():
        try:
            found[name] = base64.b64decode(str(text)).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found


def encoded(entries: Mapping[str, str]) -> dict[str, str]:
    """Return texts as a Secret has them."""
    return {name: base64.b64encode(text.encode()).decode() for name, text in entries.items()}
