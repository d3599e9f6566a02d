"""Avro's unions of several types as records with a member for each type, without a change of the bytes.

Avro writes a record as its fields one after the other, and a null as no bytes at all. So what a union has for a type is
the same as a record of one member with that type and of nulls for the other members, and what reads and writes records
knows which type it was.
"""

from __future__ import annotations

from itertools import count
from typing import Any

#: Two types that are one column, because one has every value of the other.
_NUMBERS = (frozenset({"int", "long"}), frozenset({"float", "double"}))
#: What a value may be read as beside the type that it was written with.
_READ_AS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_NAMED = ("record", "enum", "fixed")
#: What each has inside.
_PARTS = {"array": "items", "map": "values"}


def members_of(union: list[Any]) -> list[Any]:
    """Return the types that are members; none where there is only one beside null, or two that are one number."""
    types = [each for each in union if each != "null"]
    if len(types) < 2 or number_of(union) is not None:
        return []
    return types


def number_of(union: list[Any]) -> str | None:
    """Return the wider type of a union of two numbers, one of which has every value of the other; else None."""
    types = [each for each in union if each != "null"]
    if all(isinstance(each, str) for each in types) and frozenset(types) in _NUMBERS:
        return "long" if "long" in types else "double"
    return None


class UnionsAsRecords:
    """A definition in Avro whose unions of several types are records of ``member0``, ``member1`` and so on."""

    def __init__(self, definition: Any) -> None:
        self._number = count()
        #: By a record's name without its namespace: what the names of its unions begin with, and its fields.
        self._records: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        #: The definition.
        self.definition = self._rewritten(definition, "Union")

    def _rewritten(self, avro: Any, where: str) -> Any:
        if isinstance(avro, list):
            members = members_of(avro)
            if not members:
                return [self._rewritten(each, where) for each in avro]
            records = [
                _record(at, len(members), self._rewritten(each, f"{where}_{at}"), f"{where}_{at}")
                for at, each in enumerate(members)
            ]
            return [each if each == "null" else records.pop(0) for each in avro]
        if isinstance(avro, str):
            return avro
        kind = avro["type"]
        if kind == "record":
            prefix = f"Union{next(self._number)}"
            self._records.setdefault(_last(avro["name"]), (prefix, avro["fields"]))
            fields = [self._field(each, f"{prefix}_{each['name']}") for each in avro["fields"]]
            return avro | {"fields": fields}
        if isinstance(kind, (dict, list)):
            return avro | {"type": self._rewritten(kind, where)}
        if part := _PARTS.get(kind):
            return avro | {part: self._rewritten(avro[part], f"{where}_{part}")}
        return avro

    def _field(self, field: dict[str, Any], where: str) -> dict[str, Any]:
        rewritten = field | {"type": self._rewritten(field["type"], where)}
        if "default" in field:
            rewritten["default"] = _default(field["type"], field["default"])
        return rewritten

    def as_written(self, definition: Any) -> Any:
        """Return another definition whose values Avro resolves with this one.

        What it writes where this one has several types is a record of the member that it is read as.
        """
        return self._matched(definition, None, "Union")

    def _matched(self, avro: Any, reader: Any, where: str) -> Any:
        avro, reader = _bare(avro), _bare(reader)
        members = members_of(reader) if isinstance(reader, list) else []
        if isinstance(avro, list):
            if members:
                return [self._member(each, members, where) for each in avro]
            return [self._matched(each, _only(reader), where) for each in avro]
        if members:
            return self._member(avro, members, where)
        if isinstance(avro, str):
            return avro
        reader = _only(reader)
        if avro["type"] == "record":
            prefix, fields = self._records.get(_last(avro["name"]), ("", []))
            known = {name: each for each in fields for name in (*each.get("aliases", ()), each["name"])}
            return avro | {"fields": [self._matched_field(each, known, prefix) for each in avro["fields"]]}
        if part := _PARTS.get(avro["type"]):
            inside = reader.get(part) if isinstance(reader, dict) else None
            return avro | {part: self._matched(avro[part], inside, f"{where}_{part}")}
        return avro

    def _matched_field(self, field: dict[str, Any], known: dict[str, Any], prefix: str) -> dict[str, Any]:
        reader = known.get(field["name"], {"type": None, "name": ""})
        return field | {"type": self._matched(field["type"], reader["type"], f"{prefix}_{reader['name']}")}

    def _member(self, avro: Any, members: list[Any], where: str) -> Any:
        if avro == "null":
            return avro
        kinds = [_kind(each) for each in members]
        for kind in (_kind(avro), *_READ_AS.get(_kind(avro), ())):
            if kind in kinds:
                at = kinds.index(kind)
                name = f"{where}_{at}"
                if kind != _kind(avro):
                    # Several types may be read as one; a namespace does not matter where records are compared.
                    name = f"of_{_kind(avro)}.{name}"
                return _record(at, len(members), self._matched(avro, members[at], f"{where}_{at}"), name)
        # Avro refuses the values of this type, and only those.
        return avro


def _record(at: int, members: int, avro: Any, name: str) -> dict[str, Any]:
    fields = [{"name": f"member{each}", "type": avro if each == at else "null"} for each in range(members)]
    return {"type": "record", "name": name, "fields": fields}


def _bare(avro: Any) -> Any:
    while isinstance(avro, dict) and isinstance(avro["type"], (dict, list)):
        avro = avro["type"]
    return avro


def _only(avro: Any) -> Any:
    """Return the one type of a union with null."""
    if isinstance(avro, list):
        return _bare(next((each for each in avro if each != "null"), None))
    return avro


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(avro: Any) -> str:
    """Return what types are compared by: a name, or the kind of what has none."""
    avro = _bare(avro)
    if isinstance(avro, str):
        return _last(avro)
    return _last(avro["name"]) if avro["type"] in _NAMED else str(avro["type"])


def _default(avro: Any, value: Any) -> Any:
    """Return a field's default for the rewritten type; that of a union is a value of its first type."""
    avro = _bare(avro)
    if isinstance(avro, list):
        if value is None:
            return None
        members = members_of(avro)
        found = _default(_only(avro), value)
        return {f"member{at}": None for at in range(len(members))} | {"member0": found} if members else found
    if isinstance(avro, dict):
        if avro["type"] == "record" and isinstance(value, dict):
            types = {each["name"]: each["type"] for each in avro["fields"]}
            return {name: _default(types[name], each) if name in types else each for name, each in value.items()}
        if avro["type"] == "array" and isinstance(value, list):
            return [_default(avro["items"], each) for each in value]
        if avro["type"] == "map" and isinstance(value, dict):
            return {name: _default(avro["values"], each) for name, each in value.items()}
    return value
