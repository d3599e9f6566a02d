"""Credentials and TLS: a query or job without valid ones ends with an error that says so, and nothing half done.

The broker is a Heliograph that is closed and has no port without TLS. With ``HELIOGRAPH_SPARK_CLOSED=pulsar`` it is an
Apache Pulsar with tokens, where one has been fetched: ``scripts/java-tools standalone``.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pulsar
import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.replay import ReplayOptions, replay
from heliograph_spark.jobs.usage import UsageOptions, usage
from heliograph_spark.run.archived import read_archive
from heliograph_spark.run.session import Broker, reason
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect, fresh_name, publish
from tests.support.closed_broker import PASSWORD, ROLE, ClosedBroker, shown
from tests.support.oidc_issuer import AUDIENCE
from tests.support.ports import free_ports
from tests.support.real_pulsar import missing, real_pulsar

from .conftest import COMMAND

PLUGIN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
#: The wording of errors: by the broker's binary port, and by its REST API.
REFUSED = re.compile(r"the credentials were refused|was refused with 401 \w+ \(pulsar\.client\.authPluginClassName")

ON_PULSAR = os.environ.get("HELIOGRAPH_SPARK_CLOSED") == "pulsar"
TRUSTED = "pulsar.client.tlsTrustCertsFilePath"

pytestmark = pytest.mark.skipif(ON_PULSAR and missing() is not None, reason=str(missing()))


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of this machine, signed by itself, and its key."""
    made, key = directory / f"{name}.pem", directory / f"{name}.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True)
    return made, key


@dataclass(frozen=True)
class Guarded:
    """A broker that lets nobody in without a token; ``directory`` holds its secrets and certificates.

    ``reached_by`` are the options with which the data source reaches it at all.
    """

    service_url: str
    tls_url: str
    http_url: str
    directory: Path
    reached_by: dict[str, str] = field(default_factory=dict)

    def token(self, role: str, *, secret: bytes | None = None, expires_in_s: int = 3600) -> str:
        """A token of this role, signed with the broker's own secret or with another one."""

        def encoded(part: bytes) -> bytes:
            return base64.urlsafe_b64encode(part).rstrip(b"=")

        claims = {"sub": role, "exp": int(time.time()) + expires_in_s}
        signed = encoded(b'{"alg":"HS256"}') + b"." + encoded(json.dumps(claims).encode())
        key = (self.directory / "secret").read_bytes() if secret is None else secret
        return (signed + b"." + encoded(hmac.new(key, signed, hashlib.sha256).digest())).decode()

    def options(self, credentials: str) -> dict[str, str]:
        """The data source's options for ``right``, ``wrong``, ``expired``, ``none`` or ``nobody``, who may nothing."""
        if credentials == "none":
            return self.reached_by
        given = {
            "right": (self.directory / "token").read_text(),
            "wrong": self.token("admin", secret=b"x" * 32),
            "expired": self.token("admin", expires_in_s=-60),
            "nobody": self.token("nobody"),
        }
        shown = {"pulsar.client.authPluginClassName": PLUGIN, "pulsar.client.authParams": f"token:{given[credentials]}"}
        return self.reached_by | shown

    def broker(self, credentials: str) -> Broker:
        return Broker(self.service_url, self.http_url, self.options(credentials))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("pulsar")
    made, key = certificate(directory, "own")
    certificate(directory, "other")
    with guarded_pulsar(directory, made, key) if ON_PULSAR else guarded_heliograph(directory, made, key) as running:
        yield running


@contextmanager
def guarded_pulsar(directory: Path, made: Path, key: Path) -> Iterator[Guarded]:
    (tls,) = free_ports(1)
    settings = [f"brokerServicePortTls={tls}", f"tlsCertificateFilePath={made}", f"tlsKeyFilePath={key}"]
    with real_pulsar(directory, *settings, tokens=True) as running:
        yield Guarded(running.service_url, f"pulsar+ssl://127.0.0.1:{tls}", running.http_url, directory)


@contextmanager
def guarded_heliograph(directory: Path, made: Path, key: Path) -> Iterator[Guarded]:
    secret = directory / "secret"
    secret.write_bytes(os.urandom(32))
    arguments = ["--auth", "token", "--token-secret-key", str(secret), "--superuser", "admin"]
    tls = ["--tls-only", "--tls-cert", str(made), "--tls-key", str(key)]
    with BrokerProcess(directory / "data", arguments=[*arguments, *tls]) as running:
        url = running.service_tls_url
        guarded = Guarded(url, url, running.https_url, directory, {TRUSTED: str(made)})
        (directory / "token").write_text(guarded.token("admin"))
        yield guarded


