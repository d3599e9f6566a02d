"""Names and other texts that become keys or values of records, refused as a broker refuses.

A record's key has at most 511 bytes, and one record that does not fit would fail every other in its group: so what
does not fit is refused here, before anything changes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from heliograph_api.values.names import COMPACTION, InvalidName, check_subscription

from .errors import PreconditionFailed

#: Longest name of a tenant, and of a namespace with its tenant, in bytes of UTF-8: a topic's full name still fits.
MAX_NAMESPACE_NAME_BYTES = 225
#: Longest producer name in bytes of UTF-8: deduplication keeps one for each producer.
MAX_PRODUCER_NAME_BYTES = 1024
#: Keys and values of all properties of a namespace, topic or subscription: every change of it writes them again.
MAX_PROPERTIES_BYTES = 64 * 1024


def check_name(subscription: str) -> None:
    """Check the name of a subscription. Raises :class:`PreconditionFailed`."""
    try:
        check_subscription(subscription)
    except InvalidName as error:
        raise PreconditionFailed(str(error)) from error


def check_new_name(kind: str, name: str) -> None:
    """Check the full name of a new tenant or namespace. Raises :class:`PreconditionFailed` if it cannot be stored."""
    _check_size(f"{kind} name", name, MAX_NAMESPACE_NAME_BYTES)


def check_producer_name(name: str) -> None:
    """Check the name of a producer. Raises :class:`PreconditionFailed` if its sequence ids cannot be stored."""
    _check_size("producer name", name, MAX_PRODUCER_NAME_BYTES)


def check_properties(properties: Mapping[str, str]) -> None:
    """Check the size of properties. Raises :class:`PreconditionFailed` if they are too large to be stored."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())
    if size > MAX_PROPERTIES_BYTES:
        raise PreconditionFailed(
            f"Invalid properties: keys and values have {size} bytes; valid: at most {MAX_PROPERTIES_BYTES} in all"
        )


def _check_size(what: str, text: str, limit: int) -> None:
    size = len(text.encode())
    if size > limit:
        raise PreconditionFailed(f"Invalid {what} {text[:40]!r}...: it has {size} bytes; valid: at most {limit}")


__all__ = [
    "COMPACTION",
    "MAX_NAMESPACE_NAME_BYTES",
    "MAX_PRODUCER_NAME_BYTES",
    "MAX_PROPERTIES_BYTES",
    "ProducerNames",
    "check_name",
    "check_new_name",
    "check_producer_name",
    "check_properties",
]


class ProducerNames:
    """Names for producers whose clients give them none; no producer has one twice."""

    __slots__ = ("_cluster", "_rng", "_serial")

    def __init__(self, cluster: str, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._serial = rng.getrandbits(32)

    def generate(self) -> str:
        """Return a producer name that no producer has."""
        self._serial += 1
        return f"{self._cluster}-{self._rng.getrandbits(24):x}-{self._serial}"
