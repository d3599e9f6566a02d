"""The memory of a process and those that it starts."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil

_SAMPLED_EVERY_S = 0.1


class Peak:
    """The largest resident memory (MiB) that a process and those below it had: Java's, and of any one Python's."""

    def __init__(self, pid: int) -> None:
        self.java = 0.0
        self.python = 0.0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY_S):
            try:
                root = psutil.Process(self._pid)
                for each in [root, *root.children(recursive=True)]:
                    self._seen(each)
            except psutil.NoSuchProcess:
                continue

    def _seen(self, process: psutil.Process) -> None:
        try:
            # Not by its name: a process that Java has just made still has Java's memory, and the name of a thread.
            program, used = Path(process.exe()).name, process.memory_info().rss / (1 << 20)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return
        if program == "java":
            self.java = max(self.java, used)
        elif program.startswith("python"):
            self.python = max(self.python, used)
