"""Volumes of a broker's pod with certificates of authorities, each of them one file."""

from __future__ import annotations

from typing import Any

from heliograph_api.resources.certificate_source import MountedCertificates

from .server_certificate import AUTHORITIES


def authority_volume(name: str, source: MountedCertificates) -> dict[str, Any]:
    """Return the volume, whose file is named :data:`AUTHORITIES`. The kubelet keeps it current."""
    of_secret, of_config_map = source.secret_ref, source.config_map_ref
    if of_secret is not None:
        items = [{"key": of_secret.key, "path": AUTHORITIES}]
        return {"name": name, "secret": {"secretName": of_secret.name, "items": items}}
    assert of_config_map is not None
    items = [{"key": of_config_map.key, "path": AUTHORITIES}]
    return {"name": name, "configMap": {"name": of_config_map.name, "items": items}}
