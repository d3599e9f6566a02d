"""A topic, as its clients and the broker know it, whatever it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.storage.commit.group import RecordSource


class ClientTopic:
    """A topic, persistent or not."""

    __slots__ = ()

    persistent: bool
    name: TopicName

    @property
    def record_sources(self) -> tuple[RecordSource, ...]:
        """Everything durable of the topic, nothing of one that keeps nothing."""
        return ()

    def persist(self) -> None:
        """Write the topic's own record with the next group, if it has one."""

    def used(self) -> None:
        """Note that somebody uses the topic now."""
        raise NotImplementedError
