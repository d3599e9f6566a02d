"""The pipeline's own client and peers unlike Heliograph: with credentials, TLS, redirects, or no brokers at all."""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan import oauth2
from heliograph_spark.plan.errors import OptionError, PulsarSourceError
from heliograph_spark.plan.handshake import check_welcome
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, LATEST, EntryReader, Start
from heliograph_spark.wire.failures import LinkLost, NoAnswer, Refused

from tests.support.entries import make_entry
from tests.support.entry_reading import connection_to, contents, read_count, read_until
from tests.support.fake_broker import CONNECTED, FakeBroker
from tests.support.polling import eventually
from tests.support.wire_client import Frame, encode

Type = wire.BaseCommand
TOPIC = "persistent://public/default/t"
TOKEN = {"auth_plugin": "AuthenticationToken", "auth_params": "token:first"}
NO_REQUEST = (1 << 64) - 1


def partitions_answer(frame: Frame, partitions: int = 0) -> bytes:
    return encode(
        Type.PARTITIONED_METADATA_RESPONSE,
        request_id=frame.body.request_id,
        partitions=partitions,
        response=wire.CommandPartitionedTopicMetadataResponse.Success,
    )


def ordinary(frame: Frame) -> bytes | None:
    """Lets everybody in, and has topics of three partitions."""
    if frame.command.type == Type.CONNECT:
        return CONNECTED
    if frame.command.type == Type.PARTITIONED_METADATA:
        return partitions_answer(frame, 3)
    return b""


def brokers_of(broker: FakeBroker, **client: Any) -> Brokers:
    return Brokers(connection_to(broker.url, **client))


def test_refused_credentials_are_named_at_once() -> None:
    def refuse(frame: Frame) -> bytes | None:
        return encode(
            Type.ERROR, request_id=NO_REQUEST, error=wire.AuthenticationError, message="Failed to authenticate"
        )

    with FakeBroker(refuse) as broker:
        brokers = brokers_of(broker, **TOKEN)
        expected = (
            rf"connecting to 127\.0\.0\.1:{broker.port}: the credentials were refused "
            r"\(pulsar\.client\.authPluginClassName, \.authParams\): Failed to authenticate"
        )
        for _ in range(2):
            with pytest.raises(PulsarSourceError, match=expected):
                brokers.partitions(TOPIC)
        with pytest.raises(PulsarSourceError, match=expected):
            EntryReader(brokers, TOPIC, EARLIEST).read(1)
        assert len(broker.frames) == 3
        brokers.close()
        # So they are before the official client is used, which would only tell of a timeout.
        connection = connection_to(broker.url, **TOKEN)
        with pytest.raises(PulsarSourceError, match=r"the credentials were refused \(.*Failed to authenticate"):
            check_welcome(connection)


def test_what_connect_carries_arrives() -> None:
    with FakeBroker(ordinary) as broker:
        brokers = brokers_of(broker, **TOKEN)
        assert brokers.partitions(TOPIC) == 3
        connect = broker.frames[0][0].body
        assert (connect.auth_method_name, connect.auth_data) == ("token", b"first")
        assert connect.feature_flags.supports_auth_refresh
        assert not broker.frames[0][1].body.metadata_auto_creation_enabled
        brokers.close()


