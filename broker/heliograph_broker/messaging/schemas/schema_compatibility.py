"""Whether two schemas can read each other's data: Avro's resolution rules, which Pulsar's JSON schemas share.

Follows the Avro specification, section "Schema Resolution": a reader's record may have fields the writer lacks
only with a default; writers' extra fields are ignored; numbers promote (int to long, float, double …).

Clients choose both schemas, and comparing two unions takes the product of their sizes: so the work is bounded.
"""

from __future__ import annotations

import json
from typing import Any, Final

from heliograph_api.protocol.wire_pb2 import Schema

from heliograph_broker.messaging.base.records import SchemaRecord

_PROMOTIONS: dict[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "string", "bytes"})
_NAMED = frozenset({"record", "enum", "fixed"})
_AVRO_LIKE = (Schema.Avro, Schema.Json)

#: Parts that are compared at most when a schema is added: that takes some tenths of a second.
MAX_COMPARISONS: Final = 100_000

AvroSchema = Any


FULL = "FULL"
BACKWARD = "BACKWARD"
FORWARD = "FORWARD"
ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
TRANSITIVE = "_TRANSITIVE"


class TooManyComparisonsError(Exception):
    """More than :data:`MAX_COMPARISONS` parts would be compared."""


class Comparisons:
    """Counts the parts that are compared, of one schema with all that it may have to be compatible with."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made = 0

    def count(self) -> None:
        """Count one more. Raises :class:`TooManyComparisonsError`."""
        self._made += 1
        if self._made > MAX_COMPARISONS:
            raise TooManyComparisonsError


def find_incompatibility(old: SchemaRecord, new: SchemaRecord, strategy: str, comparisons: Comparisons) -> str | None:
    """Return why ``new`` may not follow ``old`` by one of Pulsar's strategies, None if it may.

    BACKWARD: a reader with ``new`` can read data written with ``old``; FORWARD: the other way round; FULL: both.
    Raises :class:`TooManyComparisonsError`.
    """
    if strategy == ALWAYS_COMPATIBLE:
        return None
    if strategy == ALWAYS_INCOMPATIBLE:
        return f"the strategy is {ALWAYS_INCOMPATIBLE}: no schema may follow another"
    strategy = strategy.removesuffix(TRANSITIVE)
    if old.type != new.type:
        return f"type {_type_name(new.type)} instead of {_type_name(old.type)}"
    if old.type not in _AVRO_LIKE:
        return None
    try:
        old_schema, new_schema = json.loads(old.data), json.loads(new.data)
        problem = _Resolution(old_schema, new_schema, comparisons).problem() if strategy != FORWARD else None
        if problem is None and strategy != BACKWARD:
            problem = _Resolution(new_schema, old_schema, comparisons).problem()
    except ValueError as error:
        return f"the definition is not JSON: {error}"
    except RecursionError:
        return "a definition is nested too deeply"
    except (AttributeError, KeyError, TypeError):
        # Nothing checks definitions before: they are the clients' own.
        return "a definition is no schema of Avro"
    return problem


class _Resolution:
    """One direction: data written with ``writer`` read with ``reader``."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema, comparisons: Comparisons) -> None:
        self._comparisons = comparisons
        self._writer_names: dict[str, AvroSchema] = {}
        self._reader_names: dict[str, AvroSchema] = {}
        self._writer = _resolved(writer, "", self._writer_names)
        self._reader = _resolved(reader, "", self._reader_names)
        #: Pairs of records that are taken for compatible, in the order in which that began.
        self._assumed: dict[tuple[str, str], None] = {}
        #: Pairs of records that are not compatible, and why.
        self._failed: dict[tuple[str, str], str] = {}

    def problem(self) -> str | None:
        return self._compare(self._writer, self._reader, "")

    def _compare(self, writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
        self._comparisons.count()
        writer, reader = _defined(writer, self._writer_names), _defined(reader, self._reader_names)
        if isinstance(writer, list):
            for branch in writer:
                problem = self._compare(branch, reader, path)
                if problem is not None:
                    return problem
            return None
        if isinstance(reader, list):
            if any(self._compare(writer, branch, path) is None for branch in reader):
                return None
            return f"{path or 'the schema'}: {_kind(writer)} is in no branch of the reader's union"
        writer_kind, reader_kind = _kind(writer), _kind(reader)
        if writer_kind != reader_kind:
            if reader_kind in _PROMOTIONS.get(writer_kind, frozenset()):
                return None
            return f"{path or 'the schema'}: {writer_kind} cannot be read as {reader_kind}"
        if writer_kind == "record":
            # Their names may differ: Avro's text asks for the same one, its library for Java, which Pulsar uses, not.
            return self._compare_records(writer, reader, path)
        if writer_kind in _NAMED:
            return self._compare_named(writer, reader, path)
        if writer_kind == "array":
            return self._compare(writer.get("items"), reader.get("items"), path + "[]")
        if writer_kind == "map":
            return self._compare(writer.get("values"), reader.get("values"), path + "{}")
        return None

    def _compare_named(self, writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
        """Compare two enums or fixed types."""
        kind = writer["type"]
        if not _same_name(writer, reader):
            return f"{path or 'the schema'}: {kind} {writer['name']} cannot be read as {reader['name']}"
        if kind == "enum":
            missing = set(writer.get("symbols", ())) - set(reader.get("symbols", ()))
            if missing and "default" not in reader:
                return f"{path or 'the schema'}: enum symbols {sorted(missing)} are unknown to the reader"
        elif writer.get("size") != reader.get("size"):
            return f"{path or 'the schema'}: fixed of {writer.get('size')} bytes read as {reader.get('size')}"
        return None

    def _compare_records(self, writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
        """Compare two records; one that has itself as a part is taken for compatible there, until it is not."""
        pair = (writer["name"], reader["name"])
        if pair in self._failed:
            return f"{path or 'the schema'}: as before, {self._failed[pair]}"
        if pair in self._assumed:
            return None
        self._assumed[pair] = None
        problem = self._compare_fields(writer, reader, path)
        if problem is not None:
            # The pairs that were found to be compatible since then may rest on it.
            while self._assumed.popitem()[0] != pair:
                pass
            self._failed[pair] = problem
        return problem

    def _compare_fields(self, writer: AvroSchema, reader: AvroSchema, path: str) -> str | None:
        written = {field["name"]: field for field in writer.get("fields", ())}
        for field in reader.get("fields", ()):
            name = field["name"]
            where = f"{path}.{name}" if path else f"field '{name}'"
            source = written.get(name) or next((written[a] for a in field.get("aliases", ()) if a in written), None)
            if source is None:
                if "default" not in field:
                    return f"{where} has no default and is missing from the other schema"
                continue
            problem = self._compare(source["type"], field["type"], where)
            if problem is not None:
                return problem
        return None


def _type_name(number: int) -> str:
    names: dict[int, str] = {value: name for name, value in Schema.Type.items()}
    return names.get(number, str(number))


def _kind(schema: AvroSchema) -> str:
    if isinstance(schema, dict):
        inner = schema.get("type")
        return inner if isinstance(inner, str) else _kind(inner)
    return "union" if isinstance(schema, list) else str(schema)


def _same_name(writer: AvroSchema, reader: AvroSchema) -> bool:
    """Return whether named types match: by their names without namespaces, or by one that the reader had before."""
    if writer["name"].rpartition(".")[2] == reader["name"].rpartition(".")[2]:
        return True
    return writer["name"] in reader["aliases"]


def _defined(schema: AvroSchema, names: dict[str, AvroSchema]) -> AvroSchema:
    """Return what a name stands for; one that is in no namespace may be used in all of them."""
    if not isinstance(schema, str) or schema in _PRIMITIVES:
        return schema
    return names.get(schema) or names.get(schema.rpartition(".")[2], schema)


def _full(name: object, namespace: str) -> str:
    text = str(name)
    return f"{namespace}.{text}" if namespace and "." not in text else text


def _resolved(schema: AvroSchema, namespace: str, names: dict[str, AvroSchema]) -> AvroSchema:
    """Return a schema with full names, where ``namespace`` is the one around it; add the types that have ``names``."""
    if isinstance(schema, str):
        return schema if schema in _PRIMITIVES else _full(schema, namespace)
    if isinstance(schema, list):
        return [_resolved(branch, namespace, names) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str):
        return _resolved(kind, namespace, names)
    if kind in _NAMED:
        own = schema.get("namespace", namespace)
        name = _full(schema.get("name", ""), own if isinstance(own, str) else "")
        inside = name.rpartition(".")[0]
        aliases = schema.get("aliases", ())
        made = schema | {"name": name, "aliases": [_full(each, inside) for each in aliases]}
        names[name] = made
        if kind == "record":
            fields = schema.get("fields", ())
            made["fields"] = [field | {"type": _resolved(field.get("type"), inside, names)} for field in fields]
        return made
    inner = {part: _resolved(schema[part], namespace, names) for part in ("items", "values") if part in schema}
    return schema | inner if inner or kind in _PRIMITIVES else _resolved(kind, namespace, names)
