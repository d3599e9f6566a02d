"""Tokens for tests, made by PyJWT and not by the code under test; and REST with them."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import jwt

from .rest import WITHIN_S
from .secret_watch import WATCH

#: How often (s) brokers of tests check for tokens that have ended. A client has as long to show another one, so that it
#: is long enough for a client in a process that stands still for a while, as on a busy machine.
CHECK_EVERY_S: Final = 5
#: How long (s) tokens are valid that are to be renewed: one that is shown at a check has ended by the next one, but it
#: lasts until a client that stood still has shown it.
SHORT_S: Final = 4.0


class Signer:
    """A secret of its own, in a file as brokers read it."""

    def __init__(self, path: Path, secret: bytes = b"a secret of tests that is long enough for HS256") -> None:
        path.write_bytes(secret)
        WATCH.secret("a key that signs tokens", secret)
        self.path = path
        self._secret = secret

    def settings(self, **settings: str) -> dict[str, str]:
        """Return the environment of a broker that knows tokens of this secret only, and has these settings."""
        own = {"auth": "token", "token_secret_key": str(self.path)}
        return {f"HELIOGRAPH_{name.upper()}": value for name, value in (own | settings).items()}

    def token(self, role: str, *, expires_in_s: float | None = None, **claims: Any) -> str:
        """Return a token of ``role``; without ``expires_in_s`` it never expires."""
        if expires_in_s is not None:
            claims["exp"] = time.time() + expires_in_s
        token = jwt.encode({"sub": role, **claims}, self._secret, "HS256")
        WATCH.secret(f"a token of {role}", token)
        return token


class Signing(Protocol):
    """Signs tokens by one key: a secret, or a key of an identity provider."""

    def token(self, role: str, *, expires_in_s: float) -> str: ...


class TokenFile:
    """A file with a token of ``role`` that is valid for a short time, which is replaced all the time."""

    #: Time (s) between two tokens.
    _EVERY_S: Final = 0.2

    def __init__(self, path: Path, signer: Signing, role: str) -> None:
        self.path = path
        #: Signs the following tokens.
        self.signer = signer
        self._role = role
        self._ending = threading.Event()
        self._write()

    def _write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(self.signer.token(self._role, expires_in_s=SHORT_S))
        new.rename(self.path)

    def _run(self) -> None:
        while not self._ending.wait(self._EVERY_S):
            self._write()

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Replace it until the end of the block."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()


class Answer(NamedTuple):
    """The status of an HTTP answer, and its decoded body or the text of it."""

    status: int
    body: Any


def ask(
    url: str,
    token: str = "",
    method: str = "GET",
    body: object = None,
    *,
    context: ssl.SSLContext | None = None,
    **headers: str,
) -> Answer:
    """Send a request with a token, by ``context`` if the URL is one of TLS, and return whatever is answered."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S, context=context) as answer:
            return Answer(answer.status, _decoded(answer.read()))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, _decoded(error.read()))


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode()
