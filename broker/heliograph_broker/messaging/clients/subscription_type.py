"""The four subscription types: who of a subscription's consumers gets which entries."""

from __future__ import annotations

from enum import IntEnum


class SubscriptionType(IntEnum):
    """The numbers are those of ``CommandSubscribe.SubType`` in Pulsar's protocol."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        """Pulsar's name of the type, as REST, metrics and policies write it."""
        return _LABELS[self]


#: The types whose consumers take entries side by side: what each may hold unacknowledged is limited.
PARALLEL = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
#: The types that have one active consumer, which takes every entry in order.
SINGLE_ACTIVE = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)

_LABELS = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}
