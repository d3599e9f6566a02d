"""Runs a history, checks what must hold at each step and at the end, and makes one that fails small."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from . import outcome
from .api_server import UNWATCHED
from .history import generate
from .virtual_time import BusyLoop, VirtualLoop, virtual_wall_clock
from .witness import Violation
from .world import Operation, World


class Result(NamedTuple):
    """The outcome of one run: its history, what was broken (None: nothing), and a digest of all that was written."""

    operations: Sequence[Operation]
    violation: Violation | None
    digest: str
    lives: int


def run(seed: int, operations: Sequence[Operation] | None = None, *, operators: int = 1) -> Result:
    """Run the history of a seed, or other operations with the delays and orders of that seed."""
    history = generate(seed, operators=operators) if operations is None else operations
    with virtual_wall_clock(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(_run(seed, history, operators))
        except BusyLoop as error:
            return Result(history, Violation("a busy loop", str(error)), "", 0)


async def _run(seed: int, history: Sequence[Operation], operators: int) -> Result:
    world = World(seed, operators)
    found: Violation | None = None
    async with world:
        for operation in history:
            await world.do(operation)
            if world.witness.violation is not None:
                break
        else:
            await world.calm()
        found = world.witness.violation
        if found is None:
            found = await _at_rest(world)
        kept = ((str(key), repr(body)) for key, body in world.server.objects.items() if key.kind not in UNWATCHED)
        text = repr(sorted(kept))
    lives = sum(each.lives for each in world.operators)
    return Result(history, found, hashlib.sha256(text.encode()).hexdigest()[:16], lives)


async def _at_rest(world: World) -> Violation | None:
    before = len(world.server.writes)
    await asyncio.sleep(120)
    if writes := world.server.writes[before:]:
        was, now = writes[0]
        statuses = [(body or {}).get("status") for body in (was, now)]
        text = f"{(now or was or {}).get('metadata')}: status {statuses[0]} became {statuses[1]}"
        return Violation("no rest", f"{len(writes)} writes in two minutes in which nothing changed; the first: {text}")
    try:
        outcome.check(world)
    except Violation as violation:
        return violation
    return world.witness.violation


def shrink(seed: int, operations: Sequence[Operation], kind: str, *, operators: int = 1) -> list[Operation]:
    """Return operations that are enough for a violation of this kind; none of them can be left out."""
    left = list(operations)
    size = max(1, len(left) // 2)
    while size:
        at = 0
        while at < len(left):
            shorter = left[:at] + left[at + size :]
            violation = run(seed, shorter, operators=operators).violation
            if violation is not None and violation.kind == kind:
                left = shorter
            else:
                at += size
        size //= 2
    return left
