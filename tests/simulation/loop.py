"""An event loop on virtual time, and the store's threads beside it: what runs next is drawn from one seed.

Callbacks run in the order asyncio runs them. A job of the store is begun, and its result handed over, at any moment
between two of them, and a long job is interrupted where it pauses. Time passes only when nothing else can be done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from heliograph_broker.storage.base.completion import Completion
from heliograph_broker.storage.base.scheduler import Job

from .disk import Crashed

T = TypeVar("T")

#: More than this happens at no moment of virtual time unless something goes round in circles.
STEPS_AT_ONCE = 60_000


class BusyLoop(Exception):
    """The broker never comes to rest."""


class SimulatedClock:
    """Monotonic time that the loop advances, and a wall clock that can be set."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.passed_ms = 0
        self.offset_ms = start_ms

    def now_ms(self) -> int:
        return self.passed_ms + self.offset_ms

    def monotonic(self) -> float:
        return self.passed_ms / 1000


class Timer:
    """The result of ``call_later``."""

    __slots__ = ("_callback", "_context", "_when", "cancelled_")

    def __init__(self, callback: Callable[[], Any], when: float, context: contextvars.Context | None) -> None:
        self._callback = callback
        self._when = when
        self._context = context
        self.cancelled_ = False

    def cancel(self) -> None:
        self.cancelled_ = True

    def cancelled(self) -> bool:
        return self.cancelled_

    def when(self) -> float:
        return self._when

    def run(self) -> None:
        if self._context is None:
            self._callback()
        else:
            self._context.run(self._callback)


