"""Credentials that end while their connection is open, and a wall clock that is set meanwhile; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest
from heliograph_broker.security.authentication.authenticator import Authenticator
from heliograph_broker.security.authentication.failure_log import FailureLog
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.identity import Identity
from heliograph_broker.security.security import Security
from heliograph_broker.server import credential_check
from heliograph_broker.server.commands.authentication_commands import challenge
from heliograph_broker.server.connection import Connection
from heliograph_broker.server.credential_check import CredentialCheck
from heliograph_broker.server.session import Session

from tests.support.core import Core
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type

#: Longer than a wall clock that is set has to stay so, until the broker believes it.
CHECK_MS = 300_000
HOUR_MS = 3_600_000


class Checked:
    """Clients whose credentials end in an hour, and the check of these every five minutes."""

    def __init__(self, core: Core) -> None:
        self.clock = core.clock
        self.server = VirtualServer(core)
        self.clients: list[FarSide] = []
        broker = core.broker
        self.directory = broker.directory
        self.authenticator = Authenticator([])
        security = Security(
            self.authenticator, Authorizer(broker.directory, []), FailureLog(core.clock), CHECK_MS / 1000
        )
        loop = cast(asyncio.AbstractEventLoop, self.server.loop)
        self.check = CredentialCheck(loop, broker, security, self.connections, lambda: None)
        self.check.start()

    def connections(self) -> Iterator[Connection]:
        for each in self.clients:
            if not each.lost:
                yield each.connection

    def client(self, *, renews: bool) -> FarSide:
        far = self.server.connect()
        session = far.connection.session
        assert isinstance(session, Session)
        session.renews = renews
        session.identity = Identity("billing", "token", self.clock.now_ms() + HOUR_MS)
        self.clients.append(far)
        return far

    def kinds_after(self, far: FarSide, ms: int) -> set[int]:
        """Let time pass, in which clients answer pings; return what else this one was sent."""
        kinds: set[int] = set()
        for _ in range(ms // 10_000):
            self.server.advance(10_000)
            kinds |= {frame.command.type for frame in far.take()}
            for each in self.clients:
                if not each.closing:
                    each.send(Type.PONG)
        return kinds - {Type.PING, Type.PONG}


@pytest.fixture
def checked(core: Core) -> Iterator[Checked]:
    made = Checked(core)
    yield made
    made.check.stop()


@pytest.mark.parametrize("renews", [True, False])
def test_a_client_has_one_check_of_time_after_the_end_of_its_credentials(checked: Checked, renews: bool) -> None:
    far = checked.client(renews=renews)
    assert checked.kinds_after(far, HOUR_MS - CHECK_MS) == set()
    assert checked.kinds_after(far, CHECK_MS) == ({Type.AUTH_CHALLENGE} if renews else set())
    assert not far.closing
    assert checked.kinds_after(far, CHECK_MS) == {Type.ERROR}
    assert far.closing


@pytest.mark.parametrize("renews", [True, False])
def test_a_wall_clock_that_was_set_for_a_while_leaves_a_client_its_whole_time(checked: Checked, renews: bool) -> None:
    far = checked.client(renews=renews)
    checked.clock.step_wall_ms(2 * HOUR_MS)
    assert checked.kinds_after(far, CHECK_MS) == ({Type.AUTH_CHALLENGE} if renews else set())
    checked.clock.step_wall_ms(-2 * HOUR_MS)
    # Its credentials are good again, and it does not have to show others.
    assert checked.kinds_after(far, HOUR_MS - 2 * CHECK_MS) == set()
    assert not far.closing
    # When they end in earnest, it has as long as any other client.
    assert checked.kinds_after(far, CHECK_MS) == ({Type.AUTH_CHALLENGE} if renews else set())
    assert not far.closing
    assert checked.kinds_after(far, CHECK_MS) == {Type.ERROR}


def test_a_wall_clock_that_goes_back_prolongs_credentials_and_closes_nothing(checked: Checked) -> None:
    far = checked.client(renews=False)
    checked.clock.step_wall_ms(-HOUR_MS)
    assert checked.kinds_after(far, 2 * HOUR_MS - CHECK_MS) == set()
    assert not far.closing
    assert checked.kinds_after(far, 3 * CHECK_MS) == {Type.ERROR}


def test_a_defect_that_one_client_meets_ends_it_and_not_the_checks_of_others(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky, other = checked.client(renews=True), checked.client(renews=True)

    def fails_for_unlucky(session: Session) -> None:
        if session is unlucky.connection.session:
            raise RuntimeError("a defect")
        challenge(session)

    monkeypatch.setattr(credential_check, "challenge", fails_for_unlucky)
    assert checked.kinds_after(other, HOUR_MS) == {Type.AUTH_CHALLENGE}
    assert unlucky.closing
    assert not other.closing


def test_a_defect_that_one_client_meets_leaves_nobody_else_a_right_that_is_lost(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky, other = checked.client(renews=True), checked.client(renews=True)

    def fails_for_unlucky(identity: Identity) -> bool:
        if identity is cast(Session, unlucky.connection.session).identity:
            raise RuntimeError("a defect")
        return True

    monkeypatch.setattr(checked.authenticator, "has_another_role", fails_for_unlucky)
    checked.directory.rights_version += 1
    checked.kinds_after(other, 10_000)
    assert unlucky.closing
    assert other.closing
