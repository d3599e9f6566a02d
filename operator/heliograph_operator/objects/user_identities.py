"""The identities by which a User lets clients prove its role, beside tokens, and which of them are in effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from heliograph_api.resources.role_state import HOST_NAME, ProvenIdentity, service_account

from .kinds import Body, shown
from .user_places import cluster_of

_OWN_NAME: Final = "until then, their clients have the role that their own credentials name"


def identities_of(user: Body) -> dict[ProvenIdentity, str]:
    """Return the identities that a User states, each with its field.

    A User of another Kubernetes namespace than its BrokerCluster may state service accounts of its own only: whose
    certificates and tokens of issuers others are, it cannot know.
    """
    return {identity: field for field, identity, foreign in _stated(user) if not foreign}


def not_in_effect(user: Body, cluster: Body, *, knows_roles: bool) -> list[str]:
    """Return the ways to prove the role that are not in effect, each with the reason.

    ``knows_roles``: whether the broker can give roles to identities.
    """
    found = []
    for field, identity, foreign in _stated(user):
        if foreign:
            namespace = user["metadata"]["namespace"]
            found.append(
                f"{field}: only Users in the Kubernetes namespace of {shown(cluster_of(user), namespace)} may name"
                " these; valid: serviceAccount, or token"
            )
        elif not knows_roles:
            found.append(f"{field}: needs brokers that can give roles to identities; valid: a newer image")
        elif needs := _missing(identity, cluster.get("spec") or {}):
            found.append(f"{field}: needs {needs}; {_OWN_NAME}")
    return found


def _stated(user: Body) -> Iterator[tuple[str, ProvenIdentity, bool]]:
    """Yield field, identity, and whether it is not for the User to state."""
    namespace = str(user["metadata"]["namespace"])
    elsewhere = cluster_of(user).namespace != namespace
    for index, proof in enumerate((user.get("spec") or {}).get("authentication") or ()):
        field = f"spec.authentication[{index}]"
        if account := proof.get("serviceAccount"):
            yield f"{field}.serviceAccount", service_account(namespace, str(account.get("name"))), False
        elif certificate := proof.get("certificate"):
            name = certificate.get("subject") or f"{HOST_NAME}{certificate.get('dnsName')}"
            yield f"{field}.certificate", ProvenIdentity("certificate", str(name)), elsewhere
        elif oidc := proof.get("oidc"):
            identity = ProvenIdentity("oidc", str(oidc.get("subject")), str(oidc.get("issuer")))
            yield f"{field}.oidc", identity, elsewhere


def _missing(identity: ProvenIdentity, cluster: Mapping[str, Any]) -> str:
    """Return what the spec of a BrokerCluster lacks for an identity; empty if it has everything."""
    authentication, config = cluster.get("authentication") or {}, cluster.get("config") or {}
    if identity.method == "serviceAccount":
        accepted = (authentication.get("serviceAccounts") or {}).get("enabled") or config.get("oidc_kubernetes")
        return "" if accepted else "authentication.serviceAccounts.enabled on the BrokerCluster"
    if identity.method == "oidc":
        issuers = (authentication.get("oidc") or {}).get("issuers") or ()
        known = {*issuers, *(each.strip() for each in str(config.get("oidc_issuer") or "").split(","))}
        return "" if identity.issuer in known else "the issuer in authentication.oidc.issuers of the BrokerCluster"
    tls = cluster.get("tls") or {}
    methods = {each.strip() for each in str(config.get("auth") or "").split(",")}
    if tls.get("enabled") and tls.get("clientCA") and "tls" in methods:
        return ""
    return "tls.clientCA and tls among config.auth of the BrokerCluster"
