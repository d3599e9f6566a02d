"""The parts of the pipeline's own client that need no connection: heads of entries, permits, addresses, credentials."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.credentials import presented
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.oauth2 import ClientCredentials
from heliograph_spark.plan.positions import BEGINNING, Position
from heliograph_spark.wire.brokers import addresses_of
from heliograph_spark.wire.entry_reader import EARLIEST, Start
from heliograph_spark.wire.message_heads import MessageHead, MessageHeads
from heliograph_spark.wire.permits import Permits
from heliograph_spark.wire.stream import Address
from hypothesis import example, given
from hypothesis import strategies as st

IDS = st.one_of(st.integers(0, 5), st.integers(120, 140), st.integers(0, (1 << 63) - 1))
HEADS = st.tuples(
    st.integers(0, 3),
    IDS,
    IDS,
    st.integers(0, 200),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3).map(tuple),
)


def with_entry(head: MessageHead, entry: int) -> MessageHead:
    return (*head[:2], min(entry, (1 << 63) - 1), *head[3:])


def encoded(head: MessageHead, partition: int | None = None, *, no_redelivery: bool = False) -> bytes:
    command = wire.BaseCommand(type=wire.BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id, message.message_id.ledgerId, message.message_id.entryId, redelivery_count, ack_set = head
    if partition is not None:
        message.message_id.partition = partition
    if not no_redelivery or redelivery_count:
        message.redelivery_count = redelivery_count
    message.ack_set.extend(ack_set)
    return command.SerializeToString()


@given(st.lists(st.tuples(HEADS, st.integers(1, 300), st.integers(-1, 3), st.booleans()), max_size=8))
@example([((1, 7, 0, 0, ()), 300, -1, True), ((7, 7, 7, 7, (7,)), 300, 7, False)])
def test_a_head_is_read_whatever_was_read_before(runs: list[tuple[MessageHead, int, int, bool]]) -> None:
    heads = MessageHeads()
    for first, count, partition, no_redelivery in runs:
        for at in range(count):
            head = with_entry(first, first[2] + at)
            assert heads.read(encoded(head, partition, no_redelivery=no_redelivery)) == head


@given(HEADS, HEADS)
def test_heads_of_two_consumers_by_turns_are_not_taken_for_each_other(one: MessageHead, two: MessageHead) -> None:
    heads = MessageHeads()
    for at in range(6):
        for each in (one, two):
            head = with_entry(each, each[2] + at)
            assert heads.read(encoded(head)) == head


@given(st.integers(0, 300), st.lists(st.integers(0, 300), min_size=3, max_size=6), st.booleans())
def test_bytes_that_look_like_an_entry_id_are_not_taken_for_one(
    ledger: int, entries: list[int], in_ack_set: bool
) -> None:
    """Fields that this client does not know come first here, with the bytes of the ids in them."""
    heads = MessageHeads()
    place = wire.MessageIdData(ledgerId=ledger, entryId=entries[0]).SerializeToString()
    unknown = b"\x7a" + bytes([len(place)]) + place
    for entry in entries:
        body = encoded((1, ledger, entry, 0, (5,) if in_ack_set else ()))
        message = body[4:] if body[3] < 128 else body[5:]
        inner = unknown + message
        command = b"\x08\x09\x4a" + bytes([len(inner)]) + inner
        assert heads.read(command) == (1, ledger, entry, 0, (5,) if in_ack_set else ())


def test_a_command_that_ends_within_its_entry_id_is_none() -> None:
    heads = MessageHeads()
    for entry in range(4):
        assert heads.read(encoded((1, 5, entry, 0, ()), no_redelivery=True)) == (1, 5, entry, 0, ())
    with pytest.raises(DecodeError):
        heads.read(encoded((1, 5, 4, 0, ()), no_redelivery=True)[:-1] + b"\xff")


def test_what_is_no_message_has_no_head() -> None:
    heads = MessageHeads()
    for _ in range(3):
        assert (
            heads.read(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing()).SerializeToString())
            is None
        )


@given(
    st.integers(1, 10_000_000),
    st.one_of(st.none(), st.integers(1, 5000)),
    st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 6_000_000)), max_size=60),
)
def test_permits_never_run_out_and_never_exceed_what_fits(
    largest: int, most: int | None, entries: list[tuple[int, int]]
) -> None:
    budget = 16 << 20
    permits = Permits(largest, most, budget)
    granted = permits.first()
    assert 1 <= granted <= max(1, budget // largest)
    for messages, size in entries:
        # A broker with permits sends the next entry whole, and one without none.
        assert granted > 0
        granted -= messages
        more = permits.taken(messages, size)
        granted += more
        assert granted == permits.outstanding
        # Permits that were granted before stay granted.
        assert more == 0 or granted <= max(1, budget * messages // size)
        assert most is None or granted <= most


def test_the_window_grows_to_what_fits() -> None:
    permits = Permits(5 << 20)
    assert permits.first() == 3
    for _ in range(100):
        permits.taken(100, 10_000)
    assert permits.outstanding > 80_000
    permits.taken(1, 4 << 20)
    for _ in range(permits.outstanding):
        permits.taken(1, 4 << 20)
    assert permits.outstanding <= 4


@pytest.mark.parametrize(
    ("url", "addresses", "secured"),
    [
        ("pulsar://localhost:6650", [("localhost", 6650)], False),
        ("pulsar://localhost", [("localhost", 6650)], False),
        ("pulsar+ssl://a,b:1/", [("a", 6651), ("b", 1)], True),
        ("pulsar://[::1]:6650,[fe80::2]", [("::1", 6650), ("fe80::2", 6650)], False),
    ],
)
def test_addresses_of_a_service_url(url: str, addresses: list[tuple[str, int]], *, secured: bool) -> None:
    assert addresses_of(url) == ([Address(host, port) for host, port in addresses], secured)


@pytest.mark.parametrize(
    "url", ["", "localhost:6650", "http://localhost:8080", "pulsar://", "pulsar://a,,b", "pulsar://a:x"]
)
def test_a_service_url_that_is_none_is_named(url: str) -> None:
    with pytest.raises(OptionError, match=r"^service\.url: "):
        addresses_of(url)


def test_an_address_is_shown_as_it_is_written() -> None:
    assert str(Address("::1", 6650)) == "[::1]:6650"
    assert str(Address("proxy", 6650, "broker:6650")) == "proxy:6650 (proxy of broker:6650)"


def test_starts() -> None:
    assert Start.after(Position(5, 3)) == Start(5, 4)
    assert Start.after(Position(5, 3, 2)) == Start(5, 3)
    assert Start.at(Position(5, 3, 2)) == Start(5, 3)
    assert Start.at(Position(5, -1)) == Start.after(Position(5, -1)) == Start(5, 0)
    assert Start.after(BEGINNING) == EARLIEST


# Credentials

KEY = {"type": "client_credentials", "client_id": "spark", "client_secret": "s3cret/ü"}
TEXT = json.dumps(KEY)
ISSUER = {"issuerUrl": "https://issuer.example/", "audience": "urn:pulsar", "scope": "read"}
EXPECTED = ClientCredentials("https://issuer.example", "spark", "s3cret/ü", "urn:pulsar", "read")


def as_urls(path: Path) -> list[str]:
    encoded_key = base64.b64encode(TEXT.encode()).decode()
    return [
        f"data:application/json;base64,{encoded_key}",
        f"data:application/json,{quote(TEXT)}",
        str(path),
        f"file://{path}",
        f"file:{path}",
    ]


def test_the_private_key_is_found_in_every_place_that_the_official_clients_know(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(TEXT)
    for place in as_urls(path):
        assert ClientCredentials.parse(json.dumps({**ISSUER, "privateKey": place})) == EXPECTED
        assert (
            ClientCredentials.parse(json.dumps({**ISSUER, "private_key": place, "type": "client_credentials"}))
            == EXPECTED
        )
    direct = ClientCredentials.parse(json.dumps({"issuer_url": "https://i", "client_id": "a", "client_secret": "b"}))
    assert direct == ClientCredentials("https://i", "a", "b")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"issuerUrl": ""}, "issuerUrl is missing"),
        ({"privateKey": ""}, "privateKey is missing"),
        ({"privateKey": "data:xyz"}, "not a data: URL"),
        ({"privateKey": "data:application/json;base64,@"}, "base64"),
        ({"privateKey": "data:application/json;base64,e30="}, "client_id is missing"),
        ({"privateKey": "data:application/json,s3cret"}, "this is not JSON"),
        ({"privateKey": "/nowhere/key.json"}, "cannot be read"),
        ({"type": "password"}, "'password' is not known here"),
    ],
)
def test_what_is_wrong_with_the_parameters_of_oauth2_is_named(change: dict[str, str], expected: str) -> None:
    place = "data:application/json;base64," + base64.b64encode(TEXT.encode()).decode()
    with pytest.raises(OptionError, match=expected) as error:
        ClientCredentials.parse(json.dumps({**ISSUER, "privateKey": place, **change}))
    assert "s3cret" not in str(error.value)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
PARAMS = st.dictionaries(
    st.sampled_from(["type", "issuerUrl", "privateKey", "client_id", "client_secret", "audience", "scope"]), JSON
)


@given(st.one_of(st.text(), JSON.map(json.dumps), PARAMS.map(json.dumps)))
def test_parameters_of_oauth2_are_understood_or_refused(params: str) -> None:
    try:
        found = ClientCredentials.parse(params)
    except OptionError:
        return
    assert found.issuer_url or json.loads(params)["issuerUrl"].strip("/") == ""
    assert found.client_id
    assert found.client_secret


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ("none", b"")),
        (
            {"auth_plugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken", "auth_params": "token:t"},
            ("token", b"t"),
        ),
        (
            {"auth_plugin": "AuthenticationBasic", "auth_params": '{"username":"u","password":"ü"}'},
            ("basic", "u:ü".encode()),
        ),
        ({"auth_plugin": "AuthenticationTls", "auth_params": "tlsCertFile:a,tlsKeyFile:b"}, ("tls", b"")),
    ],
)
def test_what_connect_carries(settings: dict[str, Any], expected: tuple[str, bytes]) -> None:
    assert presented(settings) == expected
