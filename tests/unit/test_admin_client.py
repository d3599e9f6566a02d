"""The client of the admin API: its token goes to one broker only, and it trusts the authorities that are named."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_api.admin.client_tls import ClientCertificate, TlsMistake
from heliograph_api.values.names import TopicName

from tests.support.certificates import Authority


@pytest.fixture
async def redirecting() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that redirects to another port, and what that one is sent in place of credentials."""
    sent: list[str] = []

    async def note(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization", ""))
        return web.json_response("4.2.4")

    async def started(handler: Any) -> tuple[web.AppRunner, str]:
        app = web.Application()
        app.router.add_get("/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return runner, f"http://{host}:{port}"

    other, there = await started(note)

    async def redirect(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization", ""))
        raise web.HTTPTemporaryRedirect(f"{there}/admin/v2/brokers/version")

    first, here = await started(redirect)
    yield here, sent
    await first.cleanup()
    await other.cleanup()


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_name_that_is_resolved_in_a_path_is_not_asked_for(
    redirecting: tuple[str, list[str]], name: str
) -> None:
    url, sent = redirecting
    async with AdminClient(url) as client:
        for call in (
            client.grant_namespace(f"{name}/payments", "billing", ["produce"]),
            client.remove_subscription_role("shop/payments", name, "billing"),
            client.delete_tenant(name, force=True),
            client.grant_topic(TopicName.parse(f"shop/payments/{name}"), "billing", []),
        ):
            with pytest.raises(AdminRefused, match=r"has the name \. or \.\., which no request can have") as refused:
                await call
            assert not refused.value.by_broker
    assert not sent


async def test_a_token_is_not_sent_to_where_a_broker_redirects(redirecting: tuple[str, list[str]]) -> None:
    url, sent = redirecting
    async with AdminClient(url, token="s3cret") as client:
        assert await client.broker_version() == "4.2.4"
    assert sent == ["Bearer s3cret", ""]


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The URL of an https server, and its certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pulsar")])
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2100, 1, 1, tzinfo=UTC))
        .add_extension(addresses, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "both.pem").write_bytes(key.private_bytes(*plain) + pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "both.pem")

    async def version(request: web.Request) -> web.Response:
        return web.json_response("4.2.4")

    app = web.Application()
    app.router.add_get("/admin/v2/brokers/version", version)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}", pem.decode()
    await runner.cleanup()


async def test_a_certificate_is_trusted_by_the_authorities_that_are_named(encrypted: tuple[str, str]) -> None:
    url, pem = encrypted
    async with AdminClient(url, trusted=pem) as client:
        assert await client.broker_version() == "4.2.4"
    async with AdminClient(url) as client:
        with pytest.raises(AdminUnreachable, match="certificate verify failed"):
            await client.broker_version()


async def test_authorities_may_be_replaced_while_the_client_is_open(encrypted: tuple[str, str]) -> None:
    url, pem = encrypted
    trusted = [Authority().pem.decode()]
    async with AdminClient(url, trusted=lambda: trusted[0]) as client:
        with pytest.raises(AdminUnreachable, match="certificate verify failed"):
            await client.broker_version()
        trusted[0] += pem
        assert await client.broker_version() == "4.2.4"
        # An open connection is not used for other authorities.
        trusted[0] = Authority().pem.decode()
        with pytest.raises(AdminUnreachable, match="certificate verify failed"):
            await client.broker_version()


def test_authorities_that_cannot_be_read_are_an_error_of_the_value() -> None:
    with pytest.raises(ValueError, match="certificates cannot be read"):
        AdminClient("https://pulsar", trusted="no certificate")


async def test_a_request_without_a_body_has_no_media_type() -> None:
    seen: list[str | None] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Content-Type"))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_put("/{path:.*}", note)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with AdminClient(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            await client.request("PUT", "/admin/v2/persistent/shop/payments/orders")
            await client.request("PUT", "/admin/v2/persistent/shop/payments/orders/partitions", body=3)
    finally:
        await runner.cleanup()
    assert seen == [None, "application/json"]


async def test_a_comment_in_another_script_does_not_spoil_authorities(encrypted: tuple[str, str]) -> None:
    url, authority = encrypted
    async with AdminClient(url, trusted=f"# Főtanúsítvány\n{authority}") as client:
        assert await client.broker_version() == "4.2.4"
    with pytest.raises(ValueError, match="there are none"):
        AdminClient(url, trusted="# Főtanúsítvány\n")


async def test_a_function_gives_each_request_its_token(redirecting: tuple[str, list[str]]) -> None:
    url, sent = redirecting
    tokens = iter(["first", "second", ""])
    async with AdminClient(url, token=lambda: next(tokens)) as client:
        await client.broker_version()
        async with aclosing(client.stream("/heliograph/v1/backup")) as parts:
            assert [part async for part in parts] == [b'"4.2.4"']
        await client.broker_version()
    assert sent == ["Bearer first", "", "Bearer second", "", "", ""]


