"""Commands to a broker that asks for tokens, from clients without one, with a wrong one, or of a role without rights.

Nothing of theirs has any effect: no topic, subscription or message comes or goes, and no right changes.
"""

from __future__ import annotations

import base64
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import jwt
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.security.security import Security
from heliograph_broker.server.listener import Listener

from tests.fuzz import corpus
from tests.fuzz.healthy_client import TOPIC, HealthyClient
from tests.fuzz.kept_broker import KeptBroker
from tests.fuzz.memory_core import MemoryCore
from tests.fuzz.streams import PARTS, part
from tests.fuzz.target import Finding, Source, sized
from tests.support.core import Core
from tests.support.virtual_connection import FarSide, VirtualLoop, VirtualServer
from tests.support.wire_client import Type, encode
from tests.support.wire_specimens import SPECIMENS

_SECRET = b"\x01\x82" * 16
_ADMIN, _GUEST = (jwt.encode({"sub": role}, _SECRET, "HS256").encode() for role in ("admin", "guest"))
_FOREIGN = jwt.encode({"sub": "admin"}, b"\x03\x04" * 16, "HS256").encode()
_CONNECTIONS = 3
_SETTINGS: dict[str, Any] = {
    "max_message_size": 64 * 1024,
    "auth": "token",
    "token_secret_key": "data:;base64," + base64.b64encode(_SECRET).decode(),
    "superusers": "admin",
}


class _TaskLoop(VirtualLoop):
    """Also runs coroutines that wait for nothing: keys are read again only after a second, which does not pass here."""

    def create_task(self, work: Coroutine[Any, Any, object]) -> None:
        def step() -> None:
            try:
                work.send(None)
            except StopIteration:
                return
            raise Finding("an authentication waits")

        self.call_soon(step)


class _SecuredServer(VirtualServer):
    def __init__(self, core: MemoryCore) -> None:
        self.core = core
        self.loop = _TaskLoop(core.clock)
        security = Security.from_config(core.config, core.broker.directory, core.broker.roles, core.clock)
        self.listener = Listener(core.broker, cast(Any, self.loop), security)

    def admin(self) -> FarSide:
        far = self.connect(handshake=False)
        far.send_raw(_connect(_ADMIN))
        if [frame.command.type for frame in far.take()] != [Type.CONNECTED]:
            raise Finding("a client with a good token is refused")
        return far


def _connect(token: bytes, **fields: Any) -> bytes:
    return encode(
        Type.CONNECT,
        client_version="fuzz",
        protocol_version=21,
        auth_method_name="token",
        auth_data=token,
        **fields,
    )


#: The admin's own is not among them, and no input makes one.
_HANDSHAKES = (
    _connect(_GUEST),
    b"",
    SPECIMENS["connect"],
    _connect(_FOREIGN),
    _connect(b""),
    _connect(_GUEST, original_principal="admin"),
    encode(Type.CONNECT, client_version="fuzz", protocol_version=21, auth_method_name="none"),
)


class _Broker:
    def __init__(self) -> None:
        self.server = _SecuredServer(MemoryCore(Path("/memory/data"), **_SETTINGS))
        self.healthy = HealthyClient(self.server, self.server.admin())

    def close(self) -> None:
        self.server.core.close()


def _attack(broker: _Broker, data: bytes) -> bool:
    server, healthy, source = broker.server, broker.healthy, Source(data)
    before, timers = _state(server.core), server.loop.timers
    attackers: list[FarSide | None] = [None] * _CONNECTIONS
    number = 0
    while not source.ended:
        kind, first = source.number(), b""
        far = attackers[number]
        if far is None or far.lost:
            far = attackers[number] = server.connect(handshake=False)
            first = _HANDSHAKES[(kind >> 4) % len(_HANDSHAKES)]
            if kind % 2:
                far.send_raw(first)
                server.loop.run()
                first = b""
        if kind % 16 < 2 * PARTS:
            # With CONNECT in one read, it waits for the verification.
            far.send_raw(first + part(kind % 16 // 2, source))
        else:
            number = (number + 1) % _CONNECTIONS
        server.loop.run()
        server.core.commit()
        server.loop.run()
    if (after := _state(server.core)) != before:
        raise Finding(f"clients without rights made {after} of {before}")
    healthy.beat()
    for attacker in attackers:
        if attacker is not None and not attacker.lost:
            attacker.abort()
    server.loop.run()
    if len(server.listener.connections) != 1:
        raise Finding("a connection is left although its client is gone")
    healthy.beat()
    return server.loop.timers == timers


_BROKER = KeptBroker(_Broker, _attack)
run = _BROKER.run


def _state(core: Core) -> object:
    directory = core.broker.directory
    topics = {
        name: (topic.log.end_offset, sorted(topic.subscriptions), len(topic.producers))
        for name, topic in directory.topics.items()
        if isinstance(topic, Topic)
    }
    names = (
        sorted(directory.topics),
        sorted(directory.tenants),
        sorted(directory.namespaces),
        len(directory.partitioned),
    )
    return topics, names, directory.rights_version


def seeds() -> Iterator[bytes]:
    producer = 1 + list(SPECIMENS).index("producer")
    for number in range(len(_HANDSHAKES)):
        yield bytes([number << 4 | number % 2, producer])
    # All but CONNECT, which ends a connection that has sent its own.
    everything = b"".join(bytes([0, at]) for at in range(2, len(SPECIMENS) + 1))
    yield everything
    yield everything + b"\x0e\x10\3" + everything + b"\x0e\x20\3" + everything
    for recorded in corpus.load(corpus.RECORDED):
        yield b"\0\0\x08" + sized(recorded)
    for frame in (
        encode(Type.PRODUCER, topic=TOPIC, producer_id=1, request_id=1),
        encode(Type.AUTH_RESPONSE, client_version="fuzz", protocol_version=21),
    ):
        yield b"\0\0\x02" + sized(frame[8:])
