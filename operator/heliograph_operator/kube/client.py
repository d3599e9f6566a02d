"""A small asynchronous client of the API server, with the credentials that kopf finds."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import kopf
import structlog

from heliograph_operator import operator_metrics
from heliograph_operator.objects.kinds import Body, Kind

log = structlog.get_logger(__name__)

FIELD_MANAGER = "heliograph-operator"
#: Time (s) to connect. A leader that checked at the end of its time to renew sends before its Lease expires.
CONNECT_S: Final = 4.0
_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=CONNECT_S)
#: Objects in one response of a listing.
PAGE: Final = 500
#: Pause (s) after status 429 without a Retry-After header.
_OVERLOADED_S = 1.0
#: The longest such pause (s), whatever the header says.
OVERLOADED_MAX_S: Final = 30.0
_ATTEMPTS = 4
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?:namespaces/[^/]+/)?(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<sub>/[^/]+)?"
)
_VERSION_PATH = "/version"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class KubeError(Exception):
    """A request to the API server failed; ``str(error)`` is one line."""


class KubeRefused(KubeError):
    """The API server rejected a request: its HTTP ``status`` and ``reason`` (``Conflict``, ``Forbidden``)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def credentials(settings: kopf.OperatorSettings | None = None) -> kopf.ConnectionInfo:
    """Return the credentials of the pod's service account, else those of ``KUBECONFIG``.

    Raises :class:`KubeError` if there are none.
    """
    known = settings or kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=known) or kopf.login_with_kubeconfig(settings=known)
    if found is None:
        raise KubeError("there is neither a service account nor a KUBECONFIG to reach the API server with")
    return found


