"""Records in Avro become columns all at once, by the compiled module.

It reads what most schemas are made of, as they were written with the topic's own schema. Everything else, and all that
is wrong, is left to the reference in :mod:`.values`, so what becomes of a message does not depend on those beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .compiled import built
from .filled_buffers import array_of, buffers_of
from .rows import TIMESTAMP

#: What a type is to the compiled module, by the name of its kind first.
Plan = tuple[Any, ...]


_compiled = built("_avro")
#: Whether the compiled module is there.
COMPILED = _compiled is not None

_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
}
_NAMED = {"fixed": pa.binary(), "enum": pa.string(), **{logical: kind for (_, logical), kind in _LOGICAL.items()}}


class AvroBuffers:
    """Reads records of a definition; of its fields those that are asked for become columns."""

    def __init__(self, plan: Plan, fields: pa.Schema) -> None:
        self._plan = plan
        self._fields = fields
        written = [name for name, _ in plan[1]]
        self._kept = [name in fields.names for name in written]
        self._order = [name for name in written if name in fields.names]

    @classmethod
    def for_fields(cls, definition: Any, fields: pa.Schema) -> AvroBuffers | None:
        """Return a reader, or None if the module is not there, or a field is of a type that it does not read."""
        if not COMPILED:
            return None
        plan = _Plans().of(definition)
        if plan is None or plan[0] != "record":
            return None
        plans = dict(plan[1])
        if any(field.name not in plans or not _is(plans[field.name], field.type) for field in fields):
            return None
        return cls(plan, fields)

    def columns(self, values: pa.Array) -> list[pa.Array] | None:
        """Return a column for each field, null for a value that is null; None where any value is not read here."""
        buffers = buffers_of(values)
        taken = None if buffers is None else _compiled.decode(self._plan, self._kept, *buffers)
        if taken is None:
            return None
        made = {
            name: array_of(self._fields.field(name).type, parts) for name, parts in zip(self._order, taken, strict=True)
        }
        return [made[name] for name in self._fields.names]


class _Plans:
    """Plans of one definition, which names some types once and refers to them later."""

    def __init__(self) -> None:
        self._named: dict[str, Plan | None] = {}

    def of(self, avro: Any, namespace: str = "") -> Plan | None:
        """Return the plan of a type within a namespace; None if it is not read."""
        if isinstance(avro, str):
            return (avro,) if avro in _PLAIN else self._named.get(avro)
        if isinstance(avro, list):
            return self._of_union(avro, namespace)
        kind = avro["type"]
        if not isinstance(kind, str):
            return self.of(kind, namespace)
        if "logicalType" in avro:
            logical = (kind, avro["logicalType"])
            return (logical[1],) if logical in _LOGICAL else None
        if kind in ("record", "enum", "fixed"):
            return self._of_named(kind, avro, namespace)
        if kind in ("array", "map"):
            inner = self.of(avro["items" if kind == "array" else "values"], namespace)
            return None if inner is None else (kind, inner)
        return self.of(kind, namespace)

    def _of_union(self, branches: list[Any], namespace: str) -> Plan | None:
        if len(branches) != 2 or branches.count("null") != 1:
            return None
        at = branches.index("null")
        inner = self.of(branches[1 - at], namespace)
        return None if inner is None or inner[0] == "nullable" else ("nullable", at, inner)

    def _of_named(self, kind: str, avro: dict[str, Any], namespace: str) -> Plan | None:
        before, _, name = avro["name"].rpartition(".")
        namespace = before or avro.get("namespace") or namespace
        plan: Plan | None = None
        if kind == "fixed":
            plan = (kind, int(avro["size"]))
        elif kind == "enum":
            plan = (kind, tuple(each.encode() for each in avro["symbols"]))
        else:
            fields = [(each["name"], self.of(each["type"], namespace)) for each in avro["fields"]]
            if all(each is not None for _, each in fields):
                plan = (kind, tuple(fields))
        for each in {name, f"{namespace}.{name}"}:
            # Two types may have one name in different namespaces; nobody decides here which one is meant.
            self._named[each] = None if each in self._named else plan
        return plan


def _is(plan: Plan, kind: pa.DataType) -> bool:
    """Whether a plan gives an array of this type."""
    name, *parts = plan
    if name == "nullable":
        return _is(parts[1], kind)
    if name == "record":
        inner = parts[0]
        if not pa.types.is_struct(kind) or [each.name for each in kind] != [each for each, _ in inner]:
            return False
        return all(_is(each, field.type) for (_, each), field in zip(inner, kind, strict=True))
    if name == "array":
        return pa.types.is_list(kind) and _is(parts[0], kind.value_type)
    if name == "map":
        return pa.types.is_map(kind) and kind.key_type == pa.string() and _is(parts[0], kind.item_type)
    return bool((_PLAIN.get(name) or _NAMED[name]) == kind)
