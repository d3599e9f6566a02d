"""TLS of both ports: official clients, certificates of clients, reload under load, and peers that do not behave."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest
from cryptography import x509
from heliograph_api.admin.admin_client import AdminClient, AdminUnreachable
from heliograph_api.protocol import wire_pb2 as wire

from tests.support import java_client, java_tools
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, Certificate, CertificateFiles
from tests.support.clients import DEADLINE_MS, connect, ignore_receipt, publish
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.ports import free_ports
from tests.support.tls_broker import HANDSHAKE, TlsBroker, frames_of, until_end
from tests.support.tokens import ask
from tests.support.wire_client import Type, WireClient, encode

#: What it issues is trusted by nobody in these tests.
FOREIGN = Authority("foreign authority")
REFUSED_HANDSHAKE = 'heliograph_connections_cut_total{port="binary",reason="tls"}'
REFUSED = "heliograph_tls_files_refused"
PERF_WITHIN_S = 120.0
GUIDE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker with plain ports and with TLS."""
    with TlsBroker(tmp_path_factory.mktemp("tls")) as running:
        yield running


def exchanges(client: pulsar.Client, topic: str) -> None:
    """Publish and receive small messages and a large one; then close the client."""
    contents = [*(b"%d" % number for number in range(200)), bytes(4_000_000)]
    consumer = client.subscribe(topic, "s")
    publish(client, topic, contents)
    for expected in contents:
        message = consumer.receive(DEADLINE_MS)
        assert message.data() == expected
        consumer.acknowledge(message)
    client.close()


def identity(authority: Authority, directory: Path, **options: datetime) -> CertificateFiles:
    """Return the files of a client's certificate."""
    return authority.issue("client", hosts=(), **options).write(directory, "client")


# Official clients


def test_official_clients_connect_by_tls_while_others_connect_without(broker: TlsBroker, topic: str) -> None:
    exchanges(broker.connect(), topic)
    exchanges(broker.connect(broker.process.https_url), f"{topic}-https")
    exchanges(broker.connect(broker.process.service_url), f"{topic}-plain")


def test_without_plain_ports_everything_works_by_tls(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, "--tls-only") as broker:
        assert (broker.process.service_url, broker.process.http_url) == ("", "")
        # Which port was named, and which one takes effect instead.
        assert '"option": "--broker-port", "instead": "--broker-tls-port"' in broker.process.log_path.read_text()
        exchanges(broker.connect(), topic)
        exchanges(broker.connect(broker.process.https_url), f"{topic}-https")


