"""The client of the admin API: its token goes to one broker only, and it trusts the authorities that are named."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from heliograph_api.admin.admin_client import AdminClient, AdminUnreachable


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
        with pytest.raises(AdminUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
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
