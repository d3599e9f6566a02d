"""Calls of a broker's REST."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

WITHIN_S = 60.0
_API_VERSION = "heliograph.dev/v1alpha1"


def fetch(url: str, method: str = "GET", body: object = None, *, accept: str = "*/*") -> bytes:
    """Return the answer's body. Bytes are sent as they are, another ``body`` as JSON.

    Raises :class:`OSError`; a refusal is a :class:`urllib.error.HTTPError`, which is one.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "Accept": accept}, method=method)
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        return bytes(answer.read())


def call(url: str, method: str = "GET", body: object = None) -> Any:
    """Return the decoded answer, None if it has no body. Raises as :func:`fetch`."""
    answer = fetch(url, method, body)
    return json.loads(answer) if answer else None


def apply(http_url: str, *resources: dict[str, Any]) -> Any:
    """Apply resources, given without ``apiVersion``, as manifests are; return what became of each."""
    documents = "\n---\n".join(json.dumps({"apiVersion": _API_VERSION, **each}) for each in resources)
    return call(f"{http_url}/heliograph/v1/apply", "POST", documents.encode())


def keep_nothing(http_url: str, namespace: str = "public/default") -> None:
    """Delete at once what every subscription of a namespace has acknowledged, not ledger by ledger."""
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    call(f"{http_url}/admin/v2/namespaces/{namespace}/retention", "POST", nothing)


def topic_stats(http_url: str, topic: str) -> Any:
    """Return the statistics of ``tenant/namespace/topic``."""
    return call(f"{http_url}/admin/v2/persistent/{topic}/stats")


def metrics(http_url: str) -> str:
    """Return the broker's metrics as Prometheus reads them."""
    return fetch(f"{http_url}/metrics").decode()
