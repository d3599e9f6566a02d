"""Visits many topics again and again, a few at the same time, until it is asked to end.

Each topic has a turn in every interval. A topic that failed waits for the interval, which doubles with each failure in
a row, up to :data:`LONGEST_PAUSE_S`; the others do not wait for it. Topics that were not visited for the longest time
come first, so a few large ones delay the others and do not keep them out.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass

#: The longest time (s) after which a topic that failed is visited again, unless the interval is longer.
LONGEST_PAUSE_S = 600.0
#: Between two checks whether visits can succeed (s). A server of Spark Connect ends a session that asks nothing for an
#: hour, and the interval may be longer than that.
CHECKED_EACH_S = 300.0


class Ending:
    """A request to end, which the handler of a signal may make at any moment; one thread waits for it."""

    def __init__(self) -> None:
        self._requested = False
        # The only queue of Python's that the handler of a signal may put something into.
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def request(self) -> None:
        """Ask to end."""
        self._requested = True
        self.wake()

    def requested(self) -> bool:
        """Whether somebody asked to end."""
        return self._requested

    def wake(self) -> None:
        """End a wait, or the next one."""
        self._wakeups.put(None)

    def wait(self, seconds: float) -> None:
        """Return after this time, or earlier after a request or a call of :meth:`wake`."""
        try:
            self._wakeups.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return


@dataclass(slots=True)
class _Turn:
    """When a topic is visited next, and how often in a row it failed."""

    due_s: float
    failures: int = 0


class Follower:
    """Visits the topics that ``find`` returns, each by ``visit`` in a thread, which says whether it succeeded.

    ``find`` returns None if it does not know the topics now. ``check`` is called every :data:`CHECKED_EACH_S`, and
    raises if no visit can succeed any more. ``interval_s`` is the time from the beginning of a visit to the next one
    of the same topic, and between two calls of ``find``.
    """

    def __init__(
        self,
        find: Callable[[], Collection[str] | None],
        visit: Callable[[str], bool],
        check: Callable[[], None],
        *,
        parallel: int,
        interval_s: float,
        ending: Ending,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._visit = visit
        self._check = check
        self._parallel = parallel
        self._interval_s = interval_s
        self._ending = ending
        self._clock = clock
        self._turns: dict[str, _Turn] = {}
        self._running: dict[str, Future[bool]] = {}

    def run(self, pool: Executor) -> None:
        """Return when it was asked to end and no visit is under way.

        What a visit or the check raises ends all of them.
        """
        find_s = self._clock()
        check_s = find_s + CHECKED_EACH_S
        try:
            while not self._ending.requested():
                self._collect()
                if self._clock() >= find_s:
                    find_s = self._clock() + self._interval_s
                    self._take(self._find())
                self._start(pool)
                if self._clock() >= check_s:
                    check_s = self._clock() + CHECKED_EACH_S
                    self._check()
                self._ending.wait(min(find_s, check_s, self._next_s()) - self._clock())
        finally:
            # Visits that are under way end early.
            self._ending.request()
            wait(self._running.values())
        self._collect()

    def _take(self, found: Collection[str] | None) -> None:
        if found is None:
            return
        now = self._clock()
        self._turns = {topic: self._turns.get(topic) or _Turn(now) for topic in found}

    def _waiting(self) -> list[tuple[float, str]]:
        return sorted((turn.due_s, topic) for topic, turn in self._turns.items() if topic not in self._running)

    def _next_s(self) -> float:
        if len(self._running) >= self._parallel:
            return float("inf")
        return min((due_s for due_s, _ in self._waiting()), default=float("inf"))

    def _start(self, pool: Executor) -> None:
        now = self._clock()
        free = self._parallel - len(self._running)
        for due_s, topic in self._waiting()[: max(0, free)]:
            if due_s <= now:
                self._turns[topic].due_s = now + self._interval_s
                visit = self._running[topic] = pool.submit(self._visit, topic)
                visit.add_done_callback(lambda _: self._ending.wake())

    def _collect(self) -> None:
        for topic in [topic for topic, visit in self._running.items() if visit.done()]:
            succeeded = self._running.pop(topic).result()
            if (turn := self._turns.get(topic)) is None:
                continue
            turn.failures = 0 if succeeded else turn.failures + 1
            if turn.failures:
                # Many failures in a row would make a number too large for a float.
                pause_s = self._interval_s * 2 ** min(turn.failures - 1, 30)
                turn.due_s = self._clock() + min(pause_s, max(self._interval_s, LONGEST_PAUSE_S))
