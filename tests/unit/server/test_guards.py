"""No command of a client is handled on a broker with authorization unless a rule says what it needs."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FrameError
from heliograph_broker.server.commands.guards import GUARDS, guarded
from heliograph_broker.server.commands.handlers import HANDLERS

Type = wire.BaseCommand


def test_every_command_but_connect_has_a_rule() -> None:
    assert set(GUARDS) | {Type.CONNECT} == set(HANDLERS)


def test_a_command_without_a_rule_is_refused() -> None:
    def handler(session: Any, command: wire.BaseCommand) -> None:
        raise AssertionError("it must not be handled")

    unknown = Type.TOPIC_MIGRATED
    with pytest.raises(FrameError, match="nobody may send TOPIC_MIGRATED: no rule allows it"):
        guarded({unknown: handler})[unknown](None, wire.BaseCommand(type=unknown))
