"""The API server, as a small asynchronous client over the session that kopf's credentials describe."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import kopf
import structlog

from heliograph_operator import operator_metrics
from heliograph_operator.objects.kinds import Body, Kind

log = structlog.get_logger(__name__)

FIELD_MANAGER = "heliograph-operator"
_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=10)
#: Pause (s) after an answer that asks for one without saying how long.
_OVERLOADED_S = 1.0
_ATTEMPTS = 4
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v[^/]+/(?:namespaces/[^/]+/)?(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?P<sub>/[^/]+)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class KubeError(Exception):
    """A request to the API server failed; ``str(error)`` is one line for people."""


class KubeRefused(KubeError):
    """The API server answered with a refusal: its HTTP ``status`` and its ``reason`` (``Conflict``, ``Forbidden``)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def credentials(settings: kopf.OperatorSettings | None = None) -> kopf.ConnectionInfo:
    """Return how to reach the API server: as the pod's service account, else by ``KUBECONFIG``.

    Raises :class:`KubeError` if there is neither.
    """
    known = settings or kopf.OperatorSettings()
    found = kopf.login_with_service_account(settings=known) or kopf.login_with_kubeconfig(settings=known)
    if found is None:
        raise KubeError("there is no service account and no KUBECONFIG: nothing says how to reach the API server")
    return found


class Kube:
    """Use it with ``async with``. Every method may raise :class:`KubeError`; what is not there is status 404."""

    def __init__(self) -> None:
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
        """Return one object, or None if there is none."""
        try:
            return await self.get(kind, namespace, name)
        except KubeRefused as error:
            if error.status == 404:
                return None
            raise

    async def list(self, kind: Kind, namespace: str = "", *, labels: str = "") -> list[dict[str, Any]]:
        """Return the objects of a namespace (or of all), those with ``labels`` if a selector is given."""
        params = {"labelSelector": labels} if labels else None
        answer = await self.request("GET", kind.path(namespace), params=params)
        items: list[dict[str, Any]] = answer.get("items") or []
        # A list leaves out what is the same for all.
        return [{"apiVersion": kind.api_version, "kind": kind.name, **item} for item in items]

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        """Create an object; one of that name is a refusal with status 409."""
        return await self.request("POST", kind.path(body["metadata"].get("namespace", "")), body=body)

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
        """Write an object whole; status 409 if its resourceVersion is not the present one."""
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"], subresource)
        return await self.request("PUT", path, body=body)

    async def apply(self, kind: Kind, body: Body) -> dict[str, Any]:
        """Make an object have these fields (server-side apply): others' fields stay, ours that are left out go."""
        metadata = body["metadata"]
        return await self.request(
            "PATCH",
            kind.path(metadata.get("namespace", ""), metadata["name"]),
            body=body,
            media="application/apply-patch+yaml",
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
        )

    async def patch(
        self, kind: Kind, namespace: str, name: str, body: Body, *, subresource: str = ""
    ) -> dict[str, Any]:
        """Change the fields in ``body`` (JSON merge patch: None removes one)."""
        path = kind.path(namespace, name, subresource)
        return await self.request("PATCH", path, body=body, media="application/merge-patch+json")

    async def delete(self, kind: Kind, namespace: str, name: str, *, propagation: str = "Background") -> None:
        """Ask for an object's deletion; one that is not there is done."""
        try:
            await self.request("DELETE", kind.path(namespace, name), body={"propagationPolicy": propagation})
        except KubeRefused as error:
            if error.status != 404:
                raise

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        media: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Call ``path`` with ``body`` as JSON; return the object answered.

        Waits and tries again when the API server asks for it (429), and with new credentials when these have expired.
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
            except (aiohttp.ClientError, TimeoutError) as error:
                cause = str(error) or type(error).__name__
                raise KubeError(f"the API server does not answer {method} {path}: {cause}") from error
            if status == 201 and method == "PATCH":
                # What an apply makes has to be allowed to be created, too.
                _count("POST", path)
            if status < 400:
                decoded: dict[str, Any] = json.loads(answer)
                return decoded
            refused = _refusal(status, answer, f"{method} {path}")
            if status == 429 and attempt < _ATTEMPTS:
                await asyncio.sleep(float(retry_after) if retry_after.isdigit() else _OVERLOADED_S)
            elif status == 401 and attempt == 1:
                await self._renew(session)
            else:
                raise refused
        raise AssertionError("the last attempt returns or raises")

    async def _open(self) -> None:
        info = credentials()
        self._server = (info.server or "").rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=32),
            headers={"User-Agent": FIELD_MANAGER, "Accept": "application/json", **info.as_http_headers()},
            timeout=_TIMEOUT,
            trust_env=True,
        )

    async def _renew(self, expired: aiohttp.ClientSession) -> None:
        """Log in again: the token of a service account is replaced every hour."""
        async with self._login:
            if self._session is expired:
                log.info("the API server's credentials are renewed")
                await self._open()
                await expired.close()


def _count(method: str, path: str) -> None:
    """Count a request as access control sees it: a verb on a resource of a group."""
    found = _PATH.fullmatch(path)
    assert found is not None, path
    verb = _VERBS.get(method) or ("get" if found["name"] else "list")
    operator_metrics.KUBE_REQUESTS.labels(verb, found["group"] or "", found["plural"] + (found["sub"] or "")).inc()


def _refusal(status: int, answer: bytes, request: str) -> KubeRefused:
    """The API server states refusals as a ``Status`` object; a proxy says what it likes."""
    try:
        said = json.loads(answer)
        return KubeRefused(status, str(said.get("reason", "")), str(said.get("message", "")))
    except (json.JSONDecodeError, AttributeError):
        return KubeRefused(status, "", f"HTTP {status} for {request}")
