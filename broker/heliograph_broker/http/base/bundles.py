"""Bundles: ranges of hashes of topic names, as in Pulsar.

One broker serves all of them, so they matter only as a way to name some of a namespace's topics; the whole range is
taken as a bundle too.
"""

from __future__ import annotations

import re
import zlib
from typing import Final

from heliograph_api.values.names import TopicName

from heliograph_broker.messaging.base.errors import PreconditionFailed

WHOLE_RANGE: Final = "0x00000000_0xffffffff"
_BUNDLE = re.compile(r"(0x[0-9a-fA-F]{8})_(0x[0-9a-fA-F]{8})")


def bundle_boundaries(bundles: int) -> list[str]:
    """Return the hash boundaries that cut the 32-bit range into ``bundles`` equal parts."""
    step = 0x1_0000_0000 // bundles
    return [f"0x{index * step:08x}" for index in range(bundles)] + ["0xffffffff"]


def bundle_of(name: TopicName, bundles: int) -> str:
    """Return the bundle, of ``bundles`` equal ones, that a topic's name falls into: by its CRC-32, as in Pulsar."""
    edges = bundle_boundaries(bundles)
    at = min(zlib.crc32(str(name).encode()) // (0x1_0000_0000 // bundles), bundles - 1)
    return f"{edges[at]}_{edges[at + 1]}"


def in_bundle(name: TopicName, bundle: str, bundles: int) -> bool:
    """Whether a topic's name falls into ``bundle``, one of ``bundles`` equal ones or the whole range."""
    return bundle == WHOLE_RANGE or bundle_of(name, bundles) == bundle


def check_bundle(namespace: str, bundle: str, bundles: int) -> None:
    """Check a bundle. Raises :class:`PreconditionFailed` unless it is one of the namespace's, or the whole range."""
    match = _BUNDLE.fullmatch(bundle)
    if match is None:
        raise PreconditionFailed(f"Invalid bundle range: {bundle}; one looks like {WHOLE_RANGE}")
    if bundle == WHOLE_RANGE:
        return
    edges = bundle_boundaries(bundles)
    if match[1] not in edges[:-1]:
        raise PreconditionFailed(f"Invalid lower boundary for bundle {namespace}/{bundle}. Valid: {', '.join(edges)}")
    upper = edges[edges.index(match[1]) + 1]
    if match[2] != upper:
        raise PreconditionFailed(
            f"Invalid upper boundary for bundle {namespace}/{bundle}."
            f" Expected upper boundary of {namespace}/{match[1]}_{upper}"
        )