class Kube:
    """Use it with ``async with``. Every method may raise :class:`KubeError`, status 404 for a missing object."""

    def __init__(self) -> None:
        #: When (s, of ``time.monotonic``) the API server last answered any request; None: never.
        self.answered_at: float | None = None
        #: The API server's clock at its last answer; None: unknown.
        self.server_time: datetime | None = None
        #: Whether another operator may lead by now, so that changes must not be sent any more.
        self.deposed: Callable[[], bool] = lambda: False
        self._session: aiohttp.ClientSession | None = None
        self._server = ""
        self._login = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any]:
        """Return one object."""
        return await self.request("GET", kind.path(namespace, name))

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return one object, or None if it does not exist."""
        try:
            return await self.get(kind, namespace, name)
        except KubeRefused as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        """Return the objects of a namespace (or of all) that match the selector ``labels`` (or all)."""
        params = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
        items: list[dict[str, Any]] = []
        while True:
            try:
                answer = await self.request("GET", kind.path(namespace), params=params)
            except KubeRefused as error:
                if error.status != 410 or not params.pop("continue", ""):
                    raise
                # The API server does not keep the version that the first page was of any more.
                items.clear()
                continue
            items += answer.get("items") or []
            if not (more := (answer.get("metadata") or {}).get("continue")):
                # The items of a list have neither of these.
                return [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in items]
            params["continue"] = more

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        """Create an object; status 409 if the name is taken."""
        return await self.request("POST", kind.path(body["metadata"].get("namespace", "")), body=body)

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
        """Replace an object; status 409 if its resourceVersion is not the current one."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"], subresource)
        return await self.request("PUT", path, body=body)

    async def apply(self, kind: Kind, body: Body, *, dry_run: bool = False) -> dict[str, Any]:
        """Server-side apply: set these fields, remove those applied before and left out now, keep all others.

        ``dry_run`` validates and stores nothing.
        """
        metadata = body["metadata"]
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self.request(
            "PATCH",
            kind.path(metadata.get("namespace", ""), metadata["name"]),
            body=body,
            media="application/apply-patch+yaml",
            params={**params, "dryRun": "All"} if dry_run else params,
        )

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Body, *, subresource: str = ""
    ) -> dict[str, Any]:
        """Change the fields in ``body`` (JSON merge patch: None removes a field)."""
        path = kind.path(namespace, name, subresource)
        return await self.request("PATCH", path, body=body, media="application/merge-patch+json")

    async def delete(self, kind: Kind, namespace: str, name: str, *, propagation: str = "Background") -> None:
        """Request an object's deletion; a missing one counts as deleted."""
        try:
            await self.request("DELETE", kind.path(namespace, name), body={"propagationPolicy": propagation})
        except KubeRefused as error:
            if error.status != 404:
                raise

    async def version(self) -> str:
        """Return the API server's version, which everybody may read."""
        answer = await self.request("GET", _VERSION_PATH)
        return str(answer.get("gitVersion", ""))

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        media: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send ``body`` as JSON to ``path``; return the object in the response.

        Retries when the API server is overloaded (429), and with new credentials when the old ones have expired.
        Only requests that change nothing are sent once another operator may lead.
        """
        _count(method, path)
        data = json.dumps(body).encode() if body is not None else None
        for attempt in range(1, _ATTEMPTS + 1):
            session = self._session
            if session is None:
                raise RuntimeError("Kube is used outside its 'async with'")
            try:
                async with session.request(
                    method, f"{self._server}{path}", data=data, headers={"Content-Type": media}, params=params
                ) as response:
                    answer = await response.read()
                    status, retry_after = response.status, response.headers.get("Retry-After", "")
                    self.server_time = _time(response.headers.get("Date", ""))
            except (aiohttp.ClientError, TimeoutError) as error:
                cause = str(error) or type(error).__name__
                raise KubeError(f"the API server does not answer {method} {path}: {cause}") from error
            if status < 500 and status != 401:
                # The others are of a proxy, of an API server that cannot work, or of one that does not know us.
                self.answered_at = time.monotonic()
            if status == 201 and method == "PATCH":
                # An apply that creates an object needs the permission for that, too.
                _count("POST", path)
            if status < 400:
                return _decoded(answer, f"{method} {path}")
            refused = _refusal(status, answer, f"{method} {path}")
            if status == 429 and attempt < _ATTEMPTS:
                asked_s = float(retry_after) if retry_after.isdecimal() else _OVERLOADED_S
                await asyncio.sleep(min(asked_s, OVERLOADED_MAX_S))
            elif status == 401 and attempt == 1:
                await self._renew(session)
            else:
                raise refused
        raise AssertionError("the last attempt returns or raises")

    def check_leadership(self) -> None:
        """Raise :class:`KubeError` if a change must not be sent any more."""
        if self.deposed():
            raise KubeError("this operator does not lead any more")

    async def _open(self) -> None:
        info = credentials()
        self._server = (info.server or "").rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=32),
            headers={"User-Agent": FIELD_MANAGER, "Accept": "application/json", **info.as_http_headers()},
            timeout=_TIMEOUT,
            proxy=_proxy(self._server),
            middlewares=(self._fence,),
        )

    async def _fence(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Check each attempt: aiohttp itself resends a request whose connection the server closed."""
        if request.method != "GET":
            self.check_leadership()
        return await send(request)

    async def _renew(self, expired: aiohttp.ClientSession) -> None:
        """Log in again: the token of a service account is renewed every hour."""
        async with self._login:
            if self._session is expired:
                log.info("renewed the credentials for the API server")
                await self._open()
                await expired.close()


def _proxy(server: str) -> str | None:
    """Return the URL of the proxy by which the environment has ``server`` reached; None: directly.

    With ``trust_env``, aiohttp would read the environment and a ``.netrc`` in two threads for each request.
    """
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _count(method: str, path: str) -> None:
    """Count a request as access control classifies it: by verb, group and resource."""
    if path == _VERSION_PATH:
        return
    found = _PATH.fullmatch(path)
    assert found is not None, path
    verb = _VERBS.get(method) or ("get" if found["name"] else "list")
    operator_metrics.KUBE_REQUESTS.labels(verb, found["group"] or "", found["plural"] + (found["sub"] or "")).inc()


def _time(text: str) -> datetime | None:
    """Return the time of a header; None without one that can be read."""
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _decoded(answer: bytes, request: str) -> dict[str, Any]:
    try:
        decoded = json.loads(answer)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        # A proxy's page, say.
        raise KubeError(f"{request}: the answer is not an object in JSON")
    return decoded


def _refusal(status: int, answer: bytes, request: str) -> KubeRefused:
    """Return the error of a response: the API server sends a ``Status`` object, a proxy anything."""
    try:
        details = json.loads(answer)
        return KubeRefused(status, str(details.get("reason", "")), str(details.get("message", "")))
    except (json.JSONDecodeError, AttributeError):
        return KubeRefused(status, "", f"HTTP {status} for {request}")
