"""One run of a seed, and how a history that fails is made small."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from .disk import Crashed
from .ending import end
from .history import Operation, generate
from .loop import BusyLoop
from .model import Violation
from .world import World

#: Operations of a run, unless said otherwise.
LENGTH = 120


class Result:
    """The result of a run: ``violation`` is None if everything held."""

    def __init__(self, seed: int, operations: list[Operation], world: World, violation: Violation | None) -> None:
        self.seed = seed
        self.operations = operations
        self.digest = world.digest()
        self.lines = world.lines
        self.violation = violation
        self.steps = world.machine.loop.steps
        self.crashes = world.crashes
        self.messages = len(world.messages.messages)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the broker's log."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def run(seed: int, operations: list[Operation] | None = None, *, lines: bool = False, length: int = LENGTH) -> Result:
    """Run the history of a seed, or part of it, and check it to the end."""
    operations = generate(seed, length) if operations is None else operations
    world = World(seed)
    world.keep_lines = lines
    violation: Violation | None = None
    try:
        world.run(operations)
        world.guarded(lambda: end(world))
    except Violation as found:
        violation = found
    finally:
        world.machine.scheduler.kill()
    return Result(seed, operations, world, violation)


def shrink(
    seed: int, operations: list[Operation], kind: str, progress: Callable[[int], None] = lambda left: None
) -> list[Operation]:
    """Return a part of the history that still breaks the same promise, from which nothing can be left out.

    Halves, quarters and so on are taken away as long as it still fails (delta debugging).
    """

    def fails(part: list[Operation]) -> bool:
        try:
            violation = run(seed, part).violation
        except (Crashed, BusyLoop):
            return False
        return violation is not None and violation.kind == kind

    size = len(operations) // 2
    while size >= 1:
        at = 0
        while at < len(operations):
            part = operations[:at] + operations[at + size :]
            if part and fails(part):
                operations = part
                progress(len(operations))
            else:
                at += size
        size //= 2
    return operations
