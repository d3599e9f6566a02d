"""Floods of false credentials and slow clients of HTTPS, while clients that are known go on."""

from __future__ import annotations

import base64
import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from heliograph_broker.security.authentication.basic import MAX_WAITING
from heliograph_broker.security.authentication.issuer_keys import PAUSE_S

from tests.support.clients import fresh_name
from tests.support.entries import make_entry
from tests.support.oidc_issuer import AUDIENCE, OidcIssuer
from tests.support.passwords import write_users
from tests.support.polling import eventually
from tests.support.tls_broker import TlsBroker, until_end
from tests.support.tokens import Signer, ask
from tests.support.wire_client import ConnectionEndedError, Type, WireClient, payload_of

ADMIN = "admin"
PASSWORD = "what only the administrator knows"
WRONG = "the user or the password is wrong"
MESSAGES = 20
BINARY_CONNECTIONS = 'heliograph_connections{port="binary"} '
SLOW = 20


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcIssuer]:
    with OidcIssuer() as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer, issuer: OidcIssuer) -> Iterator[TlsBroker]:
    """A broker with and without TLS, whose passwords take some time to check."""
    directory = tmp_path_factory.mktemp("flooded")
    settings = signer.settings(
        auth="token,oidc,basic",
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        basic_file=str(write_users(directory / "users", {ADMIN: PASSWORD}, rounds=9)),
        superusers=ADMIN,
        handshake_timeout_s="60",
    )
    with TlsBroker(directory, environment=settings) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[TlsBroker]:
    """A broker that cuts clients after a few seconds."""
    settings = signer.settings(superusers=ADMIN, handshake_timeout_s="5")
    with TlsBroker(tmp_path_factory.mktemp("impatient"), environment=settings) as running:
        yield running


def connected(broker: TlsBroker, method: str, data: bytes) -> WireClient:
    """Connect with credentials; the answer is not read yet."""
    client = WireClient(broker.process.service_url, connect=False)
    client.send(Type.CONNECT, client_version="test", protocol_version=21, auth_method_name=method, auth_data=data)
    return client


def behave(broker: TlsBroker, method: str, data: bytes) -> None:
    """Come in, publish and receive, and ask by HTTP: each answer has a deadline."""
    topic = f"persistent://public/default/{fresh_name()}"
    with connected(broker, method, data) as client:
        client.expect(Type.CONNECTED)
        consumer = client.subscribe(topic)
        client.flow(consumer, MESSAGES)
        producer = client.producer(topic)
        for number in range(MESSAGES):
            client.publish(producer, make_entry(b"%d" % number), sequence_id=number)
            assert payload_of(client.expect(Type.MESSAGE)) == b"%d" % number
    assert ask(f"{broker.process.http_url}/health/live").status == 200


def was_refused(client: WireClient, words: str) -> bool:
    """Whether a client has been refused with these words; one that waits has not."""
    with contextlib.suppress(TimeoutError, ConnectionEndedError):
        return words in client.read_frame(0).body.message
    return False


def failures(broker: TlsBroker, token: str, method: str) -> float:
    text = ask(f"{broker.process.http_url}/metrics", token).body
    sample = f'heliograph_authentications_total{{method="{method}",outcome="failure"}} '
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample)), 0)


def test_wrong_passwords_wait_for_each_other_and_for_nobody_else(closed: TlsBroker, signer: Signer) -> None:
    user = f"{ADMIN}:{PASSWORD}".encode()
    behave(closed, "basic", user)
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(connected(closed, "basic", f"{ADMIN}:guess {number}".encode()))
            for number in range(4 * MAX_WAITING)
        ]
        # Those that find no place are refused at once.
        eventually(lambda: failures(closed, signer.token(ADMIN), "basic") > MAX_WAITING)
        words = "too many passwords wait to be checked"
        eventually(lambda: any(was_refused(client, words) for client in clients), what="a refusal for want of a place")
        behave(closed, "token", signer.token(ADMIN).encode())
        # A password that was right before is known without a hash.
        behave(closed, "basic", user)
    # Those who left make room.
    url, other = f"{closed.process.http_url}/metrics", base64.b64encode(b"nobody:x").decode()
    eventually(lambda: ask(url, Authorization=f"Basic {other}").body == {"reason": WRONG})


def test_passwords_of_clients_that_have_left_are_not_checked(tmp_path: Path, signer: Signer) -> None:
    users = write_users(tmp_path / "users", {ADMIN: PASSWORD}, rounds=12)
    settings = signer.settings(auth="token,basic", basic_file=str(users), superusers=ADMIN, handshake_timeout_s="60")
    with TlsBroker(tmp_path, environment=settings) as broker:
        url, token = f"{broker.process.http_url}/metrics", signer.token(ADMIN)

        def connections() -> int:
            text = ask(url, token).body
            return next(int(each.split()[-1]) for each in text.splitlines() if each.startswith(BINARY_CONNECTIONS))

        with contextlib.ExitStack() as stack:
            for number in range(MAX_WAITING - 1):
                stack.enter_context(connected(broker, "basic", f"{ADMIN}:guess {number}".encode()))
            # All have come; the first of them may have been refused already.
            eventually(lambda: connections() + failures(broker, token, "basic") == MAX_WAITING - 1)
        eventually(lambda: connections() == 0)
        # Passwords are checked one after the other, so that the others would have been checked before this one.
        guess = base64.b64encode(f"{ADMIN}:another guess".encode()).decode()
        assert ask(url, Authorization=f"Basic {guess}").body == {"reason": WRONG}
        assert failures(broker, token, "basic") < MAX_WAITING - 1


