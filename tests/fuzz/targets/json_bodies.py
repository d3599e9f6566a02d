"""JSON bodies of the admin API, read as tolerantly as Pulsar reads them, for every type that a handler asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from heliograph_broker.http.base.json_bodies import decode
from heliograph_broker.http.base.message_ids import AnyPosition, PositionDocument
from heliograph_broker.http.namespaces import namespace_document
from heliograph_broker.http.policies import policy_documents

from tests.fuzz.target import Finding

_KINDS: list[Any] = [
    AnyPosition,
    PositionDocument,
    dict[str, str],
    list[str],
    int,
    bool,
    float,
    str,
    dict[str, dict[str, int | None]],
    *(
        found
        for module in (policy_documents, namespace_document)
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__module__ == module.__name__
    ),
]


def run(data: bytes) -> None:
    kind = _KINDS[data[0] % len(_KINDS)] if data else dict
    try:
        value, ignored = decode(data[1:], kind)
    except (ValueError, RecursionError):
        # As the caller catches: see body_as in http/base/context.py.
        return
    for name in ignored:
        name.encode()
    if value is not None and decode(msgspec.json.encode(value), kind)[0] != value:
        raise Finding(f"{value!r} reads back as another")


_SEEDS = [
    b'{"ledgerId": 12, "entryId": "3", "partitionIndex": 1.5, "isExcluded": "true", "unknown": null}',
    b'"latest"',
    b'{"retention_policies": {"retentionTimeInMinutes": 5, "retentionSizeInMB": "-1"}, "bundles": {"numBundles": 4}}',
    b"true",
    b"1.5e3",
    b"-9223372036854775808",
    b'["a", 1, null]',
    b'{"a": {"b": ""}}',
]


def seeds() -> Iterator[bytes]:
    for kind in range(len(_KINDS)):
        for body in _SEEDS:
            yield bytes([kind]) + body
