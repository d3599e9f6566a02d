"""Properties that clients give to producers, consumers, subscriptions and schemas, and that the broker keeps."""

from __future__ import annotations

from heliograph_broker.messaging.base.errors import NotAllowed

#: Names and values together, in characters.
MAX_PROPERTIES = 64 * 1024


def check_client_properties(properties: dict[str, str], what: str) -> None:
    """Check properties of a client. Raises :class:`NotAllowed` if they are larger than :data:`MAX_PROPERTIES`."""
    size = sum(len(name) + len(value) for name, value in properties.items())
    if size > MAX_PROPERTIES:
        raise NotAllowed(f"{what} of {size} characters; at most {MAX_PROPERTIES} are allowed")
