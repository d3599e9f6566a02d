"""Settings of producers, as those of Java's clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

#: By Java's names for them, the numbers of the codecs in the protocol.
COMPRESSIONS = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}


def compression(text: str) -> int:
    """Return the number of the codec of that name. Raises :class:`ValueError`."""
    found = COMPRESSIONS.get(text.upper())
    if found is None:
        raise ValueError(f"none of {', '.join(COMPRESSIONS)}")
    return found


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The settings of producers; the limits of pending messages are None where only their bytes count."""

    #: The longest time (ms) in which the broker stores nothing of what it was sent.
    send_timeout_ms: int = 30_000
    max_pending_messages: int | None = None
    max_pending_messages_across_partitions: int | None = None
    batching_enabled: bool = True
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 << 10
    #: How long (us) a batch waits for more rows, as far as rows come.
    batching_max_publish_delay_us: int = 10_000
    chunking_enabled: bool = False
    #: The number of a codec in the protocol.
    compression: int = COMPRESSIONS["NONE"]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the settings that are given by their names, and the defaults of the others."""
        return cls(**given)

    def pending_of_partition(self, partitions: int) -> int | None:
        """Return the most messages without a receipt in each partition of a topic, None for no limit."""
        limits = [self.max_pending_messages] if self.max_pending_messages is not None else []
        if self.max_pending_messages_across_partitions is not None:
            limits.append(max(1, self.max_pending_messages_across_partitions // partitions))
        return min(limits, default=None)
