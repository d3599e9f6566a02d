"""Runs the store's blocking work: threads beside an event loop, or inline for tests on virtual time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from .completion import Completion
from .damage import DamagedEntries

T = TypeVar("T")

Job = Callable[[], T]


class Scheduler(Protocol):
    """Runs a job somewhere and hands its result (or exception) to a callback on the loop's thread."""

    @property
    def concurrent(self) -> bool:
        """Whether :meth:`write` returns before its job has run and its callback was called."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this loop iteration."""

    def write(self, job: Job[T], done: Completion[T]) -> None:
        """Run a writer's job; jobs run one after the other."""

    def read(self, job: Job[T], done: Completion[T]) -> None:
        """Run a reader's job."""

    def background(self, job: Job[T], done: Completion[T]) -> None:
        """Run a long job (rewriting, unlinking) that neither readers nor the writer wait for."""

    def work(self, job: Job[T], done: Completion[T]) -> None:
        """Run a computing job of the core, in a thread of its own."""

    def pause(self, seconds: float) -> bool:
        """Let other work go first, in a background job; return False once the scheduler is closed."""

    def close(self) -> None:
        """Wait for what runs and end the threads; every write has been called back for when this returns."""


def _outcome(job: Job[T]) -> T | Exception:
    try:
        return job()
    except DamagedEntries as error:
        # A new one: the traceback, and the error it comes from, would keep the transaction and its place for readers.
        return error.within(error.last_entry)
    except Exception as error:  # handed to the callback, which decides
        return error


class LoopScheduler:
    """One writer thread, two readers, one for the background, one for work."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Job[Any], Completion[Any]] | None] = queue.SimpleQueue()
        self._written: deque[tuple[Completion[Any], Any]] = deque()
        self._readers = ThreadPoolExecutor(2, "store-reader")
        self._background = ThreadPoolExecutor(1, "store-background")
        self._work = ThreadPoolExecutor(1, "store-work")
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._run_writer, name="store-writer")
        self._writer.start()

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    @property
    def concurrent(self) -> bool:
        return not self._closing.is_set()

    def write(self, job: Job[T], done: Completion[T]) -> None:
        if self._closing.is_set():
            done(_outcome(job))
        else:
            self._jobs.put((job, done))

    def _run_writer(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                outcome = _outcome(job)
            except BaseException as error:  # the thread must not end: nothing would ever be written again
                outcome = RuntimeError(f"{type(error).__name__}: {error}")
            self._written.append((done, outcome))
            self._on_loop(self._deliver)

    def _deliver(self) -> None:
        # Empty if close() has delivered it already.
        if self._written:
            done, outcome = self._written.popleft()
            done(outcome)

    def read(self, job: Job[T], done: Completion[T]) -> None:
        self._readers.submit(self._run, job, done)

    def background(self, job: Job[T], done: Completion[T]) -> None:
        self._background.submit(self._run, job, done)

    def work(self, job: Job[T], done: Completion[T]) -> None:
        self._work.submit(self._run, job, done)

    def _run(self, job: Job[T], done: Completion[T]) -> None:
        outcome = _outcome(job)
        self._on_loop(lambda: done(outcome))

    def _on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # A loop that has ended, perhaps just now, runs no callbacks: nobody is left to be notified.
            if not self._loop.is_closed():
                raise

    def pause(self, seconds: float) -> bool:
        return not self._closing.wait(seconds)

    def close(self) -> None:
        self._closing.set()
        self._jobs.put(None)
        self._writer.join()
        while self._written:
            self._deliver()
        self._readers.shutdown()
        self._background.shutdown()
        self._work.shutdown()


class InlineScheduler:
    """Runs everything in the calling thread; groups are committed when a test calls ``GroupCommit.commit``."""

    concurrent = False

    def soon(self, callback: Callable[[], None]) -> None:
        """Drop the callback: nothing runs by itself."""

    def write(self, job: Job[T], done: Completion[T]) -> None:
        done(_outcome(job))

    read = write
    background = write
    work = write

    def pause(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to wait for."""