@pytest.fixture
def admin(guarded: Guarded) -> Iterator[pulsar.Client]:
    """The official client with the right token."""
    token = (guarded.directory / "token").read_text()
    trusted = str(guarded.directory / "own.pem")
    client = connect(
        guarded.service_url, authentication=pulsar.AuthenticationToken(token), tls_trust_certs_file_path=trusted
    )
    yield client
    client.close()


def contents(client: pulsar.Client, topic: str) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(bytes(reader.read_next(15_000).data()))
    reader.close()
    return found


def archived(spark: SparkSession, path: Path, topic: str) -> list[bytes]:
    name = f"persistent://public/default/{topic}"
    return sorted(bytes(row["value"]) for row in read_archive(spark, str(path), name).select("value").collect())


def files(directory: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in directory.rglob("*") if each.is_file()}


def read(spark: SparkSession, options: dict[str, str]) -> list[bytes]:
    return sorted(bytes(row["value"]) for row in spark.read.format("pulsar").options(**options).load().collect())


def write(spark: SparkSession, options: dict[str, str], content: bytes) -> None:
    rows = spark.createDataFrame([(bytearray(content),)], "value binary")
    rows.write.format("pulsar").options(**options).mode("append").save()


def follow(spark: SparkSession, options: dict[str, str], path: Path) -> None:
    """A stream of the topic into files, up to its end."""
    rows = spark.readStream.format("pulsar").options(**options).option("startingOffsets", "earliest").load()
    query = rows.writeStream.format("parquet").option("path", str(path / "rows"))
    query = query.option("checkpointLocation", str(path / "state")).trigger(availableNow=True)
    query.start().awaitTermination()


def run_archive(spark: SparkSession, broker: Broker, topic: str, path: Path) -> int:
    done = archive(spark, ArchiveOptions(broker, str(path), (topic,)))
    assert done.error is None, done.error
    return done.rows


def test_who_has_the_token_reads_writes_and_runs_every_job(
    spark: SparkSession, guarded: Guarded, admin: pulsar.Client, tmp_path: Path
) -> None:
    topic, again = fresh_name(), fresh_name("again")
    admin.create_producer(topic).close()
    admin.create_producer(again).close()
    reached = guarded.broker("right").source_options(topic=topic)
    # In a file, where it is out of sight and can be renewed.
    filed = reached | {"pulsar.client.authParams": f"file://{guarded.directory}/token"}
    write(spark, reached, b"1")
    write(spark, filed, b"2")
    assert read(spark, reached) == read(spark, filed) == [b"1", b"2"]
    follow(spark, filed, tmp_path / "stream")
    assert spark.read.parquet(str(tmp_path / "stream" / "rows")).count() == 2
    broker = guarded.broker("right")
    assert run_archive(spark, broker, topic, tmp_path / "archive") == 2
    assert replay(spark, ReplayOptions(broker, str(tmp_path / "archive"), topic, again)).rows == 2
    assert contents(admin, again) == [b"1", b"2"]
    assert usage(spark, UsageOptions(broker, str(tmp_path / "report"), ("public",))).messages >= 4


@pytest.mark.long
@pytest.mark.parametrize("credentials", ["wrong", "none", "expired"])
def test_without_it_each_ends_with_an_error_that_names_the_credentials_and_nothing_is_done(
    spark: SparkSession, guarded: Guarded, admin: pulsar.Client, tmp_path: Path, credentials: str
) -> None:
    topic, again = fresh_name(), fresh_name("again")
    publish(admin, topic, [b"1"])
    admin.create_producer(again).close()
    right, bad = guarded.broker("right"), guarded.broker(credentials)
    follow(spark, right.source_options(topic=topic), tmp_path / "stream")
    run_archive(spark, right, topic, tmp_path / "archive")
    publish(admin, topic, [b"2"])
    before = files(tmp_path)

    # Without the REST API there is only the client, which says nothing of the reason.
    client_only = {"service.url": guarded.service_url, "topic": topic} | guarded.options(credentials)
    attempts: list[Callable[[], object]] = [
        lambda: read(spark, client_only),
        lambda: read(spark, bad.source_options(topic=topic)),
        lambda: follow(spark, client_only, tmp_path / "stream"),
        lambda: follow(spark, client_only, tmp_path / "new"),
        lambda: write(spark, client_only, b"3"),
        lambda: run_archive(spark, bad, topic, tmp_path / "archive"),
        lambda: replay(spark, ReplayOptions(bad, str(tmp_path / "archive"), topic, again)),
        lambda: usage(spark, UsageOptions(bad, str(tmp_path / "report"), ("public",))),
    ]
    for attempt in attempts:
        with pytest.raises(Exception, match=r".") as refused:
            attempt()
        assert REFUSED.search(reason(refused.value)), reason(refused.value)
    assert files(tmp_path) == before
    assert contents(admin, topic) == [b"1", b"2"]
    assert contents(admin, again) == []

    # Nor does anything claim that it was read: with the token all goes on.
    follow(spark, right.source_options(topic=topic), tmp_path / "stream")
    assert spark.read.parquet(str(tmp_path / "stream" / "rows")).count() == 2
    assert run_archive(spark, right, topic, tmp_path / "archive") == 1
    assert archived(spark, tmp_path / "archive", topic) == [b"1", b"2"]


