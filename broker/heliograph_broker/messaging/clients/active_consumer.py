"""Chooses the active consumer of an Exclusive or Failover subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .consumer import Consumer


def choose_active(consumers: Sequence[Consumer], partition: int) -> Consumer | None:
    """Return the active one of ``consumers``, which are in the order in which they subscribed; None without any.

    On a partitioned topic the consumers of the highest priority (lowest level), sorted by name, take the
    partitions in turn; on any other topic (``partition`` -1) the first of them that subscribed is active.
    """
    if not consumers:
        return None
    top = min(consumer.priority for consumer in consumers)
    candidates = [consumer for consumer in consumers if consumer.priority == top]
    if partition < 0:
        return candidates[0]
    candidates.sort(key=lambda consumer: consumer.name)
    return candidates[partition % len(candidates)]
