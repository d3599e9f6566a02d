"""Names that clients send, refused as a broker refuses."""

from __future__ import annotations

from heliograph_broker.resources.names import InvalidName, check_subscription

from .errors import PreconditionFailed

#: The durable subscription that keeps what is not compacted yet; it is the broker's own.
COMPACTION = "__compaction"


def check_name(subscription: str) -> None:
    """Raises :class:`PreconditionFailed` unless ``subscription`` may name one."""
    try:
        check_subscription(subscription)
    except InvalidName as error:
        raise PreconditionFailed(str(error)) from error