class SimulatedLoop:
    """The part of :class:`asyncio.AbstractEventLoop` that the broker uses."""

    def __init__(self, clock: SimulatedClock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.scheduler: SimulatedScheduler | None = None
        #: Called for each new connection, once somebody listens.
        self.accept: Callable[[], asyncio.BaseProtocol] | None = None
        #: Exceptions that nobody caught.
        self.escaped: list[BaseException] = []
        self.steps = 0
        self._steps_now = 0
        self._ready: deque[Timer] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._serial = 0

    @property
    def as_asyncio(self) -> asyncio.AbstractEventLoop:
        """Itself, by the type that asyncio wants."""
        return cast(asyncio.AbstractEventLoop, self)

    # -- asyncio -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.clock.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None) -> Timer:
        timer = Timer((lambda: callback(*args)) if args else callback, self.time(), context)
        self._ready.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Timer:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> Timer:
        timer = Timer((lambda: callback(*args)) if args else callback, when, context)
        self._serial += 1
        heapq.heappush(self._timers, (round(when * 1000 + 0.499), self._serial, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_asyncio)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self.as_asyncio, name=name)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.escaped.append(context.get("exception") or RuntimeError(context["message"]))

    # -- running -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do one thing that can be done now; return whether there was any."""
        self._due()
        runnable = self.scheduler.runnable() if self.scheduler is not None else []
        if self._ready and (not runnable or self.rng.random() < 0.6):
            timer = self._ready.popleft()
            if not timer.cancelled_:
                self._count()
                self._run(timer.run)
            return True
        if not runnable:
            return False
        self._count()
        self._run(self.rng.choice(runnable))
        return True

    def _count(self) -> None:
        self.steps += 1
        self._steps_now += 1
        if self._steps_now > STEPS_AT_ONCE:
            raise BusyLoop(f"{STEPS_AT_ONCE} callbacks and jobs ran and no time passed")

    def _run(self, what: Callable[[], None]) -> None:
        asyncio._set_running_loop(self.as_asyncio)
        try:
            what()
        except (BusyLoop, Crashed):
            raise
        except Exception as error:
            self.escaped.append(error)
        finally:
            asyncio._set_running_loop(None)

    def _due(self) -> None:
        now = self.clock.passed_ms
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled_:
                self._ready.append(timer)

    def settle(self) -> None:
        """Do everything that can be done without time passing."""
        while self.step():
            pass

    def advance(self, ms: int) -> None:
        """Let so much virtual time pass, and do everything that is due in it."""
        end = self.clock.passed_ms + ms
        while True:
            self.settle()
            while self._timers and self._timers[0][2].cancelled_:
                heapq.heappop(self._timers)
            if not self._timers or self._timers[0][0] > end:
                break
            self._move_to(self._timers[0][0])
        self._move_to(end)
        self.settle()

    def _move_to(self, ms: int) -> None:
        if ms > self.clock.passed_ms:
            self.clock.passed_ms = ms
            self._steps_now = 0

    def run(self, coroutine: Coroutine[Any, Any, T], within_ms: int = 60_000) -> T:
        """Run a coroutine to its end. Raises what it raises, :class:`TimeoutError` if time is over."""
        task: asyncio.Task[T] = asyncio.Task(coroutine, loop=self.as_asyncio)
        end = self.clock.passed_ms + within_ms
        try:
            while not task.done():
                if not self.step():
                    if not self._timers or self._timers[0][0] > end:
                        task.cancel()
                        self.settle()
                        raise TimeoutError("the coroutine does not end")
                    self._move_to(self._timers[0][0])
        except Crashed:
            # A killed process cleans nothing up. Python would let the coroutine do that later, in another test.
            with contextlib.suppress(Exception, Crashed):
                coroutine.close()
            raise
        return task.result()


class _LongJob:
    """A job in a thread of its own, which runs only while the loop waits for it: until it pauses or ends."""

    def __init__(self, job: Job[Any], done: Completion[Any]) -> None:
        self._job = job
        self.done = done
        self.result: Any = None
        self.ended = False
        self._go_on = True
        self._turn = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._crash: Crashed | None = None
        self._killed = False

    def resume(self) -> None:
        """Run to the next pause or to the end. Raises :class:`Crashed` if the job met it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._turn.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()
            if self._crash is not None and not self._killed:
                raise self._crash

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self.result = self._job()
        except Crashed as crash:
            self._crash = crash
        except Exception as error:
            self.result = error
        self.ended = True
        self._back.release()

    def pause(self, go_on: bool) -> bool:
        self._back.release()
        self._turn.acquire()
        if self._killed:
            raise Crashed
        return go_on

    def kill(self) -> None:
        self._killed = True
        while self._thread is not None and not self.ended:
            self.resume()


class SimulatedScheduler:
    """A writer, two readers, one for the background, one for work; see :class:`.SimulatedLoop` for when they run."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        loop.scheduler = self
        self._writes: deque[tuple[Job[Any], Completion[Any]]] = deque()
        self._written: deque[tuple[Completion[Any], Any]] = deque()
        self._reads: list[tuple[Job[Any], Completion[Any]]] = []
        self._long: dict[str, deque[_LongJob]] = {"background": deque(), "work": deque()}
        self._current: _LongJob | None = None
        self._closed = False
        #: Until then (virtual ms) the disk takes its time, and no job of the store begins or goes on.
        self.stalled_until = 0

    @property
    def concurrent(self) -> bool:
        return not self._closed

    @property
    def idle(self) -> bool:
        """Whether no job waits or runs."""
        return not (self._writes or self._written or self._reads or any(self._long.values()))

    def stall(self, ms: int) -> None:
        """Let no job of the store do anything for a while."""
        self.stalled_until = max(self.stalled_until, self._loop.clock.passed_ms + ms)
        self._loop.call_later(ms / 1000, lambda: None)

    def runnable(self) -> list[Callable[[], None]]:
        """Return what could run now, one of which does."""
        if self._closed or self._loop.clock.passed_ms < self.stalled_until:
            return []
        found: list[Callable[[], None]] = []
        if self._writes:
            found.append(self._write_one)
        if self._reads:
            found.append(self._read_one)
        found += [lambda jobs=jobs: self._go_on(jobs) for jobs in self._long.values() if jobs]  # type: ignore[misc]
        return found

    def _write_one(self) -> None:
        job, done = self._writes.popleft()
        self._written.append((done, _outcome(job)))
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        if self._written:
            done, outcome = self._written.popleft()
            done(outcome)

    def _read_one(self) -> None:
        # Two threads read: of the first two either may be ready first.
        job, done = self._reads.pop(self._loop.rng.randrange(min(2, len(self._reads))))
        outcome = _outcome(job)
        self._loop.call_soon(done, outcome)

    def _go_on(self, jobs: deque[_LongJob]) -> None:
        job = self._current = jobs[0]
        try:
            job.resume()
        finally:
            self._current = None
        if job.ended:
            jobs.popleft()
            self._loop.call_soon(job.done, job.result)

    # -- Scheduler -----------------------------------------------------------------------------------------------

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def write(self, job: Job[T], done: Completion[T]) -> None:
        if self._closed:
            done(_outcome(job))
        else:
            self._writes.append((job, done))

    def read(self, job: Job[T], done: Completion[T]) -> None:
        self._reads.append((job, done))

    def background(self, job: Job[T], done: Completion[T]) -> None:
        self._long["background"].append(_LongJob(job, done))

    def work(self, job: Job[T], done: Completion[T]) -> None:
        self._long["work"].append(_LongJob(job, done))

    def pause(self, seconds: float) -> bool:
        if self._current is None:
            return not self._closed
        return self._current.pause(not self._closed) and not self._closed

    def close(self) -> None:
        self._closed = True
        while self._writes or self._written:
            if self._written:
                self._deliver()
            else:
                job, done = self._writes.popleft()
                self._written.append((done, _outcome(job)))
        for jobs in self._long.values():
            while jobs:
                job_ = self._current = jobs.popleft()
                while not job_.ended:
                    job_.resume()
                self._current = None

    def kill(self) -> None:
        """The process is gone: end its threads where they are."""
        self._closed = True
        for jobs in self._long.values():
            for job in jobs:
                self._current = job
                job.kill()
            jobs.clear()
        self._current = None


def _outcome(job: Job[T]) -> T | Exception:
    try:
        return job()
    except Exception as error:  # handed to the callback, as a thread does
        return error
