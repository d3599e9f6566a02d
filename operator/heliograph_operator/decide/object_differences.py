"""Compares a Kubernetes object with its manifest, path by path.

The API server adds defaults and writes quantities in its own form, and other writers add fields; none of it is drift.
But a few maps and lists belong to the operator as a whole (the data of a ConfigMap, the containers of a pod): there, a
foreign item is drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .quantity import same_quantity

#: Paths (list items by ``[]``) at which no foreign item is allowed.
EXCLUSIVE: Final = frozenset(
    {
        "data",
        "spec.selector",
        "spec.template.spec.containers",
        "spec.template.spec.containers[].env",
        "spec.template.spec.containers[].envFrom",
        "spec.template.spec.initContainers",
        "spec.jobTemplate.spec.template.spec.containers",
        "spec.jobTemplate.spec.template.spec.containers[].env",
        "spec.jobTemplate.spec.template.spec.containers[].envFrom",
        # A NetworkPolicy: whatever is added to its selector, to a port or to a peer can let more in.
        "spec.podSelector",
        "spec.podSelector.matchLabels",
        "spec.ingress",
        "spec.ingress[]",
        "spec.ingress[].ports[]",
        "spec.ingress[].from[]",
        "spec.egress",
        "spec.egress[]",
        "spec.egress[].ports[]",
        "spec.egress[].to[]",
        "spec.ports",
    }
)
#: The paths of quantities.
_QUANTITIES: Final = re.compile(r"\.resources\.(requests|limits)\.|\.emptyDir\.sizeLimit$|\.resourceFieldRef\.divisor$")
#: Fields that identify the items of a list, if all of them have it, each another. A mount has the name of its volume.
_KEYS: Final = ("mountPath", "name", "uid")


def differences(wanted: Any, found: Any) -> list[str]:
    """Return the paths at which ``found`` differs from ``wanted``, sorted."""
    return sorted(set(_differences(wanted, found, "", "")))


def _differences(wanted: Any, found: Any, path: str, pattern: str) -> Iterator[str]:
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            # The API server omits empty maps.
            if wanted or found is not None:
                yield path
            return
        for key, value in wanted.items():
            yield from _differences(value, found.get(key), _join(path, key), _join(pattern, key))
        if pattern in EXCLUSIVE:
            yield from (_join(path, key) for key in found if key not in wanted)
    elif isinstance(wanted, list):
        yield from _in_list(wanted, found if isinstance(found, list) else [], path, pattern)
    elif wanted != found and not (_QUANTITIES.search(pattern) and same_quantity(wanted, found)):
        yield path


def _in_list(wanted: list[Any], found: list[Any], path: str, pattern: str) -> Iterator[str]:
    key = next((key for key in _KEYS if _identifies(key, wanted)), None)
    if key is None or not _identifies(key, found):
        if len(wanted) != len(found):
            yield path
            return
        for index, (ours, theirs) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(ours, theirs, f"{path}[{index}]", f"{pattern}[]")
        return
    there = {item[key]: item for item in found}
    for item in wanted:
        yield from _differences(item, there.pop(item[key], None), f"{path}[{item[key]}]", f"{pattern}[]")
    if pattern in EXCLUSIVE:
        yield from (f"{path}[{name}]" for name in there)


def _identifies(key: str, items: list[Any]) -> bool:
    if not all(isinstance(item, Mapping) and key in item for item in items):
        return False
    return len({item[key] for item in items}) == len(items)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def foreign_fields(wanted: Any, found: Any, pattern: str = "") -> dict[str, Any]:
    """Return the JSON merge patch that removes foreign items at the exclusive paths; empty if there are none."""
    patch: dict[str, Any] = {}
    for key, value in wanted.items():
        there = found.get(key) if isinstance(found, Mapping) else None
        below = _join(pattern, key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            inner = foreign_fields(value, there, below)
            if below in EXCLUSIVE:
                inner |= {name: None for name in there if name not in value}
            if inner:
                patch[key] = inner
        elif isinstance(value, list) and below in EXCLUSIVE and list(_differences(value, there, "", below)):
            # A merge patch can only replace a list as a whole.
            patch[key] = value
    return patch
