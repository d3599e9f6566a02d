"""Properties that a client gives its producers, consumers, subscriptions and schemas, which the broker keeps."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_broker.messaging.base.errors import NotAllowed

#: Names and values together, in characters.
MAX_PROPERTIES = 64 * 1024


def properties_of(pairs: Iterable[wire.KeyValue], what: str) -> dict[str, str]:
    """Return the pairs as a dict. Raises :class:`NotAllowed` if they are more than :data:`MAX_PROPERTIES`."""
    found = {pair.key: pair.value for pair in pairs}
    size = sum(len(name) + len(value) for name, value in found.items())
    if size > MAX_PROPERTIES:
        raise NotAllowed(f"{what} of {size} characters; at most {MAX_PROPERTIES} are allowed")
    return found
