"""The admin REST API of a broker, as an asynchronous client: Pulsar's ``/admin/v2`` paths and Heliograph's own.

It knows nothing of the broker's inside, so that whatever drives a broker from outside can use it, against a
Pulsar too as far as the paths are Pulsar's.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp
import msgspec

from heliograph_api.policies.policy_table import SUBSCRIPTION_FIELDS
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.role_state import RoleSettings
from heliograph_api.values.names import NamespaceName, SubscriptionName, TopicName
from heliograph_api.values.quoting import quoted

from .admin_paths import encoded, encoded_subscription, namespace_path, subscription_path, tenant_path, topic_path
from .client_tls import ClientCertificate, TlsMistake, client_tls, is_no_http, tls_mistake, tls_reason

#: An answer's JSON; its shape is Pulsar's, stated by each method.
Json = Any

#: Time (s) to connect.
CONNECT_S: Final = 4.0
_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=CONNECT_S)
_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=120)


class AdminError(Exception):
    """Base of everything that goes wrong between this client and a broker; ``str(error)`` is one line for people."""


class AdminUnreachable(AdminError):
    """No broker answers at the URL, or what answers does not speak HTTP.

    ``tls`` is the mistake of TLS that was the cause, None if there was another one.
    """

    def __init__(self, text: str, *, tls: TlsMistake | None = None) -> None:
        super().__init__(text)
        self.tls = tls


class AdminRefused(AdminError):
    """The broker answered with a refusal: its HTTP ``status`` and its ``reason``.

    ``by_broker`` is False for an answer that brokers do not give, such as a proxy's page.
    """

    def __init__(self, status: int, reason: str, *, by_broker: bool = True) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.by_broker = by_broker


class Answer(NamedTuple):
    """An accepted request's status, headers and body as they came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class AdminClient:
    """One broker's admin API; use it with ``async with``. Every method may raise an :class:`AdminError`.

    ``token`` is sent with each request, but not to other servers that the broker redirects to. A function is called for
    each request, so that a token may be replaced meanwhile; what it raises goes to the caller.

    ``trusted`` are the certificate authorities in PEM (empty: those of the system), and ``certificate`` is shown to
    brokers that ask for one; the constructor raises :class:`ValueError` if they cannot be read. A function is called
    for each request, as for ``token``.

    Once ``deposed`` returns True, only GET requests are sent: another client makes the changes.
    """

    def __init__(
        self,
        http_url: str,
        *,
        token: str | Callable[[], str] = "",
        trusted: str | Callable[[], str] = "",
        certificate: ClientCertificate | None = None,
        deposed: Callable[[], bool] = lambda: False,
    ) -> None:
        self.http_url = http_url.rstrip("/")
        self._deposed = deposed
        self._token = token
        self._trusted, self._certificate = trusted, certificate
        #: TLS, and the authorities that it is for. True: that of aiohttp.
        self._tls: tuple[str, ssl.SSLContext | bool] = "", True
        if certificate is not None:
            self._tls = "", client_tls("", certificate)
        if isinstance(trusted, str):
            self._encryption()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=_TIMEOUT,
            middlewares=(self._fence,),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Json = None,
        text: str | None = None,
        params: dict[str, str] | None = None,
    ) -> Json:
        """Call ``path`` (with its leading slash) with ``body`` as JSON or ``text`` as YAML.

        Returns the decoded JSON, the text if it is not JSON, or None for an empty answer.
        """
        answer = await self.exchange(method, path, body=body, text=text, params=params)
        decoded = answer.body.decode(errors="replace")
        if not decoded:
            return None
        try:
            return json.loads(decoded)
        except json.JSONDecodeError:
            return decoded

    async def exchange(
        self,
        method: str,
        path: str,
        *,
        body: Json = None,
        text: str | None = None,
        params: dict[str, str] | None = None,
    ) -> Answer:
        """As :meth:`request`, for answers that are not JSON or say something in their headers."""
        if self._session is None:
            raise RuntimeError("AdminClient is used outside its 'async with'")
        if any(part in (".", "..") for part in path.split("/")):
            # Another path would be asked for: such parts are resolved on the way.
            raise AdminRefused(400, f"{quoted(path)} has the name . or .., which no request can have", by_broker=False)
        data: bytes | None = None
        headers = self._credentials()
        if text is not None:
            data, headers["Content-Type"] = text.encode(), "application/yaml"
        elif body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = f"{self.http_url}{path}"
        try:
            async with self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                params=params,
                skip_auto_headers=_NO_MEDIA_TYPE,
                ssl=self._encryption(),
            ) as response:
                answer = await response.read()
                if response.status >= 400:
                    raise _refused(answer.decode(errors="replace"), response)
                return Answer(response.status, response.headers, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: aiohttp.ClientError | TimeoutError) -> AdminUnreachable:
        mistake = tls_mistake(error, encrypted=self.http_url.startswith("https:"))
        if reason := tls_reason(error):
            return AdminUnreachable(f"cannot connect to {self.http_url}: {reason}", tls=mistake)
        return AdminUnreachable(f"no broker answers at {self.http_url}: {_cause(error)}", tls=mistake)

    def _credentials(self) -> dict[str, str]:
        token = self._token if isinstance(self._token, str) else self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _encryption(self) -> ssl.SSLContext | bool:
        """Return the TLS for the authorities that are trusted now; a connection is reused only with the same."""
        trusted = self._trusted if isinstance(self._trusted, str) else self._trusted()
        if trusted != self._tls[0]:
            self._tls = trusted, client_tls(trusted, self._certificate)
        return self._tls[1]

    async def _fence(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Check each attempt: aiohttp itself resends a request whose connection the server closed."""
        if request.method != "GET" and self._deposed():
            raise AdminUnreachable("this operator does not lead any more")
        return await send(request)

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the body of a GET part by part, however long it takes in all."""
        if self._session is None:
            raise RuntimeError("AdminClient is used outside its 'async with'")
        try:
            url, headers = f"{self.http_url}{path}", self._credentials()
            encryption = self._encryption()
            async with self._session.get(url, timeout=_STREAM_TIMEOUT, headers=headers, ssl=encryption) as response:
                if response.status >= 400:
                    raise _refused((await response.read()).decode(errors="replace"), response)
                async for part in response.content.iter_any():
                    yield part
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.SocketTimeoutError) as error:
            raise AdminUnreachable(f"the broker at {self.http_url} broke off its answer: {_cause(error)}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unreachable(error) from error

    async def apply(self, manifests: str) -> list[dict[str, Any]]:
        """Apply a YAML stream of manifests; returns what became of each resource, in order of application."""
        answer = await self.request("POST", "/heliograph/v1/apply", text=manifests)
        results: list[dict[str, Any]] = answer["results"]
        return results

    async def state(self, namespace: str | None = None) -> BrokerState:
        """Return everything the broker has (or one namespace, and its tenant) in one answer."""
        params = {"namespace": namespace} if namespace is not None else None
        answer = await self.exchange("GET", "/heliograph/v1/status", params=params)
        try:
            return msgspec.json.decode(answer.body, type=BrokerState)
        except msgspec.DecodeError as error:
            raise AdminRefused(answer.status, f"the broker's status cannot be read: {error}") from error

    async def broker_version(self) -> str:
        """Return the broker's version, as it says itself."""
        return str(await self.request("GET", "/admin/v2/brokers/version"))

    async def topics(
        self, namespace: str, *, domains: Sequence[str] = ("persistent", "non-persistent"), system: bool = False
    ) -> list[str]:
        """Return the full names of a namespace's topics, every partition by its own name, sorted.

        System topics are among them only with ``system``.
        """
        found: list[str] = []
        for domain in domains:
            found += await self.request("GET", f"/admin/v2/{domain}/{namespace}", params=_SYSTEM if system else None)
        return sorted(found)

    async def partitioned_topics(self, namespace: str, *, system: bool = False) -> list[str]:
        """Return the full names of a namespace's partitioned topics, sorted; system topics only with ``system``."""
        found: list[str] = []
        for domain in ("persistent", "non-persistent"):
            path = f"/admin/v2/{domain}/{namespace}/partitioned"
            found += await self.request("GET", path, params=_SYSTEM if system else None)
        return sorted(found)

    async def partitions(self, topic: TopicName) -> int:
        """Return how many partitions a topic has; 0 if it is not partitioned."""
        answer = await self.request("GET", f"{topic_path(topic)}/partitions")
        return int(answer["partitions"])

    async def stats(self, topic: TopicName) -> dict[str, Any]:
        """Return a topic's stats with Pulsar's field names; of a partitioned topic the sums, and ``partitions``.

        Raises :class:`AdminRefused` with status 404 if there is no such topic.
        """
        answer: dict[str, Any]
        if topic.partition < 0 and await self.partitions(topic) > 0:
            answer = await self.request(
                "GET", f"{topic_path(topic)}/partitioned-stats", params={"perPartition": "true", **_OLDEST}
            )
        else:
            answer = await self.request("GET", f"{topic_path(topic)}/stats", params=_OLDEST)
        return answer

    async def create_topic(self, topic: TopicName, *, partitions: int = 0) -> None:
        """Create a topic; ``partitions`` 0 makes it a plain one."""
        if partitions:
            await self.request("PUT", f"{topic_path(topic)}/partitions", body=partitions)
        else:
            await self.request("PUT", topic_path(topic))

    async def delete_topic(self, topic: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its partitions; ``force`` disconnects producers and consumers first."""
        path = topic_path(topic)
        if topic.partition < 0 and await self.partitions(topic) > 0:
            path += "/partitions"
        await self.request("DELETE", path, params={"force": "true"} if force else None)

    async def delete_subscription(self, subscription: SubscriptionName, *, force: bool = False) -> None:
        """Delete a subscription with its own policies; ``force`` disconnects consumers first. May be repeated."""
        topic, name = subscription.topic, subscription.local
        path = f"{topic_path(topic)}/subscription/{encoded_subscription(name)}"
        own = subscription_path(topic, name)
        ends = [row.rest.subscription for row in SUBSCRIPTION_FIELDS.values() if row.rest is not None]
        requests = [(path, {"force": "true"} if force else None), *((f"{own}/{end}", None) for end in ends if end)]
        for each, params in requests:
            try:
                await self.request("DELETE", each, params=params)
            except AdminRefused as error:
                if error.status != 404:
                    raise

    async def delete_namespace(self, namespace: NamespaceName, *, force: bool = False) -> None:
        """Delete a namespace; one with topics is refused unless ``force``, which deletes them."""
        await self.request("DELETE", namespace_path(namespace), params={"force": "true"} if force else None)

    async def grant_namespace(self, namespace: str, role: str, actions: Sequence[str]) -> None:
        """Set the actions that a role may take in a namespace; none: it may take none."""
        path = f"/admin/v2/namespaces/{namespace}/permissions/{encoded(role)}"
        await self._grant(path, actions)

    async def grant_topic(self, topic: TopicName, role: str, actions: Sequence[str]) -> None:
        """Set the actions that a role may take on a topic, or on all that begin so if its name ends with a ``*``."""
        await self._grant(f"{topic_path(topic)}/permissions/{encoded(role)}", actions)

    async def _grant(self, path: str, actions: Sequence[str]) -> None:
        if actions:
            await self.request("POST", path, body=list(actions))
        else:
            await self.request("DELETE", path)

    async def subscription_roles(self, namespace: str) -> dict[str, list[str]]:
        """Return the only roles that may use a subscription, for each that has such."""
        found: dict[str, list[str]] = await self.request(
            "GET", f"/admin/v2/namespaces/{namespace}/permissions/subscription"
        )
        return found

    async def set_subscription_roles(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Set the only roles that may use a subscription of this name."""
        path = f"/admin/v2/namespaces/{namespace}/permissions/subscription/{encoded(subscription)}"
        await self.request("POST", path, body=list(roles))

    async def remove_subscription_role(self, namespace: str, subscription: str, role: str) -> None:
        """Remove a role from those that may use a subscription; without any left, all may that consume."""
        path = f"/admin/v2/namespaces/{namespace}/permissions/{encoded(subscription)}/{encoded(role)}"
        await self.request("DELETE", path)

    async def put_role(self, role: str, settings: RoleSettings) -> None:
        """Set everything of a role but its grants."""
        await self.request("PUT", f"/heliograph/v1/roles/{encoded(role)}", body=msgspec.to_builtins(settings))

    async def delete_role(self, role: str) -> None:
        """Forget everything that is set for a role; its grants stay."""
        await self.request("DELETE", f"/heliograph/v1/roles/{encoded(role)}")

    async def delete_tenant(self, tenant: str, *, force: bool = False) -> None:
        """Delete a tenant; one with namespaces is refused unless ``force``, which deletes them."""
        await self.request("DELETE", tenant_path(tenant), params={"force": "true"} if force else None)


#: A Pulsar refuses a request without a body that has the type of one.
_NO_MEDIA_TYPE = ("Content-Type",)
_SYSTEM = {"includeSystemTopic": "true"}
_OLDEST = {"getEarliestTimeInBacklog": "true"}


def oldest_age_ms(stats: dict[str, Any], now_ms: int) -> int:
    """Return the age of a subscription's oldest unacknowledged message from its stats; -1 if it has none."""
    earliest = stats.get("earliestMsgPublishTimeInBacklog", 0)
    if not stats["msgBacklog"] or earliest <= 0:
        return -1
    return max(0, now_ms - int(earliest))


def _cause(error: aiohttp.ClientError | TimeoutError) -> str:
    if is_no_http(error):
        # Its text has lines of what was received.
        return "the answer is not HTTP"
    if isinstance(error, aiohttp.ClientConnectorError):
        if isinstance(error.os_error, socket.gaierror):
            # Its numbers are not those of the operating system's errors.
            return error.os_error.strerror or str(error.os_error)
        if error.os_error.errno:
            # The operating system's words ("Connection refused"); asyncio's name the address, which is known.
            return os.strerror(error.os_error.errno)
    return str(error) or type(error).__name__


def _refused(answer: str, response: aiohttp.ClientResponse) -> AdminRefused:
    """Return a refusal with its reason: Pulsar's ``{"reason": …}``, or the text of another server, such as a proxy."""
    try:
        return AdminRefused(response.status, str(json.loads(answer)["reason"]))
    except (json.JSONDecodeError, KeyError, TypeError):
        reason = f"HTTP {response.status} {response.reason or ''} for {response.url.path}".rstrip()
        return AdminRefused(response.status, reason, by_broker=False)
