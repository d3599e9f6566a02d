"""The state of each topic that ``archive --follow`` follows: when it was archived last, failures, and what is left."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's state since the job's start; None where it is not known yet.

    ``lag`` are the messages that were not archived after the last visit; ``succeeded_s`` (s since 1970) is when the
    last visit that succeeded began: what was stored by then is archived.
    """

    lag: int | None = None
    succeeded_s: float | None = None
    failures: int = 0
    failing: bool = False
    gone: bool = False


class TopicStates:
    """The states of all topics, which several threads change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[str, TopicState] = {}

    def all(self) -> dict[str, TopicState]:
        """Return the states of the topics that were visited, by their whole names, as they are now."""
        with self._lock:
            return dict(sorted(self._states.items()))

    def succeeded(self, topic: str, at_s: float, lag: int | None) -> None:
        """Record a visit that began at ``at_s`` and came to the topic's end."""
        with self._lock:
            before = self._states.get(topic, TopicState())
            self._states[topic] = replace(before, lag=lag, succeeded_s=at_s, failing=False, gone=False)

    def ended(self, topic: str, lag: int | None) -> None:
        """Record a visit that was asked to end before it came to the topic's end."""
        with self._lock:
            self._states[topic] = replace(self._states.get(topic, TopicState()), lag=lag, failing=False, gone=False)

    def failed(self, topic: str, lag: int | None) -> None:
        """Record a visit that failed; the lag is None if it could not be measured."""
        with self._lock:
            before = self._states.get(topic, TopicState())
            failures = before.failures + 1
            self._states[topic] = replace(before, lag=lag, failures=failures, failing=True, gone=False)

    def deleted(self, topic: str) -> bool:
        """Record that a topic is not there; False if that is recorded already, or if it never was there."""
        with self._lock:
            before = self._states.get(topic)
            if before is None or before.gone:
                return False
            self._states[topic] = TopicState(failures=before.failures, gone=True)
            return True
