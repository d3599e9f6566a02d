"""Damage of what is stored: bits that flip, segments and metadata that are lost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph_broker.storage.disk.data_dir import DataDirError

from .action import Action
from .disk import SmallFile
from .environment import EnvironmentFile
from .machine import DATA
from .model import Violation

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_flip_bit(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    flip_bit(world, "/segments/")


def flip_bit(world: World, within: str, prefix: bytes = b"") -> None:
    """Flip a bit of a stored value; see :meth:`.SimulatedDisk.flip_bit`."""
    flipped = world.machine.disk.flip_bit(within, prefix)
    if flipped is not None:
        world.damages.append(flipped)
        claim_nothing_of(world, int(flipped.split()[1][:16], 16))


def claim_nothing_of(world: World, ledger_id: int) -> None:
    """Claim nothing of the messages of a ledger: some of them cannot be read any more."""
    world.damaged_ledgers.add(ledger_id)
    note_damaged(world)


def note_damaged(world: World) -> None:
    for message in world.messages.messages:
        if not message.damaged and any(position[0] in world.damaged_ledgers for position in message.positions):
            message.damaged = True


def do_lose_segment(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """While the broker is stopped, somebody removes a segment."""
    world.stop()
    segments = [
        (path, file)
        for path, file in world.machine.disk.walk()
        if path.parent.name == "segments" and isinstance(file, EnvironmentFile) and file.current.values
    ]
    if segments:
        lose_segment(world, rng.choice(segments)[0])
    world.start()


def lose_segment(world: World, path: Path) -> None:
    """Take a segment away, and claim nothing of what it held."""
    file = world.machine.disk._file(path)
    assert isinstance(file, EnvironmentFile)
    world.damages.append(path.name)
    for key in file.current.values:
        if len(key) == 16:
            claim_nothing_of(world, int.from_bytes(key[:8], "big"))
    world.machine.disk.lose(path)


def do_lose_metadata(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """While the broker is stopped, the metadata is missing: it must not start, nor take anything away."""
    world.stop()
    disk = world.machine.disk
    directory = disk._directory(DATA)
    lost = rng.choice(["metadata.lmdb", "FORMAT"])
    node = directory.names.get(lost)
    segments = {path: file for path, file in disk.walk() if path.parent.name == "segments"}
    if node is None or not any(isinstance(file, EnvironmentFile) and file.current.values for file in segments.values()):
        world.start()
        return
    disk.lose(DATA / lost)
    try:
        world.machine.start()
    except DataDirError:
        world.machine.crash(power_lost=False)
    else:
        world.machine.loop.advance(5000)
        raise Violation("started without its metadata", f"{lost} was missing")
    left = {path for path, _ in world.machine.disk.walk()}
    missing = [
        path.name
        for path, file in segments.items()
        if path not in left and not isinstance(file, SmallFile) and path.suffix == ".lmdb"
    ]
    if missing:
        raise Violation("deleted because nobody claims it", f"{missing}")
    directory = world.machine.disk._directory(DATA)
    directory.names[lost] = node
    directory.sync()
    world.start()


ACTIONS: dict[str, Action] = {
    "flip_bit": do_flip_bit,
    "lose_segment": do_lose_segment,
    "lose_metadata": do_lose_metadata,
}
