"""A tenant, a namespace, a topic and a subscription that the routes are asked about, on any broker, and their rights.

They are made by REST, and recreated when a request has changed them, so that each cell is asked of the same state.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.polling import eventually

from .routes import GRANTS, TOPIC

#: Roles whose grants have an action that Pulsar does not have, or a topic's name that ends with ``*``.
GRANTED_HERE_ONLY = frozenset({"keeper", "steward"})
#: A proxy that may produce itself, and one that may do nothing.
PROXY, PROXY_WITHOUT_RIGHTS = "portal", "gate"
_WITHIN_S = 60.0
_TENANT = "tenants/shop"
_NAMESPACE = "namespaces/shop/payments"
_TOPIC = "persistent/shop/payments/orders"
_OWNER = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
_SUBSCRIPTION = "closed"


class Reply(NamedTuple):
    """An answer by HTTP."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Caller:
    """Sends requests of one client, on one connection while the broker keeps it open."""

    def __init__(self, http_url: str, headers: dict[str, str]) -> None:
        self._headers = headers | {"Content-Type": "application/json"}
        self._connection = http.client.HTTPConnection(urlsplit(http_url).netloc, timeout=_WITHIN_S)

    def send(self, method: str, path: str, body: str | None = None) -> Reply:
        """Send a request, a second time if the connection turns out to be closed, and return what is answered."""
        try:
            return self._send(method, path, body)
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            return self._send(method, path, body)

    def _send(self, method: str, path: str, body: str | None) -> Reply:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())

    def close(self) -> None:
        self._connection.close()


class Shop:
    """See the module; ``token`` is a superuser's."""

    def __init__(self, http_url: str, token: str) -> None:
        self._caller = Caller(http_url, {"Authorization": f"Bearer {token}"})

    def open(self) -> None:
        """Make everything, another tenant included."""
        self._done("PUT", "tenants/other", {"adminRoles": ["neighbour"], "allowedClusters": ["standalone"]})
        self._done("PUT", "namespaces/other/things")
        for role, actions in (("foreign", ["produce", "consume"]), (PROXY_WITHOUT_RIGHTS, ["produce"])):
            self._done("POST", f"namespaces/other/things/permissions/{role}", actions)
        self.mend()

    def close(self) -> None:
        self._caller.close()

    def mend(self) -> None:
        """Make what is missing, and set back what has changed. Raises :class:`AssertionError` if that is in vain."""
        eventually(self._is_as_it_was_or_mend, what="the tenant shop to be as it was", within_s=_WITHIN_S)

    def _is_as_it_was_or_mend(self) -> bool:
        if self._is_as_it_was():
            return True
        if self._status("PUT", _TENANT, _OWNER) == 409:
            self._done("POST", _TENANT, _OWNER)
        if self._status("PUT", _NAMESPACE) == 409:
            self._done("POST", f"{_NAMESPACE}/replication", ["standalone"])
            self._done("POST", f"{_NAMESPACE}/subscriptionAuthMode", "None")
        self._status("PUT", _TOPIC)
        self._status("PUT", f"{_TOPIC}/subscription/{_SUBSCRIPTION}")
        for role, actions in _of_namespace().items():
            self._status("POST", f"{_NAMESPACE}/permissions/{role}", actions)
        for role, actions in _of_topic().items():
            self._status("POST", f"{_TOPIC}/permissions/{role}", actions)
        roles = GRANTS["subscription_auth_roles"][_SUBSCRIPTION]
        self._status("POST", f"{_NAMESPACE}/permissions/subscription/{_SUBSCRIPTION}", roles)
        return self._is_as_it_was()

    def _is_as_it_was(self) -> bool:
        tenant, namespace = self._get(_TENANT), self._get(_NAMESPACE)
        if tenant is None or namespace is None or tenant["adminRoles"] != _OWNER["adminRoles"]:
            return False
        grants = namespace["auth_policies"]
        on_topic = grants["destination_auth"].get(TOPIC, {})
        return (
            namespace.get("replication_clusters") == ["standalone"]
            and namespace.get("subscription_auth_mode", "None") == "None"
            and _of_namespace().items() <= grants["namespace_auth"].items()
            and _of_topic().items() <= on_topic.items()
            and sorted(grants["subscription_auth_roles"].get(_SUBSCRIPTION, ()))
            == sorted(GRANTS["subscription_auth_roles"][_SUBSCRIPTION])
            and _SUBSCRIPTION in (self._get(f"{_TOPIC}/subscriptions") or ())
        )

    def _get(self, path: str) -> Any:
        """Return a document, None if it is not there."""
        reply = self._caller.send("GET", f"/admin/v2/{path}")
        return json.loads(reply.body) if reply.status == 200 else None

    def _status(self, method: str, path: str, body: object = None) -> int:
        return self._caller.send(method, f"/admin/v2/{path}", None if body is None else json.dumps(body)).status

    def _done(self, method: str, path: str, body: object = None) -> None:
        status = self._status(method, path, body)
        assert status in (200, 204, 409), (method, path, body, status)


def _of_namespace() -> dict[str, list[str]]:
    grants = {role: actions for role, actions in GRANTS["namespace_auth"].items() if role not in GRANTED_HERE_ONLY}
    return grants | {PROXY: ["produce"]}


def _of_topic() -> dict[str, list[str]]:
    grants: dict[str, list[str]] = GRANTS["destination_auth"][TOPIC]
    return grants
