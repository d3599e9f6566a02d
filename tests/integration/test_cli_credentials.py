"""The command line against a broker that is closed: every group of commands with a token, and what is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority, CertificateFiles
from tests.support.clients import fresh_name
from tests.support.command_line import CommandLine
from tests.support.interrupts import take_interrupts
from tests.support.polling import eventually
from tests.support.ran import Ran
from tests.support.tokens import CHECK_EVERY_S, Signer, TokenFile, ask

ADMIN = "admin"
ACCEPTED_TOKENS = 'heliograph_authentications_total{method="token",outcome="success"}'
#: A command of every group that talks to a broker; TOPIC, NAMESPACE, MANIFEST and COPY are those of the test.
COMMANDS = [
    "apply -f MANIFEST",
    "tenants list",
    "namespaces topics NAMESPACE",
    "namespaces get-retention NAMESPACE",
    "topics list NAMESPACE",
    "topics stats TOPIC",
    "topics get-message-ttl TOPIC",
    "topics peek-messages TOPIC -s s",
    "topics find-messages TOPIC -s s",
    "subscriptions get-message-ttl TOPIC -s s",
    "brokers healthcheck",
    "brokers version",
    "clusters list",
    "explain TOPIC",
    "auth can-i produce TOPIC --role admin",
    "produce TOPIC -m x",
    "consume TOPIC -s s --timeout 30",
    "backup -o COPY",
    "backup push file://COPY monday",
]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that only knows tokens, and checks for expired ones every few seconds."""
    settings = signer.settings(
        superusers=ADMIN,
        auth_refresh_check_s=str(CHECK_EVERY_S),
    )
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=settings) as running:
        yield running


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def encrypted(
    tmp_path_factory: pytest.TempPathFactory, signer: Signer, authority: Authority
) -> Iterator[BrokerProcess]:
    """A broker with TLS beside its plain ports, which knows tokens and certificates."""
    directory = tmp_path_factory.mktemp("encrypted")
    certificate, key = authority.issue(hosts=["127.0.0.1"]).write(directory)
    environment = {
        "HELIOGRAPH_AUTH": "token,tls",
        "HELIOGRAPH_TOKEN_SECRET_KEY": str(signer.path),
        "HELIOGRAPH_SUPERUSERS": ADMIN,
        "HELIOGRAPH_TLS_CERT": str(certificate),
        "HELIOGRAPH_TLS_KEY": str(key),
        "HELIOGRAPH_TLS_CLIENT_CA": str(authority.write(directory)),
    }
    with BrokerProcess(directory / "data", environment=environment) as running:
        yield running


@pytest.fixture
def token_file(tmp_path: Path, signer: Signer) -> Path:
    path = tmp_path / "admin.token"
    path.write_text(signer.token(ADMIN) + "\n")
    return path


@pytest.fixture
def topic(closed: BrokerProcess, signer: Signer) -> str:
    """A topic with one message and the subscription ``s``."""
    name = fresh_name()
    path = f"{closed.http_url}/admin/v2/persistent/public/default/{name}"
    assert ask(path, signer.token(ADMIN), "PUT").status == 204
    assert ask(f"{path}/subscription/s", signer.token(ADMIN), "PUT").status == 204
    return name


def addresses(closed: BrokerProcess) -> tuple[str, ...]:
    return "--http-url", closed.http_url, "--service-url", closed.service_url


def set_context(run: CommandLine, closed: BrokerProcess, *more: str | Path) -> None:
    assert run("context", "set", "closed", *addresses(closed), *more).code == 0


def filled(command: str, topic: str, directory: Path) -> list[str]:
    manifest = directory / "tenant.yaml"
    manifest.write_text("apiVersion: heliograph.dev/v1alpha1\nkind: Tenant\nmetadata: {name: acme}\n")
    values = {"TOPIC": topic, "NAMESPACE": "public/default", "MANIFEST": str(manifest), "COPY": str(directory / "copy")}
    for name, value in values.items():
        command = command.replace(name, value)
    return command.split()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_group_of_commands_takes_the_token_of_a_context(
    closed: BrokerProcess, run: CommandLine, topic: str, token_file: Path, tmp_path: Path, command: str
) -> None:
    if "consume" in command or "peek" in command:
        produced = run("produce", topic, "-m", "x", "--service-url", closed.service_url, "--token-file", token_file)
        assert produced.code == 0, produced.err
    arguments = filled(command, topic, tmp_path)
    set_context(run, closed)
    refused = run("--context", "closed", *arguments)
    assert refused.code == 1
    assert "requires credentials, and this command has none; " in refused.err
    assert "give a token with --token-file FILE or HELIOGRAPH_TOKEN_FILE" in refused.err
    set_context(run, closed, "--token-file", token_file)
    run("context", "use", "closed")
    done = run(*arguments)
    assert done.code == 0, done.err


def by_file(token: str, path: Path, _: pytest.MonkeyPatch) -> list[str]:
    path.write_text(token)
    return ["--token-file", str(path)]


def by_variable(token: str, _: Path, environment: pytest.MonkeyPatch) -> list[str]:
    environment.setenv("HELIOGRAPH_TOKEN", token)
    return []