def test_a_challenge_is_answered_with_the_credentials_as_they_are_now(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    with FakeBroker(ordinary) as broker:
        brokers = brokers_of(broker, auth_plugin="AuthenticationToken", auth_params=f"file:{token}")
        brokers.partitions(TOPIC)
        token.write_text("second")
        challenge = wire.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh")
        broker.send(encode(Type.AUTH_CHALLENGE, server_version="Fake", challenge=challenge, protocol_version=19))
        brokers.partitions(TOPIC)
        answers = eventually(
            lambda: [each for each in broker.frames[0] if each.command.type == Type.AUTH_RESPONSE], what="an answer"
        )
        assert answers[0].body.response.auth_data == b"second"
        assert len(broker.frames) == 1
        brokers.close()


class _Issuer(BaseHTTPRequestHandler):
    """Gives the tokens ``t1``, ``t2``, … of OAuth2, each with the life of ``server.life_s`` seconds."""

    server: Any

    def do_GET(self) -> None:
        assert self.path == "/realm/.well-known/openid-configuration"
        self._answer(200, {"token_endpoint": f"http://127.0.0.1:{self.server.server_port}/token"})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.forms.append(form)
        if form["client_secret"] != ["right"]:
            self._answer(401, {"error": "invalid_client"})
            return
        self._answer(200, {"access_token": f"t{len(self.server.forms)}", "expires_in": self.server.life_s})

    def _answer(self, status: int, body: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Issuer)
    server.forms, server.life_s = [], 3600
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def oauth2_settings(issuer: Any, secret: str) -> dict[str, str]:
    key = base64.b64encode(json.dumps({"client_id": "spark", "client_secret": secret}).encode()).decode()
    params = {
        "issuerUrl": f"http://127.0.0.1:{issuer.server_port}/realm/",
        "privateKey": f"data:application/json;base64,{key}",
        "audience": "urn:pulsar",
    }
    return {"auth_plugin": "AuthenticationOAuth2", "auth_params": json.dumps(params)}


def test_a_token_of_oauth2_is_asked_for_once_while_it_is_valid(issuer: Any) -> None:
    with FakeBroker(ordinary) as broker:
        for _ in range(2):
            brokers = brokers_of(broker, **oauth2_settings(issuer, "right"))
            assert brokers.partitions(TOPIC) == 3
            brokers.close()
        assert [frames[0].body.auth_data for frames in broker.frames] == [b"t1", b"t1"]
        assert broker.frames[0][0].body.auth_method_name == "token"
    expected = {
        "grant_type": "client_credentials",
        "client_id": "spark",
        "client_secret": "right",
        "audience": "urn:pulsar",
    }
    assert issuer.forms == [{name: [value] for name, value in expected.items()}]


def test_a_token_of_oauth2_that_expires_is_replaced(issuer: Any) -> None:
    issuer.life_s = 0
    params = oauth2_settings(issuer, "right")["auth_params"]
    assert [oauth2.access_token(params) for _ in range(3)] == ["t1", "t2", "t3"]


def test_a_token_of_oauth2_whose_life_nobody_says_is_kept_and_one_of_no_number_is_refused(issuer: Any) -> None:
    issuer.life_s = None
    params = oauth2_settings(issuer, "right")["auth_params"]
    assert [oauth2.access_token(params) for _ in range(2)] == ["t1", "t1"]
    issuer.life_s = "soon"
    params = json.dumps(json.loads(params) | {"scope": "another"})
    with pytest.raises(PulsarSourceError, match=r"/token: expires_in is 'soon', which is no number of seconds"):
        oauth2.access_token(params)


def test_an_issuer_that_refuses_is_named(issuer: Any) -> None:
    with FakeBroker(ordinary) as broker:
        brokers = brokers_of(broker, **oauth2_settings(issuer, "wrong"))
        with pytest.raises(PulsarSourceError, match=r"/token: no token was given: 401 .*invalid_client") as error:
            brokers.partitions(TOPIC)
        assert "wrong" not in str(error.value)
        brokers.close()


def test_authorities_of_an_issuer_that_cannot_be_read_are_named(issuer: Any, tmp_path: Path) -> None:
    params = json.loads(oauth2_settings(issuer, "right")["auth_params"]) | {"trustCertsFilePath": f"{tmp_path}/ca.crt"}
    with pytest.raises(OptionError, match=r"trustCertsFilePath .*ca\.crt cannot be used: .*No such file"):
        oauth2.access_token(json.dumps(params))


def certificate(directory: Path, name: str) -> Path:
    made = directory / f"{name}.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", f"{made}.key", "-out", str(made)], check=True, capture_output=True)
    return made


