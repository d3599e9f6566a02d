"""Reads the token and the certificate authorities of a BrokerConnection from Secrets and ConfigMaps."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, Protocol

from heliograph_api.resources.certificate_source import CertificateReference
from heliograph_api.resources.connection_spec import BrokerConnectionSpec, TokenReference

from heliograph_operator.decide.cluster_objects import CONFIG_MAP
from heliograph_operator.decide.token_secrets import SECRET
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import Kind


class Finder(Protocol):
    """The one method of :class:`.kube.client.Kube` that is needed."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object, or ``None`` if there is none."""


class AccessMissing(Exception):
    """There are no credentials to use; the text names the field, what is wrong, and what is valid."""


@dataclass(frozen=True, slots=True)
class Access:
    """All that a session with a broker depends on. Secrets are not part of its text."""

    http_url: str
    token: str = field(default="", repr=False)
    trusted: str = field(default="", repr=False)


async def access_of(kube: Finder, namespace: str, spec: BrokerConnectionSpec) -> Access:
    """Read what a spec names in a Kubernetes namespace. Raises :class:`AccessMissing` or :class:`.client.KubeError`."""
    token = trusted = ""
    if spec.auth is not None:
        where = "spec.auth.secretRef"
        # Files often end with a newline.
        token = (await _entry(kube, SECRET, namespace, spec.auth.secret_ref, where)).strip()
        if not token.isascii() or not token.isprintable() or not token:
            raise AccessMissing(
                f"{where}: entry {spec.auth.secret_ref.key} of Secret {spec.auth.secret_ref.name} is no token;"
                " valid: a text of printable characters on one line"
            )
    if spec.tls is not None:
        reference = spec.tls.secret_ref or spec.tls.config_map_ref
        assert reference is not None
        kind, name = (SECRET, "secretRef") if spec.tls.secret_ref is not None else (CONFIG_MAP, "configMapRef")
        trusted = await _entry(kube, kind, namespace, reference, f"spec.tls.{name}")
        if not trusted.strip():
            raise AccessMissing(
                f"spec.tls.{name}.key: entry {reference.key} of {kind.name} {reference.name} is empty;"
                " valid: certificates in PEM (-----BEGIN CERTIFICATE-----)"
            )
    return Access(spec.admin_url, token, trusted)


async def _entry(
    kube: Finder, kind: Kind, namespace: str, reference: TokenReference | CertificateReference, where: str
) -> str:
    try:
        found = await kube.find(kind, namespace, reference.name)
    except KubeRefused as error:
        if error.status != 403:
            raise
        raise AccessMissing(
            f"{where}.name: the operator may not read {kind.name} {reference.name};"
            " valid: one that its chart names in connections.secrets"
        ) from error
    if found is None:
        raise AccessMissing(
            f"{where}.name: there is no {kind.name} {reference.name} in Kubernetes namespace {namespace};"
            " valid: one that exists there"
        )
    data = found.get("data") or {}
    if reference.key not in data:
        has = ", ".join(sorted(data)) or "add the entry to it"
        raise AccessMissing(f"{where}.key: {kind.name} {reference.name} has no entry {reference.key}; valid: {has}")
    text = str(data[reference.key])
    if kind is CONFIG_MAP:
        return text
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AccessMissing(
            f"{where}.key: entry {reference.key} of Secret {reference.name} is no text; valid: UTF-8, base64-encoded"
            " once (stringData does that)"
        ) from error
