"""Where the store's blocking work runs: threads beside an event loop, or inline for tests on virtual time."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

Job = Callable[[], Any]


class Scheduler(Protocol):
    """Runs a job somewhere and hands its result (or exception) to a callback on the loop's thread."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this loop iteration."""

    def write(self, job: Job, done: Callable[[Any], None]) -> None:
        """Run a writer's job; jobs run one after the other."""

    def read(self, job: Job, done: Callable[[Any], None]) -> None:
        """Run a reader's job."""

    def background(self, job: Job, done: Callable[[Any], None]) -> None:
        """Run a long job (rewriting, unlinking) that neither readers nor the writer wait for."""

    def close(self) -> None:
        """Wait for what runs and end the threads."""


def _outcome(job: Job) -> Any:
    try:
        return job()
    except Exception as error:  # handed to the callback, which decides
        return error


class LoopScheduler:
    """One writer thread, two readers, one for the background."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(2, "store-reader")
        self._background = ThreadPoolExecutor(1, "store-background")
        self._writer = threading.Thread(target=self._run_writer, name="store-writer")
        self._writer.start()

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def write(self, job: Job, done: Callable[[Any], None]) -> None:
        self._jobs.put((job, done))

    def _run_writer(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            self._loop.call_soon_threadsafe(done, _outcome(job))

    def read(self, job: Job, done: Callable[[Any], None]) -> None:
        self._readers.submit(self._run, job, done)

    def background(self, job: Job, done: Callable[[Any], None]) -> None:
        self._background.submit(self._run, job, done)

    def _run(self, job: Job, done: Callable[[Any], None]) -> None:
        outcome = _outcome(job)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, outcome)

    def close(self) -> None:
        self._jobs.put(None)
        self._writer.join()
        self._readers.shutdown()
        self._background.shutdown()


class InlineScheduler:
    """Everything in the calling thread; groups are committed when the test calls ``LedgerStore.commit``."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Nothing happens by itself."""

    def write(self, job: Job, done: Callable[[Any], None]) -> None:
        done(_outcome(job))

    read = write
    background = write

    def close(self) -> None:
        """There is nothing to wait for."""
