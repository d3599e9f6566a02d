"""Stored schema versions of topics: a version is the schema's index, eight bytes big-endian on the wire."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base import records
from heliograph_broker.messaging.base.errors import IncompatibleSchema, PreconditionFailed

from .schema_compatibility import (
    BACKWARD,
    FORWARD,
    FULL,
    MAX_COMPARISONS,
    TRANSITIVE,
    Comparisons,
    TooManyComparisonsError,
    find_incompatibility,
)

_VERSION = struct.Struct(">q")
#: Strategies by which a consumer must be able to read what the latest schema wrote.
_OF_LATEST_READER = frozenset({BACKWARD, FORWARD, FORWARD + TRANSITIVE, FULL})


def encode_version(version: int) -> bytes:
    return _VERSION.pack(version)


def decode_version(data: bytes) -> int:
    """Decode a version. Raises :class:`PreconditionFailed` if ``data`` is not eight bytes."""
    if len(data) != _VERSION.size:
        raise PreconditionFailed(f"a schema version has {_VERSION.size} bytes, not {len(data)}")
    version: int = _VERSION.unpack(data)[0]
    return version


def schema_key(name: TopicName) -> str:
    """Return the name a topic's schemas are kept under; partitions share their topic's."""
    return str(name.base)


class SchemaRegistry:
    """Schemas by schema topic (a partitioned topic's parts share one)."""

    def __init__(self, put: Callable[[bytes, bytes], None], delete: Callable[[bytes], None]) -> None:
        self._put = put
        self._delete = delete
        self._versions: dict[str, list[records.SchemaRecord]] = {}
        #: topic -> version -> how many requests use it that are not answered yet; no client knows of these versions.
        self._claims: dict[str, dict[int, int]] = {}

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

    def add(
        self, topic: str, schema: records.SchemaRecord, strategy: str | None = None, *, may_update: bool = True
    ) -> int:
        """Store ``schema`` unless it is there; return its version.

        It must be compatible by the topic's strategy (None: FULL) with the latest version, by a transitive one with
        all of them. Raises :class:`IncompatibleSchema` naming what differs, or because clients may not update.
        """
        known = self.check_addition(topic, schema, strategy, may_update=may_update)
        if known is not None:
            return known
        versions = [*self._versions.get(topic, []), schema]
        self._put(records.SCHEMA + topic.encode(), records.encode(versions))
        self._versions[topic] = versions
        return len(versions) - 1

    def check_addition(
        self, topic: str, schema: records.SchemaRecord, strategy: str | None, *, may_update: bool
    ) -> int | None:
        """Return the version ``schema`` has, None if it may be added. Raises as :meth:`add`, which then cannot."""
        known = self._find(topic, schema)
        if known is not None:
            return known
        if not may_update:
            raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
        self.check(topic, schema, strategy)
        return None

    def check(self, topic: str, schema: records.SchemaRecord, strategy: str | None) -> None:
        """Check a new schema. Raises :class:`IncompatibleSchema` if the strategy forbids it after the stored ones.

        Or if that takes too long to find out.
        """
        strategy = strategy or FULL
        versions = self._versions.get(topic, [])
        first = 0 if strategy.endswith(TRANSITIVE) else max(0, len(versions) - 1)
        comparisons = Comparisons()
        for version in range(len(versions) - 1, first - 1, -1):
            try:
                reason = find_incompatibility(versions[version], schema, strategy, comparisons)
            except TooManyComparisonsError:
                reason = f"comparing them takes too long; valid: up to {MAX_COMPARISONS} parts that are compared"
            if reason is not None:
                raise IncompatibleSchema(f"Schema of topic {topic} is incompatible with version {version}: {reason}")

    def check_reader(self, topic: str, schema: records.SchemaRecord, strategy: str | None) -> None:
        """Check the schema of a consumer. Raises :class:`IncompatibleSchema` if it cannot read the topic.

        It must be able to read what the latest schema wrote, even where producers are held to more; by a strategy for
        all versions, other than one about older readers, what any of them wrote.
        """
        if self._find(topic, schema) is None:
            self.check(topic, schema, BACKWARD if (strategy or FULL) in _OF_LATEST_READER else strategy)

    def _find(self, topic: str, schema: records.SchemaRecord) -> int | None:
        """Return the version of a schema, None if it is not stored."""
        for version, stored in enumerate(self._versions.get(topic, [])):
            if stored.type == schema.type and stored.data == schema.data:
                return version
        return None

    def claim(self, topic: str, schema: records.SchemaRecord, strategy: str | None, *, may_update: bool) -> int:
        """As :meth:`add` for a request that may still be refused; :meth:`confirmed` or :meth:`refused` must follow."""
        known = len(self._versions.get(topic, []))
        version = self.add(topic, schema, strategy, may_update=may_update)
        claims = self._claims.get(topic, {})
        if version >= known or version in claims:
            self._claims.setdefault(topic, claims)[version] = claims.get(version, 0) + 1
        return version

    def confirmed(self, topic: str, version: int) -> None:
        """Keep a version that a client knows of."""
        claims = self._claims.get(topic, {})
        if claims.pop(version, None) is not None and not claims:
            del self._claims[topic]

    def refused(self, topic: str, version: int) -> None:
        """Drop the version of a refused request if nobody else wants it, and none came after it."""
        claims = self._claims.get(topic)
        if claims is None or version not in claims:
            return
        claims[version] -= 1
        versions = self._versions[topic]
        while versions and claims.get(len(versions) - 1) == 0:
            versions = versions[:-1]
            del claims[len(versions)]
        if not claims:
            del self._claims[topic]
        if not versions:
            self.delete(topic)
        elif versions is not self._versions[topic]:
            self._put(records.SCHEMA + topic.encode(), records.encode(versions))
            self._versions[topic] = versions

    def delete(self, topic: str) -> int | None:
        """Forget all versions; return the last one, None if there was none."""
        self._claims.pop(topic, None)
        versions = self._versions.pop(topic, None)
        if not versions:
            return None
        self._delete(records.SCHEMA + topic.encode())
        return len(versions) - 1

    def delete_namespace(self, name: str) -> None:
        """Forget the schemas of a namespace that is deleted, those included that never had a topic."""
        for topic in [topic for topic in self._versions if TopicName.parse(topic).namespace_name == name]:
            self.delete(topic)

    def topics(self) -> Iterable[str]:
        return self._versions.keys()