def test_tls_is_agreed_on_or_what_is_wrong_with_it_is_named(tmp_path: Path) -> None:
    own, other = certificate(tmp_path, "own"), certificate(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, f"{own}.key")
    entries = [make_entry(b"%d" % at + b"." * 10_000) for at in range(200)]

    def answer(frame: Frame) -> bytes | None:
        kind = frame.command.type
        if kind == Type.LOOKUP:
            url = f"pulsar+ssl://127.0.0.1:{broker.port}"
            return lookup_answer(frame, brokerServiceUrl="pulsar://127.0.0.1:1", brokerServiceUrlTls=url)
        if kind == Type.SUBSCRIBE:
            return encode(Type.SUCCESS, request_id=frame.body.request_id)
        if kind == Type.FLOW:
            return b"".join(message_of(1, at, entries[at]) for at in itertools.islice(left, frame.body.messagePermits))
        return ordinary(frame)

    left = iter(range(len(entries)))

    with FakeBroker(answer, context) as broker:
        brokers = brokers_of(broker, tls_trust_certs_file_path=str(own), tls_validate_hostname=True)
        assert brokers.partitions(TOPIC) == 3
        with EntryReader(brokers, TOPIC, EARLIEST) as reader:
            found = read_until(reader, lambda found: len(found) >= len(entries))
        assert [each.rstrip(b".") for each in contents(found)] == [b"%d" % at for at in range(200)]
        brokers.close()
        brokers = brokers_of(broker, tls_trust_certs_file_path=str(other))
        expected = rf"TLS with 127\.0\.0\.1:{broker.port} failed \(pulsar\.client\.tlsTrustCertsFilePath"
        with pytest.raises(PulsarSourceError, match=expected):
            brokers.partitions(TOPIC)
        brokers.close()
        check_welcome(connection_to(broker.url, tls_trust_certs_file_path=str(own)))
        with pytest.raises(PulsarSourceError, match=expected):
            check_welcome(connection_to(broker.url, tls_trust_certs_file_path=str(other)))


def lookup_answer(frame: Frame, response: int = wire.CommandLookupTopicResponse.Connect, **fields: Any) -> bytes:
    return encode(Type.LOOKUP_RESPONSE, request_id=frame.body.request_id, response=response, **fields)


def message_of(consumer_id: int, entry_id: int, entry: bytes, ledger_id: int = 5) -> bytes:
    place = wire.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    return encode(Type.MESSAGE, entry, consumer_id=consumer_id, message_id=place)


def test_redirects_are_followed_and_a_proxy_is_told_the_broker() -> None:
    def owner(frame: Frame) -> bytes | None:
        if frame.command.type == Type.LOOKUP:
            assert frame.body.authoritative
            return lookup_answer(frame, brokerServiceUrl="pulsar://inside:6650", proxy_through_service_url=True)
        return ordinary(frame)

    with FakeBroker(owner) as second:

        def first(frame: Frame) -> bytes | None:
            if frame.command.type == Type.LOOKUP:
                assert frame.body.advertised_listener_name == "outside"
                redirect = wire.CommandLookupTopicResponse.Redirect
                return lookup_answer(frame, redirect, brokerServiceUrl=second.url, authoritative=True)
            return ordinary(frame)

        with FakeBroker(first) as broker:
            brokers = brokers_of(broker, listener_name="outside")
            link = brokers.owner(TOPIC)
            assert str(link.address) == f"127.0.0.1:{second.port} (proxy of inside:6650)"
            assert [frames[0].body.proxy_to_broker_url for frames in second.frames] == ["", "inside:6650"]
            brokers.close()


