"""Kubernetes' strategic merge of a patch into a pod template.

Maps are merged, and null removes a field. Lists whose items have a key in Kubernetes are merged item by item; all
other lists are replaced as a whole. An item or map with ``$patch: replace`` is taken as it is, an item with ``$patch:
delete`` removes that of its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DIRECTIVE: Final = "$patch"
NO_LIST: Final = "is no list; valid: a list"
NO_TEXT: Final = "is no text; valid: a text"
#: The fields that identify the items of a list, by the name of the list. The first is required; the others have
#: defaults.
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "protocol"),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_DEFAULTS: Final = {"protocol": "TCP"}
#: Those that are numbers; all others are texts.
_NUMBERS: Final = frozenset({"containerPort"})
#: Lists whose items hold one of several alternatives: what an item of the patch does not name is dropped.
_ALTERNATIVES: Final = frozenset({"volumes"})


class PatchError(Exception):
    """A patch cannot be merged: the ``field`` of it, and what is wrong with it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


def merge(base: Mapping[str, Any], patch: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return ``base`` with ``patch`` merged into it; neither is changed. Raises :class:`PatchError`.

    ``path`` is that of the patch, for the error.
    """
    directive = patch.get(DIRECTIVE)
    if directive not in (None, "replace"):
        raise PatchError(_join(path, DIRECTIVE), f"{directive!r} is not possible here; valid: replace")
    if directive == "replace":
        return _plain({name: value for name, value in patch.items() if name != DIRECTIVE}, path)
    merged = dict(base)
    for name, value in patch.items():
        below = _join(path, name)
        if name.startswith("$"):
            raise PatchError(below, "is not supported; valid: $patch")
        if isinstance(merged.get(name), list) and not isinstance(value, list | None):
            raise PatchError(below, NO_LIST)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, list) and name in KEYS:
            there = merged.get(name)
            merged[name] = _merged_list(there if isinstance(there, list) else [], value, name, below)
        elif isinstance(value, Mapping):
            there = merged.get(name)
            merged[name] = merge(there if isinstance(there, Mapping) else {}, value, below)
        else:
            merged[name] = value
    return merged


def _merged_list(base: list[Any], patch: list[Any], name: str, path: str) -> list[Any]:
    alone = [item for item in patch if isinstance(item, Mapping) and item.keys() == {DIRECTIVE}]
    if alone:
        # A directive that is an item of its own is about the whole list.
        if any(item[DIRECTIVE] != "replace" for item in alone):
            raise PatchError(f"{path}.{DIRECTIVE}", "is not possible here; valid: replace, or a key beside it")
        base, patch = [], [item for item in patch if item not in alone]
    merged = {_key(item, name, path): item for item in base}
    for item in patch:
        key = _key(item, name, path)
        below = f"{path}[{key[0]}]"
        if item.get(DIRECTIVE) == "delete":
            merged.pop(key, None)
            continue
        there = merged.get(key, {})
        if name in _ALTERNATIVES:
            there = {field: value for field, value in there.items() if field in item}
        merged[key] = merge(there, item, below)
    return list(merged.values())


def _key(item: Any, name: str, path: str) -> tuple[Any, ...]:
    first = KEYS[name][0]
    if not isinstance(item, Mapping) or item.get(first) in (None, ""):
        raise PatchError(path, f"an item has no {first}; valid: a {first} in each, which identifies it")
    for field in KEYS[name]:
        value = item.get(field)
        if field in _NUMBERS and type(value) is not int:
            raise PatchError(_join(path, field), "is no whole number; valid: a whole number")
        if field not in _NUMBERS and not isinstance(value, str | None):
            raise PatchError(_join(path, field), NO_TEXT)
    return tuple(item.get(field) or _DEFAULTS.get(field, "") for field in KEYS[name])


def _plain(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a value that replaces another: without nulls and directives, as if merged into nothing."""
    return merge({}, value, path)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
