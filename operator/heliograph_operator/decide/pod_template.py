"""Merges ``spec.podTemplate`` of a BrokerCluster into the operator's pod template, whose essential parts it keeps."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .strategic_merge import NO_LIST, NO_TEXT, PatchError, merge

Manifest = dict[str, Any]

_PATH: Final = "spec.podTemplate"
#: Essential fields of the operator's containers, and what to use in their place.
_OF_A_CONTAINER: Final = {
    "image": "spec.image",
    "command": "leave it out",
    "args": "spec.config, or leave it out",
    "envFrom": "env",
}
_OF_THE_POD: Final = ("hostname", "subdomain")
#: Prefixes of the operator's labels and annotations.
_OWN_KEYS: Final = ("app.kubernetes.io/", "heliograph.dev/")
_LEAVE_OUT: Final = "leave it out"


@dataclass(frozen=True, slots=True)
class Essentials:
    """Names of what a patch may not change in a pod template."""

    container: str
    init_container: str
    data_volume: str
    data_path: str
    variables: frozenset[str]
    ports: frozenset[str]


def with_pod_template(template: Manifest, patch: Mapping[str, Any], essentials: Essentials) -> Manifest:
    """Return the operator's ``template`` with ``patch`` merged into it.

    Raises :class:`PatchError` for a patch that cannot be merged, or that changes what the operator depends on: the
    labels and annotations of ``template``, and command, image, ports, variables and data volume of the container.
    """
    merged = merge(template, patch, _PATH)
    before, after = _essential(template, template, essentials), _essential(merged, template, essentials)
    for field in {**before, **after}:
        value, valid = before.get(field) or (None, after[field][1])
        if after.get(field, (None, ""))[0] != value:
            problem = "is the operator's" if field in before else "is reserved for the operator"
            raise PatchError(f"{_PATH}.{field}", f"{problem}; valid: {valid}")
    return merged


def _essential(
    template: Mapping[str, Any], base: Mapping[str, Any], essentials: Essentials
) -> dict[str, tuple[Any, str]]:
    """Return the essential fields of ``template``, each with its value, and what is valid in place of a change.

    Its essential labels and annotations are those of ``base``.
    """
    found: dict[str, tuple[Any, str]] = {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for part in ("labels", "annotations"):
        for key in base["metadata"][part]:
            if key.startswith(_OWN_KEYS):
                found[f"metadata.{part}[{key}]"] = ((metadata.get(part) or {}).get(key), _LEAVE_OUT)
    found |= {f"spec.{field}": (spec[field], _LEAVE_OUT) for field in _OF_THE_POD if spec.get(field) is not None}
    if any(volume["name"] == essentials.data_volume for volume in _items(spec, "volumes", "spec")):
        found[f"spec.volumes[{essentials.data_volume}]"] = (True, "another name")
    for field, name, valid in (
        ("initContainers", essentials.init_container, "an init container of another name"),
        ("containers", essentials.container, "a container of another name"),
    ):
        for each in _items(spec, field, "spec"):
            if each["name"] == name:
                found |= {f"spec.{field}[{name}]": (True, valid)}
                found |= _essential_of_container(each, f"spec.{field}[{name}]", essentials)
    return found


def _essential_of_container(
    container: Mapping[str, Any], path: str, essentials: Essentials
) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for field, valid in _OF_A_CONTAINER.items():
        if container.get(field) is not None:
            found[f"{path}.{field}"] = (container[field], valid)
    for port in _items(container, "ports", path):
        if not isinstance(port.get("name"), str | None):
            raise PatchError(f"{_PATH}.{path}.ports[{port['containerPort']}].name", NO_TEXT)
        if port.get("name") in essentials.ports:
            found[f"{path}.ports[{port['name']}]"] = (port, "a port of another name and number")
    for variable in _items(container, "env", path):
        if variable["name"] in essentials.variables:
            found[f"{path}.env[{variable['name']}]"] = (variable, _LEAVE_OUT)
    for mount in _items(container, "volumeMounts", path):
        if f"{_resolved(mount['mountPath'])}/".startswith(f"{essentials.data_path}/"):
            found[f"{path}.volumeMounts[{mount['mountPath']}]"] = (mount, f"a path outside {essentials.data_path}")
    return found


def _resolved(path: str) -> str:
    """Return where a container's runtime mounts ``path``: it resolves ``..``, and from / if the path is relative."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _items(holder: Mapping[str, Any], field: str, path: str) -> list[Any]:
    """Return a list that :func:`.strategic_merge.merge` made, so that each item has a key of the right type."""
    found = holder.get(field)
    if not isinstance(found, list | None):
        raise PatchError(f"{_PATH}.{path}.{field}", NO_LIST)
    return found or []
