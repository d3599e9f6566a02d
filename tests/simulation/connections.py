"""Connections that end, that are not read, whose peer is silent, and those that never send CONNECT."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

from .action import Action
from .model import Violation
from .network import Connection

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World


def do_cut(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connected and client.connection is not None:
        client.connection.cut()
        client.ended()


def do_settle(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    world.advance(rng.choice([10, 300, 2500]))


def do_stop_reading(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connected and client.connection is not None:
        client.connection.reads = False


def do_read_on(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    if client.connected:
        client.read_on()


def do_go_silent(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    """The client's machine is gone: after the keep-alive the broker must have noticed."""
    connection = client.connection
    if connection is None or connection.lost:
        return
    connection.silent = True
    world.advance(4 * 30_000)
    if not connection.lost:
        raise Violation("a silent peer stays", f"client {client.number} said nothing for 120 s")


def do_foreign_client(world: World, client: SimulatedClient, number: int, rng: random.Random) -> None:
    connect_foreign_client(world, rng)


#: Limit of a socket's buffer before its client has connected (bytes).
FOREIGN_CLIENT_BYTES = 16 * 1024


def connect_foreign_client(world: World, rng: random.Random) -> None:
    """Two connections that never say who they are, or announce more than they may. Raises :class:`Violation`.

    A buffer that all connections share costs nothing; one of its own is counted.
    """
    try:
        connections = [Connection(world.machine.loop, ("10.9.9.9", port), lambda data: None) for port in (1, 2)]
    except ConnectionRefusedError:
        return
    world.advance(1)
    if rng.random() < 0.7:
        for connection in connections:
            if not connection.lost:
                connection.send((4 << 20).to_bytes(4, "big") + (100).to_bytes(4, "big"))
        world.advance(5)
    buffers = [
        cast(memoryview, connection.protocol.get_buffer(-1)) for connection in connections if not connection.lost
    ]
    if len(buffers) == 2 and buffers[0].obj is not buffers[1].obj and len(buffers[0]) > FOREIGN_CLIENT_BYTES:
        raise Violation("an unknown client costs too much", f"{len(buffers[0])} bytes of buffer before CONNECT")
    for connection in connections:
        connection.cut()


ACTIONS: dict[str, Action] = {
    "cut": do_cut,
    "settle": do_settle,
    "stop_reading": do_stop_reading,
    "read_on": do_read_on,
    "go_silent": do_go_silent,
    "stranger": do_foreign_client,
}
