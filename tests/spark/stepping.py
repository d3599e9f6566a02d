"""Runs side by side that go on only on command, from one call of the file system to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from heliograph_spark.run.hadoop_files import HadoopDirectory
from pyspark.sql import SparkSession

STEP_WITHIN_S = 240.0


class Killed(BaseException):
    """Ends a run as a kill does: nothing that it still wants to do with files happens."""


class Run(threading.Thread):
    """One run, which goes on only on command, up to where it next stops."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._permit = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self.killed = False
        self.over = False
        self.made: Any = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        self._permit.acquire()
        try:
            if not self.killed:
                self.made = self._work()
        except Killed:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.over = True
            self._has_stopped.release()

    def stop_here(self) -> None:
        """Called by the run itself, at a point where another may go first."""
        if not self.killed:
            self._has_stopped.release()
            self._permit.acquire()
        if self.killed:
            raise Killed

    def step(self) -> bool:
        """Let it go on to where it next stops; False if it is over."""
        if not self.over:
            self._permit.release()
            assert self._has_stopped.acquire(timeout=STEP_WITHIN_S), "the run does not stop"
        return not self.over

    def finish(self) -> None:
        while self.step():
            pass

    def kill(self) -> None:
        if not self.over:
            self.killed = True
            self.finish()


def stop_here() -> None:
    run = threading.current_thread()
    if isinstance(run, Run):
        run.stop_here()


class SteppedSystem:
    """Hadoop's file system, with a stop after each call."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._system, name)

        def stepped(*arguments: Any) -> Any:
            run = threading.current_thread()
            if isinstance(run, Run) and run.killed:
                raise Killed
            done = call(*arguments)
            stop_here()
            return done

        return stepped


def make_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs stop after each call of the file system."""
    as_it_is = HadoopDirectory.__init__

    def stepped(self: HadoopDirectory, spark: SparkSession, path: str) -> None:
        as_it_is(self, spark, path)
        self._system = SteppedSystem(self._system)

    monkeypatch.setattr(HadoopDirectory, "__init__", stepped)
