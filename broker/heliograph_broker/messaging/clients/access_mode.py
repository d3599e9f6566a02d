"""The four access modes of producers (PIP-68): the producers that may publish on a topic at the same time."""

from __future__ import annotations

from enum import IntEnum


class AccessMode(IntEnum):
    """The numbers are those of ``ProducerAccessMode`` in Pulsar's protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def label(self) -> str:
        """Pulsar's name of the mode, as its statistics write it."""
        return _LABELS[self]


_LABELS = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
