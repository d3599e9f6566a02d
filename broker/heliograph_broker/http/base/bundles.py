"""Bundles: ranges of hashes of topic names, as in Pulsar.

One broker serves all of them, so they matter only as a way to name some of a namespace's topics; the whole range is
taken as a bundle too.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from typing import Final

from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord

WHOLE_RANGE: Final = "0x00000000_0xffffffff"
MAX_BUNDLES: Final = 4096
_BUNDLE = re.compile(r"(0x[0-9a-fA-F]{8})_(0x[0-9a-fA-F]{8})")


def hash_of(name: TopicName) -> int:
    """Return the hash of a topic's name: its CRC-32, as in Pulsar."""
    return zlib.crc32(str(name).encode())


def _starts(record: NamespaceRecord) -> list[int]:
    """Return where the bundles of a namespace begin: those that cut the 32-bit range evenly, and those split off."""
    step = 0x1_0000_0000 // record.bundles
    return sorted({index * step for index in range(record.bundles)} | set(record.splits))


def bundle_boundaries(record: NamespaceRecord) -> list[str]:
    """Return the hash boundaries of a namespace's bundles."""
    return [f"0x{start:08x}" for start in _starts(record)] + ["0xffffffff"]


def bundle_of(name: TopicName, record: NamespaceRecord) -> str:
    """Return the bundle of its namespace that a topic's name falls into."""
    edges = bundle_boundaries(record)
    at = bisect_right(_starts(record), hash_of(name)) - 1
    return f"{edges[at]}_{edges[at + 1]}"


def in_bundle(name: TopicName, bundle: str, record: NamespaceRecord) -> bool:
    """Whether a topic's name falls into ``bundle``, one of its namespace's or the whole range."""
    return bundle == WHOLE_RANGE or bundle_of(name, record) == bundle


def check_bundle(namespace: str, bundle: str, record: NamespaceRecord) -> None:
    """Check a bundle. Raises :class:`PreconditionFailed` unless it is one of the namespace's, or the whole range."""
    match = _BUNDLE.fullmatch(bundle)
    if match is None:
        raise PreconditionFailed(f"Invalid bundle range: {bundle}; one looks like {WHOLE_RANGE}")
    if bundle == WHOLE_RANGE:
        return
    edges = bundle_boundaries(record)
    if match[1] not in edges[:-1]:
        raise PreconditionFailed(f"Invalid lower boundary for bundle {namespace}/{bundle}. Valid: {', '.join(edges)}")
    upper = edges[edges.index(match[1]) + 1]
    if match[2] != upper:
        raise PreconditionFailed(
            f"Invalid upper boundary for bundle {namespace}/{bundle}."
            f" Expected upper boundary of {namespace}/{match[1]}_{upper}"
        )
