"""Whether an object in Kubernetes still is what was applied, and where not.

The API server adds defaults and others add fields of their own; neither is drift. Where a map or a list is ours as a
whole (the data of a ConfigMap, the containers of a pod), what others put in is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

#: Paths (list items by ``[]``) at which nothing may be that is not ours.
WHOLLY_OURS: Final = frozenset(
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
        "spec.ingress",
        "spec.egress",
        "spec.ports",
    }
)
#: What tells the items of a list apart, for lists whose items have it.
_KEYS: Final = ("name", "uid")


def differences(wanted: Any, found: Any) -> list[str]:
    """Return the paths at which ``found`` is not what is ``wanted``, sorted; none if it holds all of it."""
    return sorted(set(_differences(wanted, found, "", "")))


def _differences(wanted: Any, found: Any, path: str, pattern: str) -> Iterator[str]:
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            # The API server leaves out what is empty.
            if wanted or found is not None:
                yield path
            return
        for key, value in wanted.items():
            yield from _differences(value, found.get(key), _join(path, key), _join(pattern, key))
        if pattern in WHOLLY_OURS:
            yield from (_join(path, key) for key in found if key not in wanted)
    elif isinstance(wanted, list):
        yield from _in_list(wanted, found if isinstance(found, list) else [], path, pattern)
    elif wanted != found:
        yield path


def _in_list(wanted: list[Any], found: list[Any], path: str, pattern: str) -> Iterator[str]:
    key = next((key for key in _KEYS if _all_have(key, wanted)), None)
    if key is None or not _all_have(key, found):
        if len(wanted) != len(found):
            yield path
            return
        for index, (ours, theirs) in enumerate(zip(wanted, found, strict=True)):
            yield from _differences(ours, theirs, f"{path}[{index}]", f"{pattern}[]")
        return
    there = {item[key]: item for item in found}
    for item in wanted:
        yield from _differences(item, there.pop(item[key], None), f"{path}[{item[key]}]", f"{pattern}[]")
    if pattern in WHOLLY_OURS:
        yield from (f"{path}[{name}]" for name in there)


def _all_have(key: str, items: list[Any]) -> bool:
    return all(isinstance(item, Mapping) and key in item for item in items)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def without_strangers(wanted: Any, found: Any, pattern: str = "") -> dict[str, Any]:
    """Return a JSON merge patch that takes out what others put where everything is ours; empty if there is nothing."""
    patch: dict[str, Any] = {}
    for key, value in wanted.items():
        there = found.get(key) if isinstance(found, Mapping) else None
        below = _join(pattern, key)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            inner = without_strangers(value, there, below)
            if below in WHOLLY_OURS:
                inner |= {stranger: None for stranger in there if stranger not in value}
            if inner:
                patch[key] = inner
        elif isinstance(value, list) and below in WHOLLY_OURS and list(_differences(value, there, "", below)):
            # A merge patch knows lists as a whole only.
            patch[key] = value
    return patch