@pytest.mark.skipif(ON_PULSAR, reason="the operator gives archives of Heliograph's brokers this role")
def test_a_role_that_may_consume_the_topic_archives_it(
    spark: SparkSession, guarded: Guarded, admin: pulsar.Client, tmp_path: Path
) -> None:
    topic, role = fresh_name(), "heliograph:archive/team/orders"
    publish(admin, topic, [b"1", b"2"])
    where = f"/admin/v2/persistent/public/default/{topic}/permissions/{quote(role, safe='')}"
    headers = {"Authorization": f"Bearer {guarded.token('admin')}", "Content-Type": "application/json"}
    request = Request(guarded.http_url + where, b'["consume"]', headers, method="POST")
    trusted = ssl.create_default_context(cafile=str(guarded.directory / "own.pem"))
    with urlopen(request, context=trusted, timeout=30):
        pass
    (guarded.directory / "archive.token").write_text(guarded.token(role))
    shown = {"pulsar.client.authPluginClassName": PLUGIN}
    shown["pulsar.client.authParams"] = f"file://{guarded.directory}/archive.token"
    broker = Broker(guarded.service_url, guarded.http_url, guarded.reached_by | shown)
    assert run_archive(spark, broker, topic, tmp_path / "archive") == 2
    publish(admin, topic, [b"3"])
    assert run_archive(spark, broker, topic, tmp_path / "archive") == 1
    assert archived(spark, tmp_path / "archive", topic) == [b"1", b"2", b"3"]


def test_who_may_not_use_a_topic_is_told_so(spark: SparkSession, guarded: Guarded, admin: pulsar.Client) -> None:
    topic = fresh_name()
    publish(admin, topic, [b"1"])
    options = {"service.url": guarded.service_url, "topic": topic} | guarded.options("nobody")
    attempts: list[Callable[[], object]] = [lambda: read(spark, options), lambda: write(spark, options, b"2")]
    for attempt in attempts:
        with pytest.raises(Exception, match="these credentials do not allow it") as refused:
            attempt()
        assert topic in reason(refused.value)
    assert contents(admin, topic) == [b"1"]


@pytest.mark.long
@pytest.mark.parametrize("job", ["archive", "replay", "usage"])
def test_a_command_with_the_wrong_token_ends_with_1_and_says_why(
    spark: SparkSession, guarded: Guarded, admin: pulsar.Client, tmp_path: Path, job: str
) -> None:
    topic, again = fresh_name(), fresh_name("again")
    publish(admin, topic, [b"1"])
    admin.create_producer(again).close()
    arguments = {
        "archive": ["--topic", topic, "--path", str(tmp_path / "new")],
        "replay": ["--topic", topic, "--path", str(tmp_path / "archive"), "--to", again],
        "usage": ["--to", str(tmp_path / "new")],
    }
    if job == "replay":
        run_archive(spark, guarded.broker("right"), topic, tmp_path / "archive")
    given = [f"--option={name}={value}" for name, value in guarded.options("wrong").items()]
    urls = ["--service-url", guarded.service_url, "--admin-url", guarded.http_url, "--master", "local[2]"]
    done = subprocess.run([*COMMAND, job, *arguments[job], *given, *urls], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    output = json.loads(done.stdout)["error"]
    assert REFUSED.search(output), output
    assert output in done.stderr
    assert guarded.options("wrong")["pulsar.client.authParams"] not in done.stdout + done.stderr
    assert not (tmp_path / "new").exists()
    assert contents(admin, again) == []


def test_over_tls_a_topic_is_read_with_the_right_certificate_and_another_one_is_named(
    spark: SparkSession, guarded: Guarded, admin: pulsar.Client
) -> None:
    topic = fresh_name()
    publish(admin, topic, [b"1"])
    options = {"service.url": guarded.tls_url, "topic": topic} | guarded.options("right")
    assert read(spark, options | {TRUSTED: f"{guarded.directory}/own.pem"}) == [b"1"]
    with pytest.raises(Exception, match=r"TLS with 127\.0\.0\.1:") as refused:
        read(spark, options | {TRUSTED: f"{guarded.directory}/other.pem"})
    assert TRUSTED in reason(refused.value)
    with pytest.raises(Exception, match="these certificates cannot be used") as refused:
        read(spark, options | {TRUSTED: f"{guarded.directory}/not-there.pem"})
    assert TRUSTED in reason(refused.value)


@pytest.mark.skipif(ON_PULSAR, reason="the certificate is made in the same way, and what is shown is the client's")
def test_a_certificate_for_another_name_is_refused_unless_a_setting_says_otherwise(
    spark: SparkSession, closed: ClosedBroker
) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    closed.grant(topic, "produce", "consume")
    by_address = {"service.url": closed.service_url.replace("localhost", "127.0.0.1"), "topic": topic}
    shows = by_address | authenticated(closed, "Token") | {TRUSTED: str(closed.broker.trusted)}
    with pytest.raises(Exception, match="TLS with 127") as refused:
        read(spark, shows)
    assert "tlsHostnameVerificationEnable" in reason(refused.value)
    assert read(spark, shows | {"pulsar.client.tlsHostnameVerificationEnable": "false"}) == []


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedBroker]:
    with ClosedBroker(tmp_path_factory.mktemp("closed")) as running:
        yield running