async def test_what_a_function_for_tokens_raises_goes_to_the_caller() -> None:
    def unreadable() -> str:
        raise LookupError("no token")

    async with AdminClient("http://127.0.0.1:1", token=unreadable) as client:
        with pytest.raises(LookupError, match="no token"):
            await client.broker_version()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve the version on a port of its own, which is yielded."""

    async def version(request: web.Request) -> web.Response:
        peer = request.get_extra_info("peercert")
        return web.json_response(peer["subject"][0][0][1] if peer else "4.2.4")

    app = web.Application()
    app.router.add_get("/admin/v2/brokers/version", version)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def server_tls(authority: Authority, directory: Path, **issued: Any) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*authority.issue(**issued).write(directory, "server"))
    return tls


async def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    authority = Authority()
    tls = server_tls(authority, tmp_path)
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_verify_locations(cadata=authority.pem.decode())
    shown = ClientCertificate(*map(str, authority.issue("archive").write(tmp_path, "client")))
    foreign = ClientCertificate(*map(str, Authority("other").issue("archive").write(tmp_path, "foreign")))
    trusted = authority.pem.decode()
    async with serving(tls) as port:
        url = f"https://localhost:{port}"
        async with AdminClient(url, trusted=trusted, certificate=shown) as client:
            assert await client.broker_version() == "archive"
        for wrong in (None, foreign):
            async with AdminClient(url, trusted=trusted, certificate=wrong) as client:
                with pytest.raises(AdminUnreachable) as refused:
                    await client.broker_version()
            assert refused.value.tls is TlsMistake.CLIENT_CERTIFICATE, refused.value


def test_files_of_a_client_certificate_that_cannot_be_used_are_an_error_of_the_value(tmp_path: Path) -> None:
    certificate, key = map(str, Authority().issue().write(tmp_path))
    with pytest.raises(ValueError, match=r"cannot read .*missing: No such file or directory"):
        AdminClient("https://pulsar", certificate=ClientCertificate(certificate, str(tmp_path / "missing")))
    other = str(Authority().issue().write(tmp_path, "other").key)
    with pytest.raises(ValueError, match=r"cannot be used: KEY_VALUES_MISMATCH"):
        AdminClient("https://pulsar", certificate=ClientCertificate(certificate, other))
    with pytest.raises(ValueError, match=r"cannot be used"):
        AdminClient("https://pulsar", certificate=ClientCertificate(key, certificate))


async def test_mistakes_of_tls_are_told_apart(tmp_path: Path) -> None:
    authority = Authority()
    good, trusted = server_tls(authority, tmp_path), authority.pem.decode()
    elsewhere = server_tls(authority, tmp_path, hosts=["broker.example"])
    expired = server_tls(authority, tmp_path, ends=datetime(2024, 1, 1, tzinfo=UTC))
    cases: list[tuple[ssl.SSLContext | None, str, str, TlsMistake]] = [
        (good, "https", "", TlsMistake.AUTHORITY),
        (good, "https", Authority().pem.decode(), TlsMistake.AUTHORITY),
        (elsewhere, "https", trusted, TlsMistake.HOST),
        (expired, "https", trusted, TlsMistake.TIME),
        (None, "https", trusted, TlsMistake.PLAIN_PORT),
        (good, "http", "", TlsMistake.TLS_PORT),
    ]
    for tls, scheme, authorities, mistake in cases:
        async with serving(tls) as port, AdminClient(f"{scheme}://127.0.0.1:{port}", trusted=authorities) as client:
            with pytest.raises(AdminUnreachable) as failed:
                await client.broker_version()
            assert failed.value.tls is mistake, failed.value
        if mistake is not TlsMistake.TLS_PORT:
            assert re.fullmatch(rf"cannot connect to https://127\.0\.0\.1:{port}: [\w ,.:'-]+", str(failed.value))
    async with AdminClient("http://127.0.0.1:1") as client:
        with pytest.raises(AdminUnreachable) as failed:
            await client.broker_version()
        assert failed.value.tls is None
    async with AdminClient("http://broker.invalid:1") as client:
        with pytest.raises(AdminUnreachable) as failed:
            await client.broker_version()
        assert "Unknown error" not in str(failed.value)


async def test_an_answer_of_another_protocol_is_not_shown() -> None:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x64malformed frame\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AdminClient(url) as client:
        with pytest.raises(AdminUnreachable) as failed:
            await client.broker_version()
    assert str(failed.value) == f"no broker answers at {url}: the answer is not HTTP"