def test_commands_that_come_while_a_password_is_checked_are_answered_afterwards(tmp_path: Path, signer: Signer) -> None:
    users = write_users(tmp_path / "users", {ADMIN: PASSWORD}, rounds=12)
    settings = signer.settings(auth="token,basic", basic_file=str(users), superusers=ADMIN)
    with (
        TlsBroker(tmp_path, environment=settings) as broker,
        connected(broker, "basic", f"{ADMIN}:{PASSWORD}".encode()) as client,
    ):
        for _ in range(200):
            client.send(Type.PING)
        client.expect(Type.CONNECTED)
        for _ in range(200):
            client.expect(Type.PONG)


@contextlib.contextmanager
def flood(attack: Callable[[int], None]) -> Iterator[Callable[[], int]]:
    """Call ``attack`` with one number after the other, by four threads; yields how often it has returned."""
    ended, numbers, done = threading.Event(), itertools.count(), [0] * 4

    def go_on(thread: int) -> None:
        while not ended.is_set():
            attack(next(numbers))
            done[thread] += 1

    threads = [threading.Thread(target=go_on, args=(thread,)) for thread in range(len(done))]
    for thread in threads:
        thread.start()
    try:
        yield lambda: sum(done)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_tokens_of_unknown_keys_cause_few_requests_to_the_issuer(closed: TlsBroker, issuer: OidcIssuer) -> None:
    behave(closed, "token", issuer.token(ADMIN))
    fetched, began = issuer.requests["/keys"], time.monotonic()

    def attack(number: int) -> None:
        token = issuer.token(ADMIN, headers={"kid": f"unknown {number}"})
        if number % 2:
            assert ask(f"{closed.process.http_url}/metrics", token.decode()).status == 401
            return
        with connected(closed, "token", token) as client:
            assert "not signed by a key" in client.expect(Type.ERROR).body.message

    with flood(attack) as done:
        eventually(lambda: done() > 50)
        behave(closed, "token", issuer.token(ADMIN))
        before = done()
        eventually(lambda: done() > before)
    assert issuer.requests["/keys"] - fetched <= (time.monotonic() - began) / PAUSE_S + 1


@contextlib.contextmanager
def slow_clients(broker: TlsBroker, sent: bytes, rest: bytes) -> Iterator[list[ssl.SSLSocket]]:
    """Connect by TLS, send the beginning of a request, and from then on a byte of ``rest`` at a time."""
    ended = threading.Event()
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(SLOW):
            clients.append(stack.enter_context(broker.encrypted(url=broker.process.https_url)))
            # The broker may be quicker to cut it.
            with contextlib.suppress(OSError):
                clients[-1].sendall(sent)

        def trickle() -> None:
            for position in itertools.count():
                for client in clients:
                    with contextlib.suppress(OSError):
                        client.send(rest[position % len(rest)].to_bytes())
                if ended.wait(0.05):
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            yield clients
        finally:
            ended.set()
            thread.join()


def cut(broker: TlsBroker, token: str) -> float:
    text = ask(f"{broker.process.http_url}/metrics", token).body
    sample = 'heliograph_connections_cut_total{port="http",reason="handshake"} '
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample))


def test_heads_of_requests_byte_by_byte_are_cut(impatient: TlsBroker, signer: Signer) -> None:
    token = signer.token(ADMIN)
    before = cut(impatient, token)
    with slow_clients(impatient, b"GET /health/live HTTP/1.1\r\n", b"A: b\r\n") as clients:
        behave(impatient, "token", token.encode())
        assert [until_end(client) for client in clients] == [b""] * SLOW
    assert cut(impatient, token) == before + SLOW


POST = b"POST /admin/v2/clusters/new HTTP/1.1\r\nHost: x\r\n%sContent-Length: 1000000\r\n\r\n"


def test_bodies_of_unknown_clients_byte_by_byte_are_not_waited_for(closed: TlsBroker, signer: Signer) -> None:
    with slow_clients(closed, POST % b"", b"x") as clients:
        behave(closed, "token", signer.token(ADMIN).encode())
        for client in clients:
            assert until_end(client).split()[1] == b"401"


def test_bodies_byte_by_byte_of_clients_that_may_send_them_hold_up_nobody(closed: TlsBroker, signer: Signer) -> None:
    token = signer.token(ADMIN)
    with slow_clients(closed, POST % f"Authorization: Bearer {token}\r\n".encode(), b"x"):
        behave(closed, "token", token.encode())
        assert ask(f"{closed.process.http_url}/admin/v2/clusters", token).status == 200
    # All of them have left by now, which is nothing to search the broker for.
    eventually(lambda: closed.process.log_path.read_text().count('"path": "/admin/v2/clusters/new"') >= SLOW)
    log = closed.process.log_path.read_text()
    assert "Traceback" not in log
    assert 0 < log.count("client left during its request") < SLOW
