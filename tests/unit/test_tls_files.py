"""TLS contexts from files: what is refused, and that a change takes effect as a whole or not at all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from heliograph_broker.clock import SystemClock, VirtualClock
from heliograph_broker.messaging.base.tls_metrics import TlsMetrics
from heliograph_broker.security.tls.contexts import TlsError, TlsFiles, load
from heliograph_broker.security.tls.server_tls import ServerTls

from tests.support.certificates import Authority, Certificate

AUTHORITY = Authority()
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
TOMORROW = datetime.now(UTC) + timedelta(days=1)


def now_ms() -> int:
    return SystemClock().now_ms()


@pytest.fixture
def issued() -> Certificate:
    return AUTHORITY.issue()


@pytest.fixture
def files(tmp_path: Path, issued: Certificate) -> TlsFiles:
    cert, key = issued.write(tmp_path)
    return TlsFiles(cert, key, AUTHORITY.write(tmp_path), required=True)


def with_passphrase(certificate: Certificate) -> bytes:
    key = serialization.load_pem_private_key(certificate.key, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"s3cret")
    )


def test_a_context_has_modern_ciphers_only_and_verifies_clients(files: TlsFiles, issued: Certificate) -> None:
    loaded = load(files, now_ms())
    assert loaded.context.minimum_version is ssl.TLSVersion.TLSv1_2
    for cipher in loaded.context.get_ciphers():
        assert cipher["aead"], cipher["name"]
        assert cipher["protocol"] == "TLSv1.3" or cipher["name"].startswith("ECDHE-"), cipher["name"]
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION):
        assert loaded.context.options & option
    assert loaded.context.verify_mode is ssl.CERT_REQUIRED
    assert load(files._replace(required=False), now_ms()).context.verify_mode is ssl.CERT_OPTIONAL
    without = load(files._replace(client_ca=None), now_ms())
    assert without.context.verify_mode is ssl.CERT_NONE
    assert without.expiry == {"server": issued.expires_at_s}
    assert loaded.invalid == ""


def test_the_first_certificate_of_a_file_to_expire_counts(files: TlsFiles, issued: Certificate) -> None:
    soon = Authority("successor", ends=TOMORROW)
    assert files.client_ca is not None
    files.client_ca.write_bytes(AUTHORITY.pem + soon.pem)
    loaded = load(files, now_ms())
    assert loaded.expiry == {"server": issued.expires_at_s, "client_ca": int(TOMORROW.timestamp())}
    # One authority that has expired does not matter beside another one.
    files.client_ca.write_bytes(Authority(ends=YESTERDAY).pem + AUTHORITY.pem)
    assert load(files, now_ms()).invalid == ""


def test_authorities_may_have_comments_in_any_characters(files: TlsFiles) -> None:
    assert files.client_ca is not None
    files.client_ca.write_bytes(b"# Autorit\xc3\xa9 \xff\n" + AUTHORITY.pem)
    assert len(load(files, now_ms()).context.get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda files: files.key.write_bytes(AUTHORITY.issue().key), "is not the one of the certificate in"),
        (
            lambda files: files.key.write_bytes(with_passphrase(AUTHORITY.issue())),
            "has a passphrase; valid: a key with",
        ),
        (lambda files: files.key.write_bytes(b"garbage"), "cannot be used: "),
        (lambda files: files.cert.write_bytes(b"garbage"), "tls.crt holds no certificates in PEM"),
        (lambda files: files.cert.write_bytes(b""), "tls.crt holds no certificates in PEM"),
        (lambda files: files.client_ca.write_bytes(b"garbage"), "ca.crt holds no certificates in PEM"),
        (lambda files: files.key.unlink(), "tls.key: No such file or directory"),
        (lambda files: files.client_ca.unlink(), "ca.crt: No such file or directory"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(
    files: TlsFiles, change: Callable[[TlsFiles], object], words: str
) -> None:
    change(files)
    with pytest.raises(TlsError, match=r"tls|ca") as caught:
        load(files, now_ms())
    assert words in str(caught.value)
    assert "PRIVATE" not in str(caught.value)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (AUTHORITY.issue(ends=YESTERDAY), "expired at"),
        (AUTHORITY.issue(starts=TOMORROW), "is not valid before"),
    ],
)
def test_certificates_that_are_not_valid_now_are_named(files: TlsFiles, made: Certificate, words: str) -> None:
    made.write(files.cert.parent)
    assert words in load(files, now_ms()).invalid


class Watched:
    """A broker's TLS, checked when a test says so."""

    def __init__(self, files: TlsFiles) -> None:
        self.metrics = TlsMetrics()
        self.clock = VirtualClock(now_ms())
        self.tls = ServerTls(files, self.clock, asyncio.get_running_loop(), self.metrics)

    async def __aenter__(self) -> Watched:
        await self.tls.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.tls.stop()

    async def counts(self) -> tuple[int, int, bool]:
        """Check, and return how often files were taken and refused, and whether they are refused now."""
        await self.tls.check()
        return self.metrics.reloads, self.metrics.failures, self.metrics.refused


