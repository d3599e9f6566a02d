"""Every command of the binary protocol, sent by every kind of role: each cell of the matrix is an actual request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.rights_matrix.commands import (
    BREAKING,
    KNOWN,
    NEEDS,
    NOT_SPEAKING,
    OWN,
    PROXIES,
    answers_to,
    connect_fields,
    errors_in,
    grant_all,
    unknown_clients,
)
from tests.support.tokens import Signer
from tests.support.wire_client import Type
from tests.support.wire_specimens import SPECIMENS


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    settings = signer.settings(superusers="superuser", proxies=",".join(PROXIES))
    with BrokerProcess(tmp_path_factory.mktemp("matrix") / "data", environment=settings) as running:
        grant_all(running.http_url, signer.token("superuser"))
        yield running


@pytest.mark.parametrize("name", sorted(SPECIMENS))
def test_a_known_role_may_do_what_it_was_granted_and_nothing_else(
    closed: BrokerProcess, signer: Signer, name: str
) -> None:
    assert (name in NEEDS) + (name in OWN) + (name in BREAKING) == 1, "a new command needs a line in this matrix"
    for role in KNOWN:
        connected, *answers = answers_to(closed.service_url, name, connect_fields(role, signer))
        assert connected.command.type == Type.CONNECTED, (role, connected)
        refused = any(wire.AuthorizationError in errors_in(answer) for answer in answers)
        if name in BREAKING:
            assert [answer.command.type for answer in answers] == [Type.ERROR], role
            assert "malformed frame" in answers[0].body.message, role
            continue
        assert answers[-1].command.type == Type.PONG, (role, answers)
        assert refused == (name in NEEDS and NEEDS[name] not in role.may), (role, answers)


@pytest.mark.parametrize("name", sorted(SPECIMENS))
def test_nothing_of_a_client_is_handled_that_has_not_shown_who_it_is(
    closed: BrokerProcess, signer: Signer, keys: Path, name: str
) -> None:
    foreign = Signer(keys / "foreign.key", b"the key of somebody else, which is long enough")
    for kind, fields in unknown_clients(signer, foreign).items():
        (only,) = answers_to(closed.service_url, name, fields)
        assert only.command.type == Type.ERROR, kind
        expected = wire.AuthorizationError if kind in NOT_SPEAKING else wire.AuthenticationError
        assert only.body.error == expected, kind


def test_the_matrix_has_all_its_cells(signer: Signer) -> None:
    assert len(SPECIMENS) * (len(KNOWN) + len(unknown_clients(signer, signer))) >= 600
