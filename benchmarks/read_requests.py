"""Requests to a process that reads topics, and its answers: a line each. Needs nothing but Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

READY = "ready"


@dataclass(frozen=True, slots=True)
class Request:
    """A topic to be read from its first message to its last: so many ``messages``, in batches of ``batch``."""

    topic: str
    messages: int
    batch: int
    splits: int = 1

    def line(self) -> str:
        return f"{self.topic} {self.messages} {self.batch} {self.splits}"

    @classmethod
    def of(cls, line: str) -> Request:
        topic, *numbers = line.split()
        return cls(topic, *map(int, numbers))


@dataclass(frozen=True, slots=True)
class Reading:
    """Messages that were read, and the seconds to the last one: from the request and, if known, from the first one.

    ``payload_bytes`` are None for a reader that does not open the entries.
    """

    messages: int
    payload_bytes: int | None
    whole_s: float
    from_first_s: float | None = None


def serve(read: Callable[[Request], Reading]) -> None:
    """Read what each line of stdin asks for, until it ends."""
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(read(Request.of(line)))), flush=True)
