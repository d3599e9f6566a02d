"""The topics to which a query publishes the messages that cannot be read: their names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadLetterRule:
    """The dead-letter topic of each topic that is read: ``topic`` for all of them, or one by the subscription's name.

    Without a ``topic`` there is a ``subscription``.
    """

    topic: str | None
    subscription: str | None

    def topic_for(self, topic: str) -> str:
        """Return the dead-letter topic for a topic, both by the whole name without the number of a partition."""
        return self.topic or f"{topic}{self._suffix}"

    def takes(self, topic: str) -> bool:
        """Whether the topic, by its whole name, is one that the rule names for some topic."""
        return topic == self.topic if self.topic is not None else topic.endswith(self._suffix)

    @property
    def _suffix(self) -> str:
        # As Pulsar's clients name it.
        return f"-{self.subscription}-DLQ"
