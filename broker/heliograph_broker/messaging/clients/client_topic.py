"""A topic, as its clients and the broker know it, whatever it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

    from heliograph_broker.storage.commit.group import Durable, RecordSource


class ClientTopic:
    """A topic, persistent or not."""

    __slots__ = ()

    persistent: bool
    name: TopicName

    @property
    def record_sources(self) -> tuple[RecordSource, ...]:
        """Everything durable of the topic, nothing of one that keeps nothing."""
        return ()

    def persist(self, durable: Durable | None = None) -> None:
        """Write the topic's own record with the next group, if it has one.

        ``durable`` is called once that is durable, however many attempts it takes.
        """
        if durable is not None:
            durable()

    def used(self) -> None:
        """Note that somebody uses the topic now."""
        raise NotImplementedError