def test_the_broker_that_the_last_one_names_is_asked_without_a_lookup() -> None:
    lookups = []

    def serving(broker: list[FakeBroker], first_entry: int) -> Any:
        def answer(frame: Frame) -> bytes | None:
            kind = frame.command.type
            if kind == Type.LOOKUP:
                lookups.append(frame)
                return lookup_answer(frame, brokerServiceUrl=broker[0].url)
            if kind == Type.SUBSCRIBE:
                assert frame.body.start_message_id.entryId in (first_entry, NO_REQUEST)
                return encode(Type.SUCCESS, request_id=frame.body.request_id)
            if kind == Type.FLOW and frame.body.messagePermits:
                return message_of(frame.body.consumer_id, first_entry, make_entry(b"%d" % first_entry))
            return ordinary(frame)

        return answer

    one: list[FakeBroker] = []
    two: list[FakeBroker] = []
    with FakeBroker(serving(one, 0)) as first, FakeBroker(serving(two, 1)) as second:
        one.append(first)
        two.append(second)
        brokers = brokers_of(first)
        with EntryReader(brokers, TOPIC, EARLIEST) as reader:
            assert contents(read_count(reader, 1)) == [b"0"]
            first.send(
                encode(Type.CLOSE_CONSUMER, consumer_id=1, request_id=NO_REQUEST, assignedBrokerServiceUrl=second.url)
            )
            assert contents(read_count(reader, 1)) == [b"1"]
        assert len(lookups) == 1
        brokers.close()


def test_an_entry_that_does_not_have_its_checksum_ends_the_reading() -> None:
    good = make_entry(b"good")
    metadata = wire.BrokerEntryMetadata(index=3, broker_timestamp=1).SerializeToString()
    enveloped = struct.pack(">HI", 0x0E02, len(metadata)) + metadata + good
    damaged = good[:-1] + bytes([good[-1] ^ 1])

    def answer(frame: Frame) -> bytes | None:
        kind = frame.command.type
        if kind == Type.LOOKUP:
            return lookup_answer(frame, brokerServiceUrl=broker.url)
        if kind == Type.SUBSCRIBE:
            return encode(Type.SUCCESS, request_id=frame.body.request_id)
        if kind == Type.FLOW:
            return message_of(1, 0, enveloped)
        return ordinary(frame)

    with FakeBroker(answer) as broker:
        brokers = brokers_of(broker)
        reader = EntryReader(brokers, TOPIC, EARLIEST)
        # What the broker adds is passed over.
        assert contents(read_count(reader, 1)) == [b"good"]
        broker.send(message_of(1, 1, damaged))
        with pytest.raises(PulsarSourceError, match=rf"reading {TOPIC}: the entry 5:1 is damaged: CRC32-C"):
            read_count(reader, 1)
        brokers.close()


