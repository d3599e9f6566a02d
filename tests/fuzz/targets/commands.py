"""Commands: whatever clients send to a broker, only their own connections end, and a healthy client notices nothing.

The broker has its listener, sessions, core and store; its disk is in memory, its clock virtual, and nothing is random,
so that an input always does the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph_broker.messaging.topic.topic import Topic

from tests.fuzz import corpus
from tests.fuzz.healthy_client import TOPIC, HealthyClient
from tests.fuzz.kept_broker import KeptBroker
from tests.fuzz.memory_core import MemoryCore
from tests.fuzz.streams import PARTS, part, parts_of
from tests.fuzz.target import Finding, Source
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_specimens import OPENING, SPECIMENS, with_extreme_fields

#: Virtual time that may pass between two frames (ms).
_PAUSES = (1, 100, 1_000, 16_000, 61_000, 180_000)
_CONNECTIONS = 3
#: A frame that announces more is refused: one input should not take seconds.
_SETTINGS: dict[str, Any] = {
    "max_message_size": 64 * 1024,
    "max_handles_per_connection": 50,
    "connection_memory_bytes": 1 << 20,
}


class _Broker:
    def __init__(self) -> None:
        self.server = VirtualServer(MemoryCore(Path("/memory/data"), **_SETTINGS))
        self.healthy = HealthyClient(self.server, self.server.connect())
        self.begin = self.state()

    def state(self) -> object:
        directory = self.server.core.broker.directory
        healthy = directory.topics[TOPIC]
        assert isinstance(healthy, Topic)
        return (
            sorted(directory.topics),
            sorted(directory.namespaces),
            len(directory.partitioned),
            sorted(healthy.subscriptions),
            len(healthy.producers),
            self.server.loop.timers,
        )

    def close(self) -> None:
        self.server.core.close()


def _attack(broker: _Broker, data: bytes) -> bool:
    server, healthy, source = broker.server, broker.healthy, Source(data)
    attackers: list[FarSide | None] = [None] * _CONNECTIONS
    number = 0
    while not source.ended:
        kind = source.number()
        far = attackers[number]
        if kind % 16 < PARTS or far is None or far.lost:
            stream = part(kind % 16 % PARTS, source)
            if far is None or far.lost:
                # Without its CONNECT one in eight.
                far = attackers[number] = server.connect(handshake=kind < 224)
            far.send_raw(stream)
            server.loop.run()
        elif kind % 16 < 10:
            number = (number + 1) % _CONNECTIONS
        elif kind % 16 < 12:
            far.reads = not far.reads
            if far.reads and far.unread:
                far.read()
        elif kind % 16 < 13:
            far.abort()
        elif kind % 16 < 15:
            healthy.advance(source.choose(_PAUSES))
        server.core.commit()
        server.loop.run()
    healthy.beat()
    for attacker in attackers:
        if attacker is not None and not attacker.lost:
            attacker.abort()
    server.loop.run()
    server.core.commit()
    if len(server.listener.connections) != 1:
        raise Finding("a connection is left although its client is gone")
    healthy.advance(1_000)
    healthy.beat()
    return broker.state() == broker.begin


_BROKER = KeptBroker(_Broker, _attack)
run = _BROKER.run


def seeds() -> Iterator[bytes]:
    opening = b"".join(parts_of(OPENING))
    for frame in SPECIMENS.values():
        yield opening + b"".join(parts_of(frame))
    for number, frame in enumerate(SPECIMENS.values()):
        yield b"\0\0" + b"".join(parts_of(with_extreme_fields(frame, random.Random(number))))[:1500]
    yield from corpus.load(corpus.RECORDED)
    # All but CONNECT, which ends a connection that has sent its own.
    everything = b"\0\0" + b"".join(bytes([0, at]) for at in range(2, len(SPECIMENS) + 1))
    yield everything
    yield everything + b"\x0d\2" + b"\x08" + everything + b"\x0d\5"
    yield b"\0\0\x0a" + b"\0\7\0\6" * 40 + b"\x0a" + b"\0\x0b\x0d\4\x0c"