def test_without_plain_ports_the_port_of_the_metrics_has_tls_too(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with TlsBroker(tmp_path, "--tls-only", environment={"HELIOGRAPH_METRICS_PORT": str(port)}) as broker:
        with pytest.raises(ConnectionError):
            ask(f"http://127.0.0.1:{port}/metrics")
        answer = ask(f"https://localhost:{port}/metrics", context=broker.context())
        assert answer.status == 200
        assert "heliograph_" in answer.body


async def test_the_admin_client_trusts_the_authority_that_is_named(broker: TlsBroker) -> None:
    url = broker.process.https_url
    async with AdminClient(url, trusted=broker.authority.pem.decode()) as client:
        state = await client.state()
        assert state.namespaces
        cluster = await client.request("GET", "/admin/v2/clusters/standalone")
    assert (cluster["serviceUrlTls"], cluster["brokerServiceUrlTls"]) == (url, broker.process.service_tls_url)
    async with AdminClient(url, trusted=FOREIGN.pem.decode()) as client:
        with pytest.raises(AdminUnreachable, match="certificate verify failed"):
            await client.broker_version()


def refuses(client: pulsar.Client, topic: str) -> bool:
    """Whether a client does not connect, in the two seconds that it has for each operation."""
    try:
        client.create_producer(topic)
    except pulsar.PulsarException:
        return True
    finally:
        client.close()
    return False


def test_a_client_refuses_a_broker_of_another_authority(broker: TlsBroker, topic: str, tmp_path: Path) -> None:
    foreign = str(FOREIGN.write(tmp_path))
    assert refuses(broker.connect(tls_trust_certs_file_path=foreign, operation_timeout_seconds=2), topic)


def test_a_client_refuses_a_certificate_for_another_host(tmp_path: Path, topic: str) -> None:
    broker = TlsBroker(tmp_path)
    broker.replace(broker.authority.issue(hosts=["elsewhere.example"]))
    with broker:
        assert refuses(broker.connect(operation_timeout_seconds=2), topic)
        assert not refuses(broker.connect(tls_validate_hostname=False), topic)


@pytest.mark.timeout(PERF_WITHIN_S + 60)
@pytest.mark.skipif(java_client.missing() is not None, reason=f"the Java client is not tested: {java_client.missing()}")
def test_the_java_client_connects_by_tls(broker: TlsBroker, topic: str, tmp_path: Path) -> None:
    settings = java_tools.write_client_conf(tmp_path, broker.process.https_url, broker.process.service_tls_url)
    with settings.open("a") as file:
        file.write(f"tlsTrustCertsFilePath={broker.trusted}\ntlsEnableHostnameVerification=true\n")
    command = [*java_client.PERF, str(settings), "produce", topic, "--num-messages", "20", "--rate", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PERF_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    client = broker.connect()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in range(20):
        reader.read_next(DEADLINE_MS)
    client.close()


# The guide


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    """In a directory of the test's own, and with the ports that its broker has."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## TLS\n")[2].partition("\n## ")[0]
    scripts = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    [program] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    begins, asks, issues = scripts
    made, _, started = begins.rpartition("heliograph standalone ")
    run_guide(["bash", "-euc", made + issues], tmp_path)
    arguments = [str(tmp_path / word) if word.endswith((".crt", ".key")) else word for word in started.split()]
    with BrokerProcess(
        tmp_path / "data", arguments=[*arguments, "--tls-client-ca", f"{tmp_path}/client-ca.crt"]
    ) as run:
        run_guide(["bash", "-euc", asks.replace("8443", run.https_url.rpartition(":")[2])], tmp_path)
        program = program.replace("6651", run.service_tls_url.rpartition(":")[2])
        run_guide([sys.executable, "-c", program], tmp_path)
        billing = pulsar.AuthenticationTLS(f"{tmp_path}/billing.crt", f"{tmp_path}/billing.key")
        options = {"tls_trust_certs_file_path": f"{tmp_path}/tls.crt", "tls_validate_hostname": True}
        client = connect(run.service_tls_url, authentication=billing, **options)
        assert client.create_reader("orders", pulsar.MessageId.earliest).read_next(DEADLINE_MS).data() == b"encrypted"
        client.close()


def run_guide(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# Lookups


def test_a_lookup_answers_with_both_addresses(broker: TlsBroker) -> None:
    with WireClient(broker.process.service_url) as client:
        answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic="persistent://public/default/t")
    urls = (broker.process.service_url, broker.process.service_tls_url)
    assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == urls


def test_listeners_have_addresses_with_tls(tmp_path: Path, topic: str) -> None:
    main, external = free_ports(2)
    url = f"pulsar+ssl://localhost:{external}"
    environment = {
        "HELIOGRAPH_ADVERTISED_LISTENERS": f"internal:pulsar://127.0.0.1:{main},external:{url}",
        "HELIOGRAPH_BIND_ADDRESSES": f"external:pulsar+ssl://*:{external}",
        "HELIOGRAPH_INSECURE": "true",
    }
    with TlsBroker(tmp_path, "--broker-port", str(main), environment=environment) as broker:
        exchanges(broker.connect(url), topic)
        with WireClient(broker.process.service_url) as client:
            for name, expected in (("", (f"pulsar://127.0.0.1:{main}", "")), ("external", ("", url))):
                answer = client.request(
                    Type.LOOKUP,
                    Type.LOOKUP_RESPONSE,
                    topic="persistent://public/default/t",
                    advertised_listener_name=name,
                )
                assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == expected


def greeting() -> bytes:
    """Return the first bytes of a client, which ask the broker for a signature."""
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def test_clients_go_on_and_new_ones_come_in_during_a_flood_of_handshakes(broker: TlsBroker, topic: str) -> None:
    address = urlsplit(broker.process.service_tls_url)
    begun, ended = [0], threading.Event()
    hello = greeting()

    def flood(source: str) -> None:
        """Begin handshakes as fast as it goes, and end none."""
        held: deque[socket.socket] = deque()
        while not ended.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((address.hostname, address.port), 10, (source, 0)))
                held[-1].sendall(hello)
                begun[0] += 1
            if len(held) > 200:
                held.popleft().close()
        for each in held:
            each.close()

    client = broker.connect()
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    attackers = [threading.Thread(target=flood, args=(source,)) for source in ("127.0.0.2", "127.0.0.3")]
    for attacker in attackers:
        attacker.start()
    try:
        eventually(lambda: handshakes(broker) > 20)
        for number in range(20):
            producer.send(b"%d" % number)
            assert consumer.receive(DEADLINE_MS).data() == b"%d" % number
            with broker.encrypted() as connection:
                connection.sendall(HANDSHAKE)
                assert next(frames_of(connection)).command.type == Type.CONNECTED
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    assert begun[0] > 20
    client.close()
    eventually(lambda: handshakes(broker) == 0)


def handshakes(broker: TlsBroker) -> float:
    """Return how many handshakes are under way or wait for their turn."""
    return sum(broker.metric(f'heliograph_tls_handshakes{{state="{state}"}}') for state in ("running", "waiting"))


# Certificates of clients


@pytest.fixture(scope="module")
def verifying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker to which clients need a certificate, on its ports with TLS."""
    directory = tmp_path_factory.mktemp("tls-clients")
    # Silent clients are left alone for 40 s, and certificates are checked every 5 s.
    environment = {"HELIOGRAPH_TLS_REQUIRE_CLIENT_CERTIFICATE": "true", "HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "20"}
    with TlsBroker(directory, "--tls-client-ca", str(directory / "ca.crt"), environment=environment) as running:
        yield running


def test_a_client_with_a_certificate_is_admitted(verifying: TlsBroker, topic: str, tmp_path: Path) -> None:
    certificate, key = identity(verifying.authority, tmp_path)
    authentication = pulsar.AuthenticationTLS(str(certificate), str(key))
    exchanges(verifying.connect(authentication=authentication), topic)


def is_refused(broker: TlsBroker, context: ssl.SSLContext, url: str = "") -> bool:
    """Whether the broker ends the connection of a client that can only be refused for its certificate."""
    try:
        with broker.encrypted(context, url=url) as connection:
            # With TLS 1.3, a client learns of it after its own part of the handshake.
            connection.sendall(HANDSHAKE)
            return until_end(connection) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("port", ["service_tls_url", "https_url"])
@pytest.mark.parametrize("kind", ["none", "foreign", "expired"])
def test_clients_without_a_valid_certificate_are_refused(
    verifying: TlsBroker, tmp_path: Path, kind: str, port: str
) -> None:
    authority = FOREIGN if kind == "foreign" else verifying.authority
    ends = datetime.now(UTC) + timedelta(days=-1 if kind == "expired" else 1)
    own = None if kind == "none" else identity(authority, tmp_path, ends=ends)
    assert is_refused(verifying, verifying.context(own), getattr(verifying.process, port))


def test_a_certificate_may_be_left_out_unless_it_is_required(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, "--tls-client-ca", str(tmp_path / "ca.crt")) as broker:
        exchanges(broker.connect(), topic)
        assert is_refused(broker, broker.context(identity(FOREIGN, tmp_path)))


def test_a_connection_ends_when_its_clients_certificate_expires(verifying: TlsBroker, tmp_path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(seconds=6)
    context = verifying.context(identity(verifying.authority, tmp_path, ends=ends))
    lasting = verifying.context(identity(verifying.authority, tmp_path / "lasting"))
    with verifying.encrypted(context) as connection, verifying.encrypted(lasting) as other:
        for each in (connection, other):
            each.sendall(HANDSHAKE)
        kinds = set()
        for frame in frames_of(connection):
            kinds.add(frame.command.type)
            connection.sendall(encode(Type.PONG))
        assert kinds <= {Type.CONNECTED, Type.PING}
        assert datetime.now(UTC) >= ends - timedelta(seconds=1)
        other.sendall(encode(Type.PING))
        assert any(frame.command.type == Type.PONG for frame in frames_of(other))
    assert "the client's certificate has expired" in verifying.process.log_tail()
    assert verifying.metric('heliograph_connections_cut_total{port="binary",reason="certificate"}') == 1


def test_a_request_on_an_open_connection_is_not_answered_when_its_clients_certificate_has_expired(
    verifying: TlsBroker, tmp_path: Path
) -> None:
    cut = 'heliograph_connections_cut_total{port="http",reason="certificate"}'
    ends = datetime.now(UTC) + timedelta(seconds=6)
    context = verifying.context(identity(verifying.authority, tmp_path, ends=ends))
    request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = verifying.metric(cut)
    with verifying.encrypted(context, url=verifying.process.https_url) as connection:

        def answers() -> bool:
            try:
                connection.sendall(request)
                return connection.recv(65536).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

        assert answers()
        # Each request is answered until the certificate ends, and none after that.
        eventually(lambda: not answers(), what="the end of the connection")
        assert datetime.now(UTC) >= ends - timedelta(seconds=1)
    assert verifying.metric(cut) == before + 1


def test_clients_of_an_authority_that_is_removed_are_disconnected_and_those_of_others_come_back(tmp_path: Path) -> None:
    old, new = Authority("old authority"), Authority("new authority")
    trusted = tmp_path / "clients.crt"
    trusted.write_bytes(old.pem)
    # Silent clients are left alone for 40 s, and certificates are checked every 5 s.
    environment = {"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "20"}
    with TlsBroker(tmp_path, "--tls-client-ca", str(trusted), environment=environment) as broker:
        contexts = [broker.context(identity(each, tmp_path / name)) for each, name in ((old, "old"), (new, "new"))]
        with (
            broker.encrypted(contexts[0]) as connection,
            broker.encrypted(contexts[0], url=broker.process.https_url) as http,
            broker.encrypted() as without,
        ):
            for each in (connection, without):
                each.sendall(HANDSHAKE)
            http.sendall(LIVE)
            assert http.recv(1000).split()[1] == b"200"
            trusted.write_bytes(old.pem + new.pem)
            eventually(lambda: not is_refused_at_once(broker, contexts[1]))
            # Nobody has lost anything yet.
            http.sendall(LIVE)
            assert http.recv(1000).split()[1] == b"200"
            trusted.write_bytes(new.pem)
            for frame in frames_of(connection):
                if frame.command.type == Type.PING:
                    connection.sendall(encode(Type.PONG))
            http.sendall(LIVE)
            assert until_end(http) == b""
            without.sendall(encode(Type.PING))
            assert any(frame.command.type == Type.PONG for frame in frames_of(without))
        assert is_refused(broker, contexts[0])
        assert not is_refused_at_once(broker, contexts[1])
        assert "an authority of clients' certificates was removed" in broker.process.log_path.read_text()


LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def is_refused_at_once(broker: TlsBroker, context: ssl.SSLContext) -> bool:
    """Whether a client is refused for its certificate, which would be answered otherwise."""
    try:
        with broker.encrypted(context, url=broker.process.https_url) as connection:
            connection.sendall(LIVE)
            return not connection.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return True


# Reload


def serial_at(broker: TlsBroker, url: str = "") -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    with broker.encrypted(url=url) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der).serial_number


def shows(broker: TlsBroker, serial: int) -> bool:
    return serial_at(broker) == serial


def has_failed(broker: TlsBroker, times: int) -> bool:
    return broker.metric("heliograph_tls_reload_failures_total") == times


def test_a_certificate_is_replaced_under_load_and_no_message_is_lost(tmp_path: Path, topic: str) -> None:
    # The connection from before answers no PING.
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "600"}) as broker:
        client = broker.connect()
        consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
        producer = client.create_producer(topic, block_if_queue_full=True)
        ending = threading.Event()
        sent = 0

        def send() -> None:
            nonlocal sent
            while not ending.is_set():
                producer.send_async(b"%d" % sent, ignore_receipt)
                sent += 1
            producer.flush()

        sender = threading.Thread(target=send)
        sender.start()
        received: list[bytes] = []
        try:
            with broker.encrypted() as before:
                before.sendall(HANDSHAKE)
                for _ in range(2):
                    renewed = broker.authority.issue()
                    broker.replace(renewed)
                    serial = renewed.parsed.serial_number
                    eventually(partial(shows, broker, serial), what="the new certificate")
                    assert serial_at(broker, broker.process.https_url) == serial
                    exchanges(broker.connect(), f"{topic}-{serial}")
                # A connection made before stays.
                before.sendall(encode(Type.PING))
                assert any(frame.command.type == Type.PONG for frame in frames_of(before))
        finally:
            ending.set()
            sender.join()
        assert sent > 1000
        while len(received) < sent:
            received.append(consumer.receive(DEADLINE_MS).data())
        assert received == [b"%d" % number for number in range(sent)]
        assert broker.metric("heliograph_tls_reloads_total") == 2
        expiry = 'heliograph_tls_certificate_expiry_timestamp_seconds{certificate="server"}'
        assert broker.metric(expiry) == renewed.expires_at_s
        client.close()


def test_files_that_cannot_be_used_leave_the_certificate_in_effect(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path) as broker:
        before = serial_at(broker)
        good = broker.authority.issue()
        for failures, broken in enumerate(
            (
                good._replace(key=broker.authority.issue().key),
                Certificate(b"garbage", b"garbage"),
                broker.authority.issue(ends=datetime.now(UTC) - timedelta(hours=1)),
            ),
            start=1,
        ):
            broker.replace(broken)
            eventually(
                partial(has_failed, broker, failures),
                what="a failure that is counted",
            )
            assert broker.metric(REFUSED) == 1
            assert serial_at(broker) == before
        log = broker.process.log_tail()
        for words in ("is not the one of the certificate in", "holds no certificates in PEM", "expired at"):
            assert words in log
        assert "PRIVATE KEY" not in log
        broker.replace(good)
        eventually(lambda: broker.metric(REFUSED) == 0, what="files that can be used")
        assert serial_at(broker) == good.parsed.serial_number
        exchanges(broker.connect(), topic)


def test_a_start_with_files_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    broker = TlsBroker(tmp_path)
    broker.replace(broker.authority.issue()._replace(key=FOREIGN.issue().key))
    with pytest.raises(AssertionError, match="is not the one of the certificate in"):
        broker.process.start()


# Peers that do not behave


@pytest.mark.parametrize("kind", ["TLS 1.1", "CBC", "no forward secrecy"])
def test_old_versions_and_weak_ciphers_are_refused(broker: TlsBroker, kind: str) -> None:
    context = broker.context()
    ciphers = {"TLS 1.1": "ALL", "CBC": "ECDHE-ECDSA-AES128-SHA256", "no forward secrecy": "AES128-GCM-SHA256"}
    context.set_ciphers(f"{ciphers[kind]}:@SECLEVEL=0")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if kind == "TLS 1.1":
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    before = broker.metric(REFUSED_HANDSHAKE)
    with pytest.raises((ssl.SSLError, ConnectionError)), broker.encrypted(context):
        pass
    eventually(lambda: broker.metric(REFUSED_HANDSHAKE) == before + 1, what="a refusal that is counted")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_current_versions_work(broker: TlsBroker, version: ssl.TLSVersion) -> None:
    context = broker.context()
    context.minimum_version = context.maximum_version = version
    with broker.encrypted(context) as connection:
        assert connection.version() == version.name.replace("v1_", "v1.")
        assert connection.compression() is None
        connection.sendall(HANDSHAKE)
        assert next(frames_of(connection)).command.type == Type.CONNECTED


@pytest.mark.parametrize("port", ["service_tls_url", "https_url"])
def test_bytes_that_are_no_tls_end_the_connection(broker: TlsBroker, port: str) -> None:
    with broker.raw(getattr(broker.process, port)) as connection:
        connection.sendall(HANDSHAKE + b"GET / HTTP/1.1\r\n\r\n")
        # At most an alert of TLS.
        assert len(until_end(connection)) < 10


def begin_handshakes(broker: TlsBroker, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Return connections that send the beginning of a ClientHello and nothing more."""
    silent = [stack.enter_context(broker.raw()) for _ in range(count)]
    for each in silent:
        # The broker may have cut it.
        with contextlib.suppress(OSError):
            each.sendall(b"\x16\x03\x01\x02\x00\x01")
    return silent


CONNECTIONS = 'heliograph_connections{port="binary"}'


def test_a_handshake_that_does_not_go_on_is_cut(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "2"}) as broker:
        with contextlib.ExitStack() as stack:
            assert [until_end(each) for each in begin_handshakes(broker, stack, 20)] == [b""] * 20
        cut = 'heliograph_connections_cut_total{port="binary",reason="handshake"}'
        eventually(lambda: broker.metric(cut) == 20, what="the connections that are cut")
        eventually(lambda: broker.metric(CONNECTIONS) == 0, what="the end of the connections")
        exchanges(broker.connect(), topic)


def test_the_limit_of_connections_counts_handshakes(tmp_path: Path, topic: str) -> None:
    # None of them is cut meanwhile, however long it takes to begin them.
    environment = {"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "600", "HELIOGRAPH_MAX_CONNECTIONS": "20"}
    with TlsBroker(tmp_path, environment=environment) as broker:
        with contextlib.ExitStack() as stack:
            begin_handshakes(broker, stack, 20)
            eventually(lambda: broker.metric(CONNECTIONS) == 20, what="the connections")
            with broker.raw() as refused:
                assert until_end(refused) == b""
            assert broker.metric('heliograph_connections_refused_total{port="binary",limit="total"}') == 1
        eventually(lambda: broker.metric(CONNECTIONS) == 0, what="the end of the connections")
        exchanges(broker.connect(), topic)


def test_a_client_that_connects_by_tls_and_says_nothing_is_cut(tmp_path: Path) -> None:
    # Long enough for the handshake of a client in a process that stands still for a while.
    with TlsBroker(tmp_path, environment={"HELIOGRAPH_HANDSHAKE_TIMEOUT_S": "5"}) as broker:
        urls = (broker.process.service_tls_url, broker.process.https_url)
        with broker.encrypted(url=urls[0]) as binary, broker.encrypted(url=urls[1]) as http:
            assert [until_end(each) for each in (binary, http)] == [b"", b""]


def test_a_malformed_frame_is_answered_and_ends_the_connection(broker: TlsBroker) -> None:
    with broker.encrypted() as connection:
        connection.sendall(HANDSHAKE + struct.pack(">II", 10, 2000) + bytes(6))
        answers = list(frames_of(connection))
    assert [frame.command.type for frame in answers] == [Type.CONNECTED, Type.ERROR]
    assert "malformed frame" in answers[1].body.message


def test_answers_that_nobody_reads_stop_the_reading_until_they_are_read(tmp_path: Path) -> None:
    """1,000 requests for a list of 30 KB: the broker reads on when the client does, and no answer is missing."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(TlsBroker(tmp_path, environment={"HELIOGRAPH_KEEP_ALIVE_INTERVAL_S": "600"}))
        with WireClient(broker.process.service_url) as client:
            for number in range(300):
                client.producer(f"{'one-topic-of-many-' * 4}{number:03}")
            with broker.encrypted() as connection:
                request = encode(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1)
                connection.sendall(HANDSHAKE + request * 1000)
                held = "heliograph_connection_memory_bytes"
                eventually(lambda: broker.metric(held) > 2_000_000, what="answers that wait")
                client.fence()
                assert broker.metric(held) < 5_000_000
                answers = frames_of(connection)
                assert next(answers).command.type == Type.CONNECTED
                for _ in range(1000):
                    assert len(next(answers).body.topics) == 300


def test_messages_that_are_not_read_wait_and_arrive(broker: TlsBroker, topic: str) -> None:
    """40 MB for a client that reads nothing at first: dispatch pauses, and everything arrives in the end."""
    contents = [bytes(4_000_000)] * 10
    client = broker.connect()
    publish(client, topic, contents)
    client.close()
    with broker.encrypted() as connection:
        connection.sendall(
            HANDSHAKE
            + encode(
                Type.SUBSCRIBE,
                topic=f"persistent://public/default/{topic}",
                subscription="s",
                subType=wire.CommandSubscribe.Exclusive,
                consumer_id=1,
                request_id=1,
                initialPosition=wire.CommandSubscribe.Earliest,
            )
            + encode(Type.FLOW, consumer_id=1, messagePermits=100)
        )
        eventually(lambda: broker.metric("heliograph_connection_memory_bytes") > 1_000_000, what="messages that wait")
        assert broker.metric("heliograph_connection_memory_bytes") < 3 * 5_000_000
        messages = 0
        for frame in frames_of(connection):
            messages += frame.command.type == Type.MESSAGE
            if messages == len(contents):
                break


def test_a_large_frame_arrives_in_pieces(broker: TlsBroker, topic: str) -> None:
    entry = make_entry(os.urandom(5_000_000))
    with broker.encrypted() as connection:
        connection.sendall(
            HANDSHAKE + encode(Type.PRODUCER, topic=f"persistent://public/default/{topic}", producer_id=1, request_id=1)
        )
        answers = frames_of(connection)
        assert [next(answers).command.type for _ in range(2)] == [Type.CONNECTED, Type.PRODUCER_SUCCESS]
        data = encode(Type.SEND, entry, producer_id=1, sequence_id=0)
        for at in range(0, len(data), 100_001):
            connection.sendall(data[at : at + 100_001])
        assert next(answers).command.type == Type.SEND_RECEIPT
