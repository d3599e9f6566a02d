"""Every command of the binary protocol, sent by every kind of role: each cell of the matrix is an actual request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.tokens import Signer, ask
from tests.support.wire_client import ConnectionEndedError, Frame, Type, WireClient, encode
from tests.support.wire_specimens import SPECIMENS, TOPIC

#: What each command needs; written down here, and not read from the broker.
NEEDS = {
    "lookup": "lookup",
    "partitioned_metadata": "lookup",
    "get_schema": "lookup",
    "topics_of_namespace": "list",
    "watch_topic_list": "list",
    "producer": "produce",
    "get_or_create_schema": "produce",
    "subscribe": "consume",
}
#: About the client's own producers, consumers and connection, of which it has none here; or refused to everybody.
OWN = {
    "ping",
    "pong",
    "close_producer",
    "flow",
    "ack",
    "ack_cumulative",
    "redeliver",
    "unsubscribe",
    "seek",
    "seek_time",
    "get_last_message_id",
    "consumer_stats",
    "close_consumer",
    "watch_topic_list_close",
    "tc_client_connect",
    "new_txn",
    "add_partition_to_txn",
    "add_subscription_to_txn",
    "end_txn",
}
#: These break the protocol on a connection that has no producers, that is connected, or that is a client's.
BREAKING = {"connect", "send", "send_batch", "send_receipt", "message", "auth_challenge"}


class Role(NamedTuple):
    """A kind of client, and what it may do with the topic of the specimens."""

    name: str
    may: frozenset[str] = frozenset()
    #: The role that a proxy names.
    speaks_for: str = ""


ALL = frozenset({"lookup", "list", "produce", "consume"})
KNOWN = (
    Role("stranger"),
    Role("producer", frozenset({"lookup", "produce"})),
    Role("consumer", frozenset({"lookup", "consume"})),
    Role("both", frozenset({"lookup", "produce", "consume"})),
    Role("producer-of-namespace", frozenset({"lookup", "list", "produce"})),
    Role("consumer-of-namespace", frozenset({"lookup", "list", "consume"})),
    Role("of-another-topic"),
    Role("admin-of-another-tenant"),
    Role("tenant-admin", ALL),
    Role("superuser", ALL),
    Role("proxy", frozenset({"lookup", "produce"}), speaks_for="producer"),
    Role("proxy-for-a-stranger", speaks_for="stranger"),
    Role("proxy-without-rights", speaks_for="producer"),
)
#: These are refused before anything that they send is handled.
UNKNOWN = ("no credentials", "no token", "expired", "foreign", "proxy for nobody", "no proxy for another")
#: Of these, those whose role is known, and who may not speak for whom they name.
NOT_SPEAKING = ("proxy for nobody", "no proxy for another")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    settings = signer.settings(
        superusers="superuser",
        proxies="proxy,proxy-for-a-stranger,proxy-without-rights",
    )
    with BrokerProcess(tmp_path_factory.mktemp("matrix") / "data", environment=settings) as running:
        grant_all(running, signer.token("superuser"))
        yield running


def grant_all(broker: BrokerProcess, token: str) -> None:
    """Give the roles their rights."""

    def put(path: str, body: object = None, method: str = "POST") -> None:
        answer = ask(f"{broker.http_url}/admin/v2/{path}", token, method, body)
        assert answer.status in (200, 204), (path, answer)

    topic = TOPIC.replace("://", "/")
    put(topic, method="PUT")
    put(f"{topic}-other", method="PUT")
    for role, actions in {
        "producer": ["produce"],
        "consumer": ["consume"],
        "both": ["produce", "consume"],
        "proxy": ["produce", "consume"],
        "proxy-for-a-stranger": ["produce", "consume"],
    }.items():
        put(f"{topic}/permissions/{role}", actions)
    put(f"{topic}-other/permissions/of-another-topic", ["produce", "consume"])
    put("namespaces/public/default/permissions/producer-of-namespace", ["produce"])
    put("namespaces/public/default/permissions/consumer-of-namespace", ["consume"])
    put("tenants/public", {"adminRoles": ["tenant-admin"], "allowedClusters": ["standalone"]})
    put("tenants/acme", {"adminRoles": ["admin-of-another-tenant"], "allowedClusters": ["standalone"]}, "PUT")


def connect_fields(role: Role, signer: Signer) -> dict[str, Any]:
    fields = {"auth_method_name": "token", "auth_data": signer.token(role.name).encode()}
    return fields | ({"original_principal": role.speaks_for} if role.speaks_for else {})


def answers_to(broker: BrokerProcess, frame: bytes, fields: dict[str, Any]) -> list[Frame]:
    """Connect, send a frame, and return all that comes until the answer to a PING or the end of the connection."""
    with WireClient(broker.service_url, connect=False) as client:
        ping = encode(Type.PING)
        client.send_raw(encode(Type.CONNECT, client_version="matrix", protocol_version=21, **fields) + frame + ping)
        answers: list[Frame] = []
        try:
            while not answers or answers[-1].command.type != Type.PONG:
                answers.append(client.read_frame())
            if frame == SPECIMENS["ping"]:
                answers.append(client.read_frame())
        except ConnectionEndedError:
            pass
        return answers


def errors_in(frame: Frame) -> set[int]:
    """Return the error codes of an answer."""
    body = frame.body
    return {
        getattr(body, name)
        for name in ("error", "error_code")
        if name in body.DESCRIPTOR.fields_by_name and body.HasField(name)
    }


@pytest.mark.parametrize("name", sorted(SPECIMENS))
def test_a_known_role_may_do_what_it_was_granted_and_nothing_else(
    closed: BrokerProcess, signer: Signer, name: str
) -> None:
    assert (name in NEEDS) + (name in OWN) + (name in BREAKING) == 1, "a new command needs a line in this matrix"
    for role in KNOWN:
        connected, *answers = answers_to(closed, SPECIMENS[name], connect_fields(role, signer))
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
    token = signer.token("superuser").encode()
    foreign = Signer(keys / "foreign.key", b"the key of somebody else, which is long enough")
    shown: dict[str, dict[str, Any]] = {
        "no credentials": {},
        "no token": {"auth_method_name": "token"},
        "expired": {"auth_method_name": "token", "auth_data": signer.token("superuser", expires_in_s=-60).encode()},
        "foreign": {"auth_method_name": "token", "auth_data": foreign.token("superuser").encode()},
        "proxy for nobody": {"auth_method_name": "token", "auth_data": signer.token("proxy").encode()},
        "no proxy for another": {"auth_method_name": "token", "auth_data": token, "original_principal": "producer"},
    }
    assert tuple(shown) == UNKNOWN
    for kind, fields in shown.items():
        (only,) = answers_to(closed, SPECIMENS[name], fields)
        assert only.command.type == Type.ERROR, kind
        expected = wire.AuthorizationError if kind in NOT_SPEAKING else wire.AuthenticationError
        assert only.body.error == expected, kind


def test_the_matrix_has_all_its_cells() -> None:
    assert len(SPECIMENS) * (len(KNOWN) + len(UNKNOWN)) >= 600