def by_file_variable(token: str, path: Path, environment: pytest.MonkeyPatch) -> list[str]:
    path.write_text(token)
    environment.setenv("HELIOGRAPH_TOKEN_FILE", str(path))
    return []


@pytest.mark.parametrize("give", [by_file, by_variable, by_file_variable])
@pytest.mark.parametrize("command", ["topics list public/default", "produce TOPIC -m x"])
def test_a_token_comes_from_a_file_or_the_environment(
    closed: BrokerProcess,
    run: CommandLine,
    signer: Signer,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    give: Callable[[str, Path, pytest.MonkeyPatch], list[str]],
    command: str,
) -> None:
    monkeypatch.setenv("HELIOGRAPH_HTTP_URL", closed.http_url)
    monkeypatch.setenv("HELIOGRAPH_SERVICE_URL", closed.service_url)
    arguments = filled(command, topic, tmp_path)
    options = give(signer.token(ADMIN), tmp_path / "token", monkeypatch)
    for placed in ([*options, *arguments], [*arguments, *options]):
        ran = run(*placed)
        assert ran.code == 0, ran.err


@pytest.mark.parametrize("command", ["topics list public/default", "consume TOPIC -s s", "produce TOPIC -m x"])
def test_a_token_that_is_refused_is_named_with_the_reason_and_never_shown(
    closed: BrokerProcess, run: CommandLine, signer: Signer, topic: str, tmp_path: Path, command: str
) -> None:
    path = tmp_path / "token"
    set_context(run, closed, "--token-file", path)
    arguments = ["--context", "closed", *filled(command, topic, tmp_path)]

    def refused() -> Ran:
        ran = run(*arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        return ran

    assert f"cannot read the token file {path}: No such file or directory" in refused().err
    expired = signer.token(ADMIN, expires_in_s=-60)
    path.write_text(expired)
    text = refused().err
    assert f"does not accept the token in {path}: the token expired at" in text
    assert expired not in text
    path.write_text("x.y.z")
    assert f"does not accept the token in {path}: " in refused().err


def test_a_role_without_rights_is_given_the_reason_of_the_broker(
    closed: BrokerProcess, run: CommandLine, signer: Signer, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(signer.token("billing"))
    set_context(run, closed, "--token-file", path)
    for command, reason in (
        ("topics stats TOPIC", "no grant of produce or consume for role billing on"),
        ("produce TOPIC -m x", "no grant of produce for role billing on"),
        ("consume TOPIC -s s", "no grant of consume for role billing on"),
    ):
        ran = run("--context", "closed", *filled(command, topic, tmp_path))
        assert ran.code == 1
        assert reason in ran.err, ran.err


def test_the_token_of_the_current_context_does_not_go_to_another_address(
    closed: BrokerProcess, run: CommandLine, token_file: Path
) -> None:
    run("context", "set", "prod", "--http-url", "http://broker.example:8080", "--token-file", token_file)
    run("context", "use", "prod")
    elsewhere = run("topics", "list", "--http-url", closed.http_url)
    assert "requires credentials" in elsewhere.err
    named = run("--context", "prod", "topics", "list", "--http-url", closed.http_url)
    assert named.code == 0, named.err


def test_lookups_by_http_take_the_token(
    closed: BrokerProcess, run: CommandLine, topic: str, token_file: Path, tmp_path: Path
) -> None:
    arguments = ["produce", topic, "-m", "x", "--service-url", closed.http_url]
    assert "requires credentials" in run(*arguments).err
    done = run(*arguments, "--token-file", token_file)
    assert done.code == 0, done.err


def test_consume_goes_on_after_its_token_file_is_replaced(
    closed: BrokerProcess, run: CommandLine, signer: Signer, topic: str, token_file: Path, tmp_path: Path
) -> None:
    tokens = TokenFile(tmp_path / "renewed.token", signer, ADMIN)
    path = f"{closed.http_url}/admin/v2/persistent/public/default/{topic}/stats"
    asked = 0

    def consumers() -> list[dict[str, object]]:
        found: list[dict[str, object]] = ask(path, signer.token(ADMIN)).body["subscriptions"]["s"]["consumers"]
        return found

    def accepted_tokens() -> float:
        """Return how many tokens the broker has accepted but for those of this function."""
        nonlocal asked
        asked += 1
        lines = ask(f"{closed.http_url}/metrics", signer.token(ADMIN)).body.splitlines()
        (line,) = (each for each in lines if each.startswith(ACCEPTED_TOKENS))
        return float(line.rpartition(" ")[2]) - asked

    with (
        tokens.renewed(),
        subprocess.Popen(
            [
                *(sys.executable, "-m", "heliograph_broker", "consume", topic, "-s", "s", "-n", "0"),
                *("--token-file", str(tokens.path), "--service-url", closed.service_url),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=take_interrupts,
        ) as consumer,
    ):
        try:
            since = eventually(consumers)[0]["connectedSince"]
            before = accepted_tokens()
            # Nobody else connects: these are the answers to challenges on the open connection.
            eventually(lambda: accepted_tokens() >= before + 2, every_s=0.2, what="a token renewed twice")
            options = ["--service-url", closed.service_url, "--token-file", str(token_file)]
            assert run("produce", topic, "-m", "seen", *options).code == 0
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "seen\n"
            assert consumers()[0]["connectedSince"] == since
            consumer.send_signal(signal.SIGINT)
            _, errors = consumer.communicate(timeout=120)
            assert (consumer.returncode, errors) == (0, "")
        finally:
            # Does nothing to one that has ended; one that goes on must not be waited for.
            consumer.kill()


def with_tls(encrypted: BrokerProcess) -> tuple[str, ...]:
    return "--http-url", encrypted.https_url, "--service-url", encrypted.service_tls_url


def test_a_context_has_the_authority_and_the_certificate_of_tls(
    encrypted: BrokerProcess, run: CommandLine, authority: Authority, token_file: Path, tmp_path: Path
) -> None:
    shown: CertificateFiles = authority.issue(ADMIN).write(tmp_path, "client")
    topic = fresh_name()
    run("context", "set", "tls", *with_tls(encrypted), "--tls-ca", authority.write(tmp_path))
    run("context", "use", "tls")
    certificate = ("--client-cert", shown.certificate, "--client-key", shown.key)
    for credentials in (("--token-file", token_file), certificate):
        for command in (["topics", "list"], ["produce", topic, "-m", "x"], ["consume", topic, "-s", "s", "--earliest"]):
            done = run(*command, *credentials)
            assert done.code == 0, done.err


def test_mistakes_of_tls_are_answered_with_what_helps(
    encrypted: BrokerProcess, run: CommandLine, token_file: Path, authority: Authority, tmp_path: Path
) -> None:
    topic, known = fresh_name(), authority.write(tmp_path)
    other = Authority("other").write(tmp_path, "other")
    https, secure = encrypted.https_url, encrypted.service_tls_url
    own, another = (authority.issue(ADMIN).write(tmp_path, name) for name in ("own", "another"))
    mixed = ("--client-cert", own.certificate, "--client-key", another.key)
    plain = "this port does not speak TLS; begin the URL with"
    for address, more, advice in (
        (https, (), "name the authority's certificate with --tls-ca FILE or HELIOGRAPH_TLS_CA"),
        (secure, (), "name the authority's certificate with --tls-ca FILE or HELIOGRAPH_TLS_CA"),
        (https, ("--tls-ca", other), f"{other} does not have the authority of its certificate"),
        (secure, ("--tls-ca", other), f"{other} does not have the authority of its certificate"),
        (https.replace("127.0.0.1", "localhost"), ("--tls-ca", known), "its certificate is not for 'localhost'"),
        (secure.replace("127.0.0.1", "localhost"), ("--tls-ca", known), "its certificate is not for 'localhost'"),
        (encrypted.http_url.replace("http", "https"), (), f"{plain} http://"),
        (encrypted.service_url.replace("pulsar", "pulsar+ssl"), (), f"{plain} pulsar://"),
        (https.replace("https", "http"), (), "if this port expects TLS, begin the URL with https://"),
        (secure.replace("+ssl", ""), (), "if this port expects TLS, begin the URL with pulsar+ssl://"),
        (https, ("--tls-ca", known, *mixed), "heliograph: the client's certificate"),
        (secure, ("--tls-ca", known, *mixed), "heliograph: the client's certificate"),
        (secure, ("--tls-ca", token_file), "the certificates cannot be read: none is in PEM"),
        (https, ("--tls-ca", token_file), "the certificates cannot be read: none is in PEM"),
    ):
        if address.startswith("http"):
            command = ["topics", "list", "--http-url", address]
        else:
            command = ["produce", topic, "-m", "x", "--service-url", address]
        ran = run(*command, *more, "--token-file", token_file)
        assert (ran.code, ran.err.count("\n")) == (1, 1), ran.err
        assert advice in ran.err


def test_a_certificate_over_a_port_without_tls_is_answered_with_the_scheme(
    encrypted: BrokerProcess, run: CommandLine, authority: Authority, tmp_path: Path
) -> None:
    shown: CertificateFiles = authority.issue(ADMIN).write(tmp_path, "client")
    certificate = ("--client-cert", shown.certificate, "--client-key", shown.key)
    for command, scheme in (
        (["topics", "list", "--http-url", encrypted.http_url], "https://"),
        (["produce", fresh_name(), "-m", "x", "--service-url", encrypted.service_url], "pulsar+ssl://"),
    ):
        ran = run(*command, *certificate)
        assert ran.code == 1
        assert f"the certificate {shown.certificate} is shown by TLS only; begin the URL with {scheme}" in ran.err


def test_a_command_without_credentials_is_told_those_that_the_broker_takes(
    encrypted: BrokerProcess, run: CommandLine
) -> None:
    for command in (
        ["topics", "list", "--http-url", encrypted.http_url],
        ["produce", fresh_name(), "-m", "x", "--service-url", encrypted.service_url],
    ):
        ran = run(*command)
        assert "give a token with --token-file FILE or HELIOGRAPH_TOKEN_FILE or a certificate with" in ran.err
