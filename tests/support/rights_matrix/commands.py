"""Every command of the binary protocol, every kind of client that sends it, and what each may."""

from __future__ import annotations

from typing import Any, NamedTuple

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
    Role("no-grants"),
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
    Role("proxy-for-no-grants", speaks_for="no-grants"),
    Role("proxy-without-rights", speaks_for="producer"),
)
#: The roles of :data:`KNOWN` that speak for others.
PROXIES = tuple(role.name for role in KNOWN if role.speaks_for)


def grant_all(http_url: str, token: str) -> None:
    """Give the roles their rights."""

    def put(path: str, body: object = None, method: str = "POST") -> None:
        answer = ask(f"{http_url}/admin/v2/{path}", token, method, body)
        assert answer.status in (200, 204), (path, answer)

    topic = TOPIC.replace("://", "/")
    put(topic, method="PUT")
    put(f"{topic}-other", method="PUT")
    for role, actions in {
        "producer": ["produce"],
        "consumer": ["consume"],
        "both": ["produce", "consume"],
        "proxy": ["produce", "consume"],
        "proxy-for-no-grants": ["produce", "consume"],
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


#: The kinds of :func:`unknown_clients` whose role is known, and who may not speak for the one that they name.
NOT_SPEAKING = ("proxy for nobody", "no proxy for another")


def unknown_clients(signer: Signer, foreign: Signer) -> dict[str, dict[str, Any]]:
    """Return what clients show that are refused before anything that they send is handled, by their kind."""
    token = signer.token("superuser").encode()
    return {
        "no credentials": {},
        "no token": {"auth_method_name": "token"},
        "expired": {"auth_method_name": "token", "auth_data": signer.token("superuser", expires_in_s=-60).encode()},
        "foreign": {"auth_method_name": "token", "auth_data": foreign.token("superuser").encode()},
        "proxy for nobody": {"auth_method_name": "token", "auth_data": signer.token("proxy").encode()},
        "no proxy for another": {"auth_method_name": "token", "auth_data": token, "original_principal": "producer"},
    }


def answers_to(service_url: str, name: str, fields: dict[str, Any], *, patient: bool = False) -> list[Frame]:
    """Connect, send a specimen, and return all that comes until the answer to a PING or the end of the connection.

    ``patient`` is for a broker that does not handle commands in their order: nothing is sent before the answer to
    CONNECT, and a command that needs a right is answered, however late.
    """
    with WireClient(service_url, connect=False) as client:
        connect = encode(Type.CONNECT, client_version="matrix", protocol_version=21, **fields)
        rest = SPECIMENS[name] + encode(Type.PING)
        answers: list[Frame] = []
        try:
            if patient:
                client.send_raw(connect)
                answers.append(client.read_frame())
                client.send_raw(rest if answers[0].command.type == Type.CONNECTED else b"")
            else:
                client.send_raw(connect + rest)
            while not answers or answers[-1].command.type != Type.PONG:
                answers.append(client.read_frame())
            if name == "ping" or (patient and name in NEEDS and len(answers) == 2):
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
