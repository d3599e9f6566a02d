"""Properties as a client sends them."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph_api.protocol import wire_pb2 as wire


def properties_of(pairs: Iterable[wire.KeyValue]) -> dict[str, str]:
    """Return the pairs as a dict."""
    return {pair.key: pair.value for pair in pairs}
