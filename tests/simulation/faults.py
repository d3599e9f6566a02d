"""Faults of the machine: crashes, power loss, a disk that fails or is slow, a wall clock that is set."""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING

from . import expectations
from .action import Action
from .disk import WRITES, Crashed

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_crash(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    world.power_cut = False
    world.machine.disk.crash_at = world.machine.disk.steps + rng.choice([1, 1, 2, 4, 8, 15])
    if rng.random() < 0.4:
        raise Crashed


def do_power_cut(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    world.power_cut = True
    world.machine.disk.crash_at = world.machine.disk.steps + rng.choice([1, 1, 2, 4, 8, 15])
    if rng.random() < 0.4:
        raise Crashed


def do_restart(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    world.stop()
    world.start()


def do_disk_full(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    within = rng.choice(["", "metadata", "segments"])
    world.machine.disk.fail(frozenset({"commit"}), errno.ENOSPC, rng.choice([1, 2, 5]), within)


def do_write_errors(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    within = rng.choice(["", "metadata", "segments"])
    steps = rng.choice([frozenset({"commit"}), frozenset({"sync_directory"}), frozenset({"open"}), WRITES])
    world.machine.disk.fail(steps, errno.EIO, rng.choice([1, 1, 3]), within)


def do_read_errors(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """The next reads fail, which says nothing about what is stored: they succeed later."""
    times = rng.choice([1, 2, 5])
    world.machine.disk.fail(frozenset({"view"}), errno.EIO, times, rng.choice(["segments", "segments", "metadata"]))


def do_stall(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    world.machine.scheduler.stall(rng.choice([5, 60, 300]))


def do_wall_clock(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    hour = 3_600_000
    normal = 1_700_000_000_000
    away = world.machine.clock.offset_ms != normal
    expectations.set_wall_clock(world, normal if away else normal + rng.choice([-hour, hour, 365 * 24 * hour]))


ACTIONS: dict[str, Action] = {
    "crash": do_crash,
    "power_cut": do_power_cut,
    "restart": do_restart,
    "disk_full": do_disk_full,
    "write_errors": do_write_errors,
    "read_errors": do_read_errors,
    "stall": do_stall,
    "wall_clock": do_wall_clock,
}
