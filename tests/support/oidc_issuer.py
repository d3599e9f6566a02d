"""An identity provider (OpenID Connect) of a test, on a free port of this machine, with keys that can be replaced.

It runs in a thread of its own, so that tests that block and tests that do not can use it.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import jwt
from aiohttp import web

from tests.support.certificates import Authority
from tests.support.secret_watch import WATCH
from tests.support.token_specimens import pair, signed

DISCOVERY: Final = "/.well-known/openid-configuration"
AUDIENCE: Final = "heliograph"
#: Seconds that its tokens are valid.
VALID_S: Final = 3600
#: Paths of the key set: the one it publishes, and that of a Kubernetes API server.
_KEY_PATHS: Final = ("/keys", "/openid/v1/jwks")
_TOKEN_PATH: Final = "/oauth/token"
_KEY_SET: Final = "application/jwk-set+json"


class OidcIssuer:
    """Use it with ``with``. ``name`` is its issuer (default: its URL); with ``authority`` it speaks TLS.

    ``requests`` counts requests by path. ``clients`` are those it issues tokens to at its token endpoint, with their
    secrets; such a token is valid for ``valid_s`` seconds, and ``issued`` counts them by client. ``bearer``, if it is
    set, is required of every request. ``answers`` replaces the answer of a path; ``changes`` are members of the
    discovery document.
    """

    def __init__(
        self, name: str = "", *, authority: Authority | None = None, now_s: Callable[[], float] = time.time
    ) -> None:
        self._name = name
        self._authority = authority
        self._now_s = now_s
        self._keys: dict[str, tuple[Any, str]] = {}
        self._newest = ""
        self._rotations = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="oidc-issuer", daemon=True)
        self._open: asyncio.Event
        self._tls: ssl.SSLContext | None = None
        self.requests: Counter[str] = Counter()
        self.issued: Counter[str] = Counter()
        self.valid_s = VALID_S
        self.bearer = ""
        self.clients: dict[str, str] = {}
        self.answers: dict[str, Callable[[], web.Response]] = {}
        self.changes: dict[str, Any] = {}
        self.url = ""
        self.rotate()

    @property
    def name(self) -> str:
        return self._name or self.url

    @property
    def private_key(self) -> Any:
        """The key that signs its tokens now."""
        return self.key(self._newest)

    def key(self, key_id: str) -> Any:
        """Return the private key with this id, which it publishes."""
        return self._keys[key_id][0]

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        app.router.add_post(_TOKEN_PATH, self._issue)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        if self._authority is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.show_certificate_of(self._authority)
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests[request.path] += 1
        await self._open.wait()
        if self.bearer and request.headers.get("Authorization") != f"Bearer {self.bearer}":
            return web.json_response({"kind": "Status", "code": 403}, status=403)
        if request.path in self.answers:
            return self.answers[request.path]()
        if request.path == DISCOVERY:
            document = {
                "issuer": self.name,
                "jwks_uri": self.url + _KEY_PATHS[0],
                "token_endpoint": self.url + _TOKEN_PATH,
            }
            return web.json_response(document | self.changes)
        if request.path in _KEY_PATHS:
            # As the API server of a Kubernetes, which has its keys in no other form.
            if _KEY_SET not in request.headers.get("Accept", _KEY_SET):
                return web.Response(status=406)
            return web.json_response({"keys": self.public_keys()}, content_type=_KEY_SET)
        return web.Response(status=404)

    async def _issue(self, request: web.Request) -> web.Response:
        """Answer a client with its credentials as Pulsar's plugins for OAuth2 ask: by their id and secret."""
        self.requests[request.path] += 1
        form = await request.post()
        client = str(form.get("client_id"))
        if form.get("grant_type") != "client_credentials" or self.clients.get(client) != form.get("client_secret"):
            return web.json_response({"error": "invalid_client"}, status=401)
        ends_s = self._now_s() + self.valid_s
        token = self.token(client, aud=form.get("audience", AUDIENCE), exp=ends_s).decode()
        self.issued[client] += 1
        return web.json_response({"access_token": token, "token_type": "Bearer", "expires_in": self.valid_s})

    def add_client(self, client: str, secret: str) -> None:
        """Issue tokens to a client that has this secret."""
        WATCH.password(client, secret)
        self.clients[client] = secret

    def hold(self) -> None:
        """Answer no request until :meth:`release`."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def release(self) -> None:
        """Answer the requests that are held, and further ones."""
        self._loop.call_soon_threadsafe(self._open.set)

    def show_certificate_of(self, authority: Authority) -> None:
        """Show new connections a certificate that this authority issues."""
        assert self._tls is not None
        with tempfile.TemporaryDirectory() as directory:
            self._tls.load_cert_chain(*authority.issue("issuer").write(Path(directory)))

    def fail(self, *paths: str, status: int = 500) -> None:
        """Answer these paths (none: all) with an error until :meth:`recover`."""
        for path in paths or (DISCOVERY, *_KEY_PATHS):
            self.answers[path] = lambda: web.Response(status=status)

    def recover(self) -> None:
        """Answer as usual again."""
        self.answers.clear()

    def rotate(self, algorithm: str = "ES256", *, keep: bool = True) -> str:
        """Sign with a new key from now on, and publish it with the older ones (``keep``) or alone. Return its id."""
        if not keep:
            self._keys.clear()
        self.sign_by(self.announce(algorithm))
        return self._newest

    def announce(self, algorithm: str = "ES256") -> str:
        """Publish another key that signs nothing yet, as providers do before they sign by it. Return its id."""
        self._rotations += 1
        key_id = f"key-{self._rotations}"
        self._keys[key_id] = (pair(algorithm, self._rotations).private, algorithm)
        return key_id

    def sign_by(self, key_id: str) -> None:
        """Sign by this key from now on."""
        self._newest = key_id

    def withdraw_older_keys(self) -> None:
        """Publish the key that signs now alone from now on."""
        self._keys = {self._newest: self._keys[self._newest]}

    @property
    def key_id(self) -> str:
        """The id of the key that signs its tokens now."""
        return self._newest

    def public_keys(self) -> list[dict[str, Any]]:
        """Return the keys as it publishes them."""
        return [
            {**_algorithm(name).to_jwk(key.public_key(), as_dict=True), "kid": key_id, "alg": name, "use": "sig"}
            for key_id, (key, name) in self._keys.items()
        ]

    def token(
        self,
        subject: str | None = "billing",
        *,
        headers: dict[str, Any] | None = None,
        key: Any = None,
        algorithm: str = "",
        **claims: Any,
    ) -> bytes:
        """Return a token signed by the newest key, or by ``key``; claims that are None are left out."""
        now = int(self._now_s())
        stated = {"iss": self.name, "aud": AUDIENCE, "iat": now, "nbf": now, "exp": now + VALID_S, "sub": subject}
        payload = {name: value for name, value in (stated | claims).items() if value is not None}
        own, own_algorithm = self._keys[self._newest]
        return signed(algorithm or own_algorithm, payload, key or own, {"kid": self._newest} | (headers or {}))

    def write_service_account(self, directory: Path, namespace: str = "default", name: str = "broker") -> Path:
        """Write the files of a pod's service account, whose token it requires from now on; return the directory."""
        assert self._authority is not None
        directory.mkdir(parents=True, exist_ok=True)
        self._authority.write(directory)
        token = self.token(f"system:serviceaccount:{namespace}:{name}", aud=[self.name]).decode()
        (directory / "token").write_text(token)
        self.bearer = token
        return directory


def _algorithm(name: str) -> Any:
    return jwt.get_algorithm_by_name(name)


def json_answer(content: object) -> Callable[[], web.Response]:
    """Return an answer with ``content``: bytes as they are, everything else as JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda: web.Response(body=body, content_type="application/json")
