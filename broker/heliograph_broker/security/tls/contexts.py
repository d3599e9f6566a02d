"""Server-side TLS contexts from files in PEM: what is in them, whether it can be used, and until when."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from heliograph_api.broker_config import BrokerConfig

#: Forward secrecy and authenticated encryption; those of TLS 1.3 all have both.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: Times that the files are read again because they changed meanwhile.
_ATTEMPTS: Final = 3

SERVER: Final = "server"
CLIENT_CA: Final = "client_ca"


class TlsError(Exception):
    """Files that cannot be used; ``str(error)`` says which and why, and holds nothing of a key."""


class TlsFiles(NamedTuple):
    """The files, and whether clients must have a certificate. An empty ``client_ca``: none are asked for."""

    cert: Path
    key: Path
    client_ca: Path | None
    required: bool

    @classmethod
    def of(cls, config: BrokerConfig) -> TlsFiles:
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        return cls(Path(config.tls_cert), Path(config.tls_key), client_ca, config.tls_require_client_certificate)

    def read(self) -> tuple[bytes, ...]:
        """Return the contents. Raises :class:`TlsError` for a file that cannot be read."""
        contents = []
        for path in filter(None, self[:3]):
            try:
                contents.append(path.read_bytes())
            except OSError as error:
                raise TlsError(f"cannot read {path}: {error.strerror}") from error
        return tuple(contents)


class ServerContext(ssl.SSLContext):
    """The context of connections to the broker."""

    #: Whether one of the authorities that it verifies certificates of clients by is not trusted any more.
    withdrawn = False


class Loaded(NamedTuple):
    """A context, the contents that it was made of, and when the first certificate of each kind expires (epoch s)."""

    context: ServerContext
    contents: tuple[bytes, ...]
    expiry: Mapping[str, float]
    #: The reason why a certificate is not valid at present; empty: all are.
    invalid: str
    #: The authorities of clients' certificates, by name and public key: a renewed certificate has the same.
    authorities: frozenset[tuple[bytes, bytes]] = frozenset()


def load(files: TlsFiles, now_ms: int) -> Loaded:
    """Return a context made of the files as they are now. Raises :class:`TlsError` if they do not fit.

    It blocks. Certificates that are not valid at ``now_ms`` are an error only if the caller makes it one.
    """
    contents = files.read()
    for _ in range(_ATTEMPTS):
        failure: TlsError | None = None
        try:
            loaded = _load(files, contents, now_ms)
        except TlsError as error:
            failure = error
        # The key was read by its name, so it belongs to the rest only if nothing has changed since.
        again = files.read()
        if again == contents:
            if failure is not None:
                raise failure
            return loaded
        contents = again
    raise TlsError(f"{files.cert}, {files.key} or the authorities change all the time")


def _load(files: TlsFiles, contents: tuple[bytes, ...], now_ms: int) -> Loaded:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    chain = _certificates(files.cert, contents[0])
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    except _EncryptedError:
        raise TlsError(f"the key in {files.key} has a passphrase; valid: a key without one") from None
    except ssl.SSLError as error:
        raise TlsError(_why(files, error)) from error
    except OSError as error:
        raise TlsError(f"cannot read {files.cert} or {files.key}: {error.strerror}") from error
    expiry = {SERVER: _first_expiry(chain)}
    invalid = _invalid(files.cert, chain, now)
    trusted: frozenset[tuple[bytes, bytes]] = frozenset()
    if files.client_ca is not None:
        authorities = _certificates(files.client_ca, contents[2])
        try:
            context.load_verify_locations(cadata=contents[2].decode("ascii", "ignore"))
        except ssl.SSLError as error:
            raise TlsError(f"{files.client_ca} cannot be used: {error.reason}") from error
        context.verify_mode = ssl.CERT_REQUIRED if files.required else ssl.CERT_OPTIONAL
        expiry[CLIENT_CA] = _first_expiry(authorities)
        trusted = frozenset(map(_name_and_key, authorities))
        # While authorities change, one that has expired may still be beside its successor.
        problems = [_invalid(files.client_ca, [each], now) for each in authorities]
        if all(problems):
            invalid = invalid or problems[0]
    return Loaded(context, contents, expiry, invalid, trusted)


def _name_and_key(authority: x509.Certificate) -> tuple[bytes, bytes]:
    key = authority.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return authority.subject.public_bytes(), key


class _EncryptedError(Exception):
    pass


def _no_passphrase() -> str:
    """Stand in for the question for a passphrase, which nobody would see."""
    raise _EncryptedError


def _why(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {files.key} is not the one of the certificate in {files.cert}"
    return f"{files.cert} and {files.key} cannot be used: {error.reason or 'no certificate and key in PEM'}"


def _certificates(path: Path, content: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise TlsError(f"{path} holds no certificates in PEM") from error


def _first_expiry(certificates: list[x509.Certificate]) -> float:
    return min(each.not_valid_after_utc for each in certificates).timestamp()


def _invalid(path: Path, certificates: list[x509.Certificate], now: datetime) -> str:
    """Return what is wrong with the validity of a chain; empty if all of it is valid now."""
    for each in certificates:
        if now >= each.not_valid_after_utc:
            return f"a certificate in {path} expired at {each.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
        if now < each.not_valid_before_utc:
            return f"a certificate in {path} is not valid before {each.not_valid_before_utc:%Y-%m-%dT%H:%M:%SZ}"
    return ""