def test_a_peer_that_is_no_broker_is_named() -> None:
    with FakeBroker(lambda frame: b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker:
        brokers = brokers_of(broker, operation_timeout_seconds=5)
        with pytest.raises(LinkLost, match=rf"127\.0\.0\.1:{broker.port}: this is no frame of Pulsar's protocol"):
            brokers.partitions(TOPIC)
        brokers.close()


def test_a_peer_that_answers_nothing_is_given_up_in_time() -> None:
    with FakeBroker(lambda frame: b"") as broker:
        brokers = brokers_of(broker, connection_timeout_ms=200, operation_timeout_seconds=0.3)
        with pytest.raises(LinkLost, match=rf"connecting to 127\.0\.0\.1:{broker.port}: there was no answer in time"):
            brokers.partitions(TOPIC)
        brokers.close()
    with FakeBroker(lambda frame: CONNECTED if frame.command.type == Type.CONNECT else b"") as broker:
        # Long enough for the answer to CONNECT.
        brokers = brokers_of(broker, operation_timeout_seconds=5)
        with pytest.raises(
            NoAnswer, match=rf"asking for the partitions of {TOPIC}: 127\.0\.0\.1:{broker.port}: there was"
        ):
            brokers.partitions(TOPIC)
        brokers.close()


def test_a_time_of_any_length_may_be_waited_for_an_answer() -> None:
    # Java's largest int, as milliseconds, and the largest number that the options take.
    for seconds, ms in ((2_147_484, (1 << 31) - 1), (10**15, 10**18 - 1)):
        with FakeBroker(ordinary) as broker:
            brokers = brokers_of(broker, operation_timeout_seconds=seconds, connection_timeout_ms=ms)
            assert brokers.partitions(TOPIC) == 3
            brokers.close()


def test_an_error_that_passes_is_asked_again_and_one_that_does_not_is_told() -> None:
    asked = []

    def answer(frame: Frame) -> bytes | None:
        if frame.command.type == Type.CONNECT:
            return CONNECTED
        if frame.command.type == Type.PARTITIONED_METADATA and frame.body.topic == TOPIC:
            asked.append(frame)
            if len(asked) < 3:
                return encode(
                    Type.ERROR, request_id=frame.body.request_id, error=wire.ServiceNotReady, message="being unloaded"
                )
            return partitions_answer(frame, 7)
        if frame.command.type == Type.PARTITIONED_METADATA:
            return encode(
                Type.ERROR, request_id=frame.body.request_id, error=wire.AuthorizationError, message="not yours"
            )
        return b""

    with FakeBroker(answer) as broker:
        brokers = brokers_of(broker)
        assert brokers.partitions(TOPIC) == 7
        with pytest.raises(Refused, match="these credentials do not allow it: not yours") as error:
            brokers.partitions(TOPIC + "2")
        assert error.value.code == wire.AuthorizationError
        brokers.close()


def test_a_ping_is_answered_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker closes a connection on which it gets no answer in time."""
    monkeypatch.setattr("heliograph_spark.wire.brokers._LOOKED_AFTER_EVERY_S", 0.05)
    with FakeBroker(ordinary) as broker:
        brokers = brokers_of(broker)
        brokers.partitions(TOPIC)
        broker.send(encode(Type.PING))
        eventually(lambda: _kinds(broker).count(Type.PONG) == 1, what="the answer")
        brokers.close()


def _kinds(broker: FakeBroker) -> list[int]:
    return [frame.command.type for frame in broker.frames[0]]


def test_a_silent_peer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph_spark.wire.link._SILENT_FOR_S", 0.3)
    monkeypatch.setattr("heliograph_spark.wire.brokers._LOOKED_AFTER_EVERY_S", 0.05)
    with FakeBroker(ordinary) as broker:
        brokers = brokers_of(broker)
        brokers.partitions(TOPIC)
        link = brokers._service_link()
        eventually(lambda: link.lost, what="noticing that the peer is silent")
        assert _kinds(broker).count(Type.PING) >= 1
        # A new link serves the next question.
        assert brokers.partitions(TOPIC) == 3
        brokers.close()


def test_without_the_place_of_its_subscription_a_reader_of_the_latest_begins_after_the_last_entry() -> None:
    """Brokers before 2.8 do not say where the subscription is."""
    starts: list[tuple[int, int]] = []

    def answer(frame: Frame) -> bytes | None:
        kind = frame.command.type
        if kind == Type.LOOKUP:
            return lookup_answer(frame, brokerServiceUrl=broker.url)
        if kind == Type.SUBSCRIBE:
            starts.append((frame.body.start_message_id.ledgerId, frame.body.start_message_id.entryId))
            return encode(Type.SUCCESS, request_id=frame.body.request_id)
        if kind == Type.GET_LAST_MESSAGE_ID:
            last = wire.MessageIdData(ledgerId=5, entryId=8)
            return encode(Type.GET_LAST_MESSAGE_ID_RESPONSE, request_id=frame.body.request_id, last_message_id=last)
        if kind == Type.FLOW and len(starts) == 2:
            return message_of(frame.body.consumer_id, 8, make_entry(b"old")) + message_of(
                frame.body.consumer_id, 9, make_entry(b"new")
            )
        return ordinary(frame)

    with FakeBroker(answer) as broker:
        brokers = brokers_of(broker)
        with EntryReader(brokers, TOPIC, LATEST) as reader:
            assert reader.read(0.1) == []
            broker.send(encode(Type.CLOSE_CONSUMER, consumer_id=1, request_id=NO_REQUEST))
            # What a broker sends from before the place that was asked for is left out.
            assert contents(read_count(reader, 1)) == [b"new"]
        latest = ((1 << 63) - 1, (1 << 63) - 1)
        assert starts == [latest, (5, 9)]
        assert Start(5, 10) == reader._start
        brokers.close()