async def test_a_change_makes_a_new_context_and_leaves_the_old_one(files: TlsFiles) -> None:
    async with Watched(files) as watched:
        before = watched.tls.context
        assert await watched.counts() == (0, 0, False)
        assert watched.tls.context is before
        renewed = AUTHORITY.issue(ends=TOMORROW)
        renewed.write(files.cert.parent)
        assert await watched.counts() == (1, 0, False)
        assert watched.tls.context is not before
        assert watched.metrics.expiry["server"] == renewed.expires_at_s


async def test_files_that_are_swapped_by_a_symbolic_link_are_noticed(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted Secret: the times of the files' names stay what they are."""
    for name in ("first", "second"):
        AUTHORITY.issue().write(tmp_path / name)
    (tmp_path / "..data").symlink_to("first")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    async with Watched(TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", None, required=False)) as watched:
        (tmp_path / "swap").symlink_to("second")
        (tmp_path / "swap").rename(tmp_path / "..data")
        assert await watched.counts() == (1, 0, False)


async def test_files_that_cannot_be_used_keep_the_others_in_effect_and_count_once(
    files: TlsFiles, issued: Certificate
) -> None:
    async with Watched(files) as watched:
        before = watched.tls.context
        # A certificate whose key has not arrived yet.
        renewed = AUTHORITY.issue()
        files.cert.write_bytes(renewed.certificate)
        for _ in range(2):
            assert await watched.counts() == (0, 1, True)
        AUTHORITY.issue(ends=YESTERDAY).write(files.cert.parent)
        for _ in range(2):
            assert await watched.counts() == (0, 2, True)
        files.key.unlink()
        for _ in range(2):
            assert await watched.counts() == (0, 3, True)
        assert watched.tls.context is before
        assert watched.metrics.expiry["server"] == issued.expires_at_s
        renewed.write(files.cert.parent)
        assert await watched.counts() == (1, 3, False)
        files.cert.write_bytes(b"garbage")
        assert await watched.counts() == (1, 4, True)
        # The files in effect come back.
        renewed.write(files.cert.parent)
        assert await watched.counts() == (1, 4, False)


async def test_a_certificate_that_becomes_valid_later_is_taken_then(files: TlsFiles) -> None:
    async with Watched(files) as watched:
        AUTHORITY.issue(starts=TOMORROW).write(files.cert.parent)
        assert await watched.counts() == (0, 1, True)
        watched.clock.advance_ms(2 * 86_400_000)
        assert await watched.counts() == (1, 1, False)


async def test_an_expired_certificate_does_not_keep_a_broker_from_starting(files: TlsFiles) -> None:
    AUTHORITY.issue(ends=YESTERDAY).write(files.cert.parent)
    async with Watched(files) as watched:
        assert await watched.counts() == (0, 0, False)
        assert watched.metrics.expiry["server"] == int(YESTERDAY.timestamp())
