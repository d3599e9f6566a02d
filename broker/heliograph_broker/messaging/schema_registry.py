"""Stored schema versions of topics: a version is the schema's index, eight bytes big-endian on the wire."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from . import records
from .errors import IncompatibleSchema, PreconditionFailed
from .schema_compatibility import find_incompatibility

_VERSION = struct.Struct(">q")


def encode_version(version: int) -> bytes:
    return _VERSION.pack(version)


def decode_version(data: bytes) -> int:
    """Raises :class:`PreconditionFailed` if ``data`` is not eight bytes."""
    if len(data) != _VERSION.size:
        raise PreconditionFailed(f"a schema version has {_VERSION.size} bytes, not {len(data)}")
    version: int = _VERSION.unpack(data)[0]
    return version


class SchemaRegistry:
    """Schemas by schema topic (a partitioned topic's parts share one)."""

    def __init__(self, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        self._put = put
        self._delete = delete
        self._versions: dict[str, list[records.SchemaRecord]] = {}

    def restore(self, topic: str, versions: list[records.SchemaRecord]) -> None:
        self._versions[topic] = versions

    def versions(self, topic: str) -> list[records.SchemaRecord]:
        return self._versions.get(topic, [])

    def latest(self, topic: str) -> tuple[records.SchemaRecord, int] | None:
        versions = self._versions.get(topic)
        return (versions[-1], len(versions) - 1) if versions else None

    def get(self, topic: str, version: int | None) -> tuple[records.SchemaRecord, int] | None:
        """Return a schema and its version (the latest for None), None if there is no such version."""
        versions = self._versions.get(topic, [])
        if version is None:
            return self.latest(topic)
        if 0 <= version < len(versions):
            return versions[version], version
        return None

    def add(self, topic: str, schema: records.SchemaRecord) -> int:
        """Store ``schema`` unless it is there; return its version.

        Every stored version must be able to read the new one and the other way round (Pulsar's default, FULL,
        against the latest version). Raises :class:`IncompatibleSchema` naming what differs.
        """
        versions = self._versions.setdefault(topic, [])
        for version, stored in enumerate(versions):
            if stored.type == schema.type and stored.data == schema.data:
                return version
        if versions:
            reason = find_incompatibility(versions[-1], schema)
            if reason is not None:
                if not versions:
                    del self._versions[topic]
                raise IncompatibleSchema(
                    f"Schema of topic {topic} is incompatible with version {len(versions) - 1}: {reason}"
                )
        versions.append(schema)
        self._put(records.SCHEMA + topic.encode(), records.encode(versions))
        return len(versions) - 1

    def delete(self, topic: str) -> int | None:
        """Forget all versions; return the last one, None if there was none."""
        versions = self._versions.pop(topic, None)
        if not versions:
            return None
        self._delete(records.SCHEMA + topic.encode())
        return len(versions) - 1

    def topics(self) -> Iterable[str]:
        return self._versions.keys()
