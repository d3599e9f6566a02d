"""Calls of the admin REST for the fault tests."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

WITHIN_S = 20.0


def call(url: str, method: str = "GET", body: object = None) -> Any:
    """Return the decoded answer, None if it has no body. Raises :class:`OSError`; an HTTPError is one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def keep_nothing(http_url: str) -> None:
    """Let go at once what every subscription of ``public/default`` has acknowledged, not ledger by ledger."""
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    call(f"{http_url}/admin/v2/namespaces/public/default/retention", "POST", nothing)


def topic_stats(http_url: str, topic: str) -> Any:
    """Return the statistics of ``tenant/namespace/topic``."""
    return call(f"{http_url}/admin/v2/persistent/{topic}/stats")
