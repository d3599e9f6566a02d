"""Errors stay where they happen: a duty that raises is suspended and retried later, all others go on.

Whatever the broker does by itself for a topic or a subscription (a *duty*: expiry, dispatch, trimming) runs through
:meth:`Containment.attempt`. If it raises, that duty of that topic or subscription is suspended; all other duties, and
those of all others, go on. It is tried again after 1 s, then after twice as long each time, at most after 60 s.

An entry that is at fault suspends nothing: it is skipped, see :mod:`.damaged`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from heliograph_api.due_queue import DueQueue

from heliograph_broker.clock import Clock, monotonic_ms

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: The first pause before a suspended duty is tried again, and the longest (ms).
FIRST_PAUSE_MS = 1000
MAX_PAUSE_MS = 60_000
_REASON_CHARACTERS = 300


class TopicLike(Protocol):
    """A topic, persistent or not."""

    name: TopicName
    closed: bool


class SubscriptionLike(Protocol):
    """A subscription of a persistent topic."""

    name: str
    closed: bool

    @property
    def topic(self) -> TopicLike: ...


#: The owner of a task; a str is the name of a part of the broker itself.
Owner = TopicLike | SubscriptionLike | str


def first_line(error: BaseException) -> str:
    """Return the type and the first line of an exception's text, at most 300 characters."""
    lines = str(error).splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines and lines[0] else type(error).__name__
    return text if len(text) <= _REASON_CHARACTERS else f"{text[: _REASON_CHARACTERS - 3]}..."


class Suspension:
    """A duty that raised. ``since_ms`` and ``last_ms`` are wall-clock times, ``pause_ms`` is its current pause."""

    __slots__ = ("_again", "due_ms", "failures", "last_ms", "owner", "pause_ms", "reason", "since_ms", "task")

    def __init__(self, owner: Owner, task: str, since_ms: int) -> None:
        self.owner = owner
        self.task = task
        self.reason = ""
        self.since_ms = self.last_ms = since_ms
        self.failures = 0
        self.pause_ms = 0
        #: When it may be tried again (monotonic ms).
        self.due_ms = 0
        self._again: Callable[[], None] | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names of topic and subscription; both are empty for a part of the broker itself."""
        owner = self.owner
        if isinstance(owner, str):
            return "", ""
        topic = getattr(owner, "topic", None)
        if topic is None:
            return str(owner.name), ""
        return str(topic.name), str(owner.name)

    def failed(self, error: Exception, now_ms: int, wall_ms: int, again: Callable[[], None] | None) -> None:
        """Note one more failure: the pause doubles."""
        self.reason = first_line(error)
        self.last_ms = wall_ms
        self.failures += 1
        self.pause_ms = min(2 * self.pause_ms or FIRST_PAUSE_MS, MAX_PAUSE_MS)
        self.due_ms = now_ms + self.pause_ms
        self._again = again

    def try_again(self) -> None:
        """Request the duty again, through :meth:`Containment.attempt`."""
        if self._again is not None:
            self._again()


class Containment:
    """The suspended duties of one broker."""

    __slots__ = ("_clock", "_queue", "failures", "suspended")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Suspended duties, by owner and duty. Nearly always empty: hot paths check only that.
        self.suspended: dict[Owner, dict[str, Suspension]] = {}
        self._queue: DueQueue[Suspension] = DueQueue()
        #: Failures since the start, by duty.
        self.failures: dict[str, int] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is suspended."""
        return not self.suspended

    def holds(self, owner: Owner, task: str) -> bool:
        """Whether ``task`` is pausing and must not be tried now. Cheap while nothing is suspended."""
        if not self.suspended:
            return False
        found = self.suspended.get(owner, {}).get(task)
        return found is not None and found.due_ms > monotonic_ms(self._clock)

    def attempt(
        self, owner: Owner, task: str, action: Callable[[], T], again: Callable[[], None] | None = None
    ) -> T | None:
        """Do ``action`` unless the duty is in a pause; return what it returns, None if it was not done or raised.

        ``again`` is called when the pause is over, and has to bring about another attempt; None where one comes
        anyway.
        """
        before = 0
        if self.suspended:
            if self.holds(owner, task):
                return None
            before = self._failures_of(owner, task)
        try:
            result = action()
        except Exception as error:
            self.failed(owner, task, error, again)
            return None
        # A part of it, attempted by itself, may have failed in the meantime.
        if self.suspended and self._failures_of(owner, task) == before:
            self.succeeded(owner, task)
        return result

    def _failures_of(self, owner: Owner, task: str) -> int:
        found = self.suspended.get(owner, {}).get(task)
        return 0 if found is None else found.failures

    def failed(self, owner: Owner, task: str, error: Exception, again: Callable[[], None] | None = None) -> None:
        """Suspend a duty that raised ``error``. See :meth:`attempt`."""
        tasks = self.suspended.setdefault(owner, {})
        suspension = tasks.get(task)
        if suspension is None:
            suspension = tasks[task] = Suspension(owner, task, self._clock.now_ms())
        suspension.failed(error, monotonic_ms(self._clock), self._clock.now_ms(), again)
        self.failures[task] = self.failures.get(task, 0) + 1
        self._queue.schedule(suspension, suspension.due_ms)
        topic, subscription = suspension.names
        log.error(
            "duty suspended",
            duty=task,
            topic=topic,
            subscription=subscription,
            reason=suspension.reason,
            failures=suspension.failures,
            again_in_ms=suspension.pause_ms,
            # Once with the stack; each further failure would repeat it.
            exc_info=error if suspension.failures == 1 else None,
        )

    def noted(self, owner: Owner, task: str, error: Exception) -> None:
        """Log and count an error in something that cannot be retried, such as an answer; nothing is suspended."""
        self.failures[task] = self.failures.get(task, 0) + 1
        topic, subscription = Suspension(owner, task, 0).names
        log.error(
            "duty failed", duty=task, topic=topic, subscription=subscription, reason=first_line(error), exc_info=error
        )

    def succeeded(self, owner: Owner, task: str) -> None:
        """End the suspension of a task that succeeded."""
        tasks = self.suspended.get(owner)
        suspension = tasks.pop(task, None) if tasks is not None else None
        if suspension is None:
            return
        self._queue.forget(suspension)
        if not tasks:
            del self.suspended[owner]
        topic, subscription = suspension.names
        log.info("duty resumed", duty=task, topic=topic, subscription=subscription, failures=suspension.failures)

    def forget(self, owner: Owner) -> None:
        """Drop the suspensions of a deleted topic or subscription: nobody retries its tasks."""
        for suspension in self.suspended.pop(owner, {}).values():
            self._queue.forget(suspension)

    def run(self) -> None:
        """Retry duties whose pause is over, and forget those of deleted topics and subscriptions."""
        if not len(self._queue):
            return
        now_ms = monotonic_ms(self._clock)
        while (suspension := self._queue.take(now_ms)) is not None:
            if not isinstance(suspension.owner, str) and suspension.owner.closed:
                self.forget(suspension.owner)
                continue
            try:
                suspension.try_again()
            except Exception as error:
                self.failed(suspension.owner, suspension.task, error, suspension.try_again)

    def of(self, owner: Owner) -> list[Suspension]:
        """Return the suspended duties of a topic or subscription."""
        return list(self.suspended.get(owner, {}).values())

    def all(self) -> list[Suspension]:
        """Return all suspended duties, the oldest first."""
        return sorted(
            (each for tasks in self.suspended.values() for each in tasks.values()), key=lambda each: each.since_ms
        )