def authenticated(closed: ClosedBroker, plugin: str) -> dict[str, str]:
    """The options of the role by a plugin of Pulsar's."""
    by = {
        "Token": closed.token_file.as_uri(),
        "Tls": f"tlsCertFile:{closed.identity.certificate},tlsKeyFile:{closed.identity.key}",
        "Basic": json.dumps({"userId": ROLE, "password": PASSWORD}),
        "OAuth2": json.dumps(
            {
                "issuerUrl": closed.issuer.url,
                "privateKey": closed.credentials.as_uri(),
                "audience": AUDIENCE,
                "trustCertsFilePath": str(closed.issuer_trusted),
            }
        ),
    }
    package = "org.apache.pulsar.client.impl.auth." + ("oauth2." if plugin == "OAuth2" else "")
    return {
        "pulsar.client.authPluginClassName": f"{package}Authentication{plugin}",
        "pulsar.client.authParams": by[plugin],
    }


@pytest.mark.parametrize("plugin", ["Token", "Tls", "Basic", "OAuth2"])
def test_each_way_to_authenticate_opens_both_ports_by_tls(
    spark: SparkSession, closed: ClosedBroker, tmp_path: Path, plugin: str
) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    closed.grant(topic, "produce", "consume")
    # The writer is an official client, which has one setting for the authorities of the broker and of the issuer.
    trusted = closed.all_trusted if plugin == "OAuth2" else closed.broker.trusted
    options = authenticated(closed, plugin) | {TRUSTED: str(trusted)}
    broker = Broker(closed.service_url, closed.http_url, options)
    reached = broker.source_options(topic=topic)
    write(spark, reached, b"1")
    write(spark, reached, b"2")
    assert read(spark, reached) == [b"1", b"2"]
    # The REST API is asked which topics there are: with the same credentials.
    assert run_archive(spark, broker, topic, tmp_path / "archive") == 2
    assert {bytes(row["value"]) for row in read_archive(spark, str(tmp_path / "archive"), topic).collect()} == {
        b"1",
        b"2",
    }
    # A role without rights gets the reason of the port that it asks.
    other = f"persistent://public/default/{fresh_name()}"
    closed.grant(other, "consume", role="another")
    with pytest.raises(Exception, match="billing") as refused:
        read(spark, broker.source_options(topic=other))
    assert other in reason(refused.value)


@pytest.mark.skipif(ON_PULSAR, reason="the guide is that of a broker whose admin API has TLS")
def test_the_example_of_the_guide_reads(spark: SparkSession, guarded: Guarded, admin: pulsar.Client) -> None:
    publish(admin, "orders", [b"1"])
    program = shown("python")[1]
    for there, here in (
        ("pulsar+ssl://broker.example.org:6651", guarded.tls_url),
        ("https://broker.example.org:8443", guarded.http_url),
        ("/etc/heliograph/ca.crt", f"{guarded.directory}/own.pem"),
        ("/etc/heliograph/billing.token", f"{guarded.directory}/token"),
    ):
        assert there in program
        program = program.replace(there, here)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(program, "docs/security.md", "exec"), names)
    assert [bytes(row["value"]) for row in names["orders"].collect()] == [b"1"]
