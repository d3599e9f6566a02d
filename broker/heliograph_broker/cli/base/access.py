"""Finds with which credentials a command talks to a broker: those of options, the environment, or a context.

The context that is current in the file is used only for its own addresses: for a broker that an option or the
environment names, its token could reach another server than the one it was meant for. A context that is named itself
goes with any address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple

from .contexts import AccessError, Context, contexts_path, read_contexts

CONTEXT_VARIABLE: Final = "HELIOGRAPH_CONTEXT"
TOKEN_FILE_VARIABLE: Final = "HELIOGRAPH_TOKEN_FILE"
TOKEN_VARIABLE: Final = "HELIOGRAPH_TOKEN"
TLS_CA_VARIABLE: Final = "HELIOGRAPH_TLS_CA"
CLIENT_CERT_VARIABLE: Final = "HELIOGRAPH_CLIENT_CERT"
CLIENT_KEY_VARIABLE: Final = "HELIOGRAPH_CLIENT_KEY"
#: No token is longer (bytes); brokers take far shorter ones only.
_LONGEST_TOKEN: Final = 1 << 16


class Flags(NamedTuple):
    """The options of credentials as they were given; empty: not given."""

    context: str = ""
    token_file: str = ""
    tls_ca: str = ""
    client_cert: str = ""
    client_key: str = ""

    def over(self, others: Flags) -> Flags:
        """Return these, and ``others`` where these were not given."""
        return Flags(*(own or other for own, other in zip(self, others, strict=True)))


class Token(NamedTuple):
    """The place of a token: the file at ``path``, or ``text`` if there is no path."""

    path: str
    text: str = ""

    @property
    def described(self) -> str:
        """The token by its place, for messages."""
        return f"the token in {self.path}" if self.path else f"the token in {TOKEN_VARIABLE}"

    def read(self) -> str:
        """Return the token as it is now. Raises :class:`AccessError` if there is none."""
        text = _read(self.path, "the token file", _LONGEST_TOKEN) if self.path else self.text
        token = text.strip()
        where = self.path or TOKEN_VARIABLE
        if not token:
            raise AccessError(f"{where} is empty; it should hold a token")
        if not (token.isascii() and token.isprintable() and " " not in token):
            raise AccessError(f"{where} should hold one token and nothing else")
        return token


class Certificate(NamedTuple):
    """The files of a client's certificate and its key."""

    certificate: str
    key: str


class Credentials(NamedTuple):
    """A command's token and certificate, and the authorities that it trusts; each may be missing."""

    token: Token | None = None
    #: File with authorities in PEM; empty: those of the system.
    tls_ca: str = ""
    certificate: Certificate | None = None

    @property
    def described(self) -> str:
        """The credential that decides the role, for messages; empty: none."""
        if self.token is not None:
            return self.token.described
        return f"the certificate {self.certificate.certificate}" if self.certificate is not None else ""

    def trusted(self) -> str:
        """Return the authorities in PEM, empty for those of the system. Raises :class:`AccessError`."""
        if not self.tls_ca:
            return ""
        text = _read(self.tls_ca, "the authorities")
        if not text.strip():
            raise AccessError(f"{self.tls_ca} is empty; it should hold certificates of authorities in PEM")
        return text


def unusable_files(error: ValueError, shown: Credentials) -> AccessError:
    """Return the error for files of ``shown`` that a client cannot use for TLS, as ``error`` describes."""
    from heliograph_api.admin.client_tls import ClientCertificateUnusable

    if isinstance(error, ClientCertificateUnusable) or not shown.tls_ca:
        return AccessError(str(error))
    return AccessError(f"{shown.tls_ca}: {error}")


#: The credentials of the command that runs.
_RUNNING: ContextVar[Credentials | None] = ContextVar("credentials", default=None)


def credentials() -> Credentials:
    """Return the credentials of the command that runs."""
    return _RUNNING.get() or Credentials()


@contextmanager
def using(found: Credentials) -> Iterator[None]:
    """Make ``found`` the credentials of the command that runs meanwhile."""
    before = _RUNNING.set(found)
    try:
        yield
    finally:
        _RUNNING.reset(before)


def find_context(flags: Flags, environment: Mapping[str, str], *, url_given: bool) -> Context:
    """Return the context of a command, an empty one if there is none.

    ``url_given`` is whether an option or the environment names the broker. Raises :class:`AccessError` if the context
    is not there, or the file of contexts cannot be used.
    """
    path = contexts_path(environment)
    if name := flags.context or environment.get(CONTEXT_VARIABLE, ""):
        if path is None:
            raise AccessError(f"no file has the context {name!r}: neither HELIOGRAPH_CONFIG nor HOME is set")
        return read_contexts(path).get(name, path)
    if url_given or path is None:
        return Context()
    contexts = read_contexts(path)
    return contexts.named[contexts.current] if contexts.current else Context()


def find_credentials(flags: Flags, environment: Mapping[str, str], context: Context) -> Credentials:
    """Return the credentials of a command: each from its option, the environment or ``context``, in this order.

    Raises :class:`AccessError` for a certificate without its key, and for two tokens in the environment.
    """
    return Credentials(
        _token(flags, environment, context),
        flags.tls_ca or environment.get(TLS_CA_VARIABLE, "") or context.tls_ca,
        _certificate(flags, environment, context),
    )


def _token(flags: Flags, environment: Mapping[str, str], context: Context) -> Token | None:
    if flags.token_file:
        return Token(flags.token_file)
    file, text = environment.get(TOKEN_FILE_VARIABLE, ""), environment.get(TOKEN_VARIABLE, "")
    if file and text:
        raise AccessError(f"{TOKEN_FILE_VARIABLE} and {TOKEN_VARIABLE} are both set; valid: one of them")
    if file or text:
        return Token(file, text)
    return Token(context.token_file) if context.token_file else None


def _certificate(flags: Flags, environment: Mapping[str, str], context: Context) -> Certificate | None:
    """Return the first certificate that is set anywhere. It and its key are set in the same place."""
    for given, names in (
        ((flags.client_cert, flags.client_key), ("--client-cert", "--client-key")),
        (
            (environment.get(CLIENT_CERT_VARIABLE, ""), environment.get(CLIENT_KEY_VARIABLE, "")),
            (CLIENT_CERT_VARIABLE, CLIENT_KEY_VARIABLE),
        ),
        ((context.client_cert, context.client_key), ("client-cert of the context", "client-key of the context")),
    ):
        if all(given):
            return Certificate(*given)
        if any(given):
            there, missing = names if given[0] else reversed(names)
            raise AccessError(f"{there} is set without {missing}; valid: both of them")
    return None


def _read(path: str, what: str, longest: int = -1) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(longest)
    except UnicodeDecodeError:
        raise AccessError(f"{what} {path} is not text") from None
    except OSError as error:
        raise AccessError(f"cannot read {what} {path}: {error.strerror}") from error
