"""Calls of the admin REST for the fault tests."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

WITHIN_S = 20.0


def call(url: str, method: str = "GET", body: object = None) -> Any:
    """Return the decoded answer, None if it has no body. Raises :class:`OSError`; an HTTPError is one."""
    return _send(url, method, None if body is None else json.dumps(body).encode())


def apply(http_url: str, *resources: dict[str, Any]) -> None:
    """Apply resources, given without ``apiVersion``, as manifests are. Raises as :func:`call`."""
    documents = "\n---\n".join(json.dumps({"apiVersion": "heliograph.dev/v1alpha1", **each}) for each in resources)
    _send(f"{http_url}/heliograph/v1/apply", "POST", documents.encode())


def _send(url: str, method: str, data: bytes | None) -> Any:
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def keep_nothing(http_url: str) -> None:
    """Delete at once what every subscription of ``public/default`` has acknowledged, not ledger by ledger."""
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    call(f"{http_url}/admin/v2/namespaces/public/default/retention", "POST", nothing)


def topic_stats(http_url: str, topic: str) -> Any:
    """Return the statistics of ``tenant/namespace/topic``."""
    return call(f"{http_url}/admin/v2/persistent/{topic}/stats")
