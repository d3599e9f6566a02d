"""Compaction that is started by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from heliograph_broker.messaging.topic.topic import Topic


def start_compaction(topics: Sequence[Topic]) -> None:
    """Begin to compact each of ``topics``, or none. Raises :class:`Conflict` if one is being compacted."""
    if any(topic.compaction.status()[0] == "RUNNING" for topic in topics):
        raise Conflict("Compaction already in progress")
    for topic in topics:
        topic.compaction.start()
