"""Lookups by the name of a listener, by its port, and over HTTP; the same questions for a real Pulsar and for ours.

``python -m tests.support.listener_questions PULSAR-URL LISTENER-URL HTTP-URL`` prints the answers of a running broker.
Its advertised listeners are ``internal`` (PULSAR-URL, the internal one) and ``external`` (LISTENER-URL, whose port is
bound for it).
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from .wire_client import WireClient

_TOPIC = "persistent://public/default/looked-up"
_PATH = "/lookup/v2/topic/persistent/public/default/looked-up"
_HEADER = "X-Pulsar-ListenerName"
Type = wire.BaseCommand


def answers_of(internal_url: str, external_url: str, http_url: str) -> dict[str, Any]:
    """Return the answers to all questions, with INTERNAL, EXTERNAL and HTTP in the place of the addresses."""
    found: dict[str, Any] = {}
    for port, url in (("internal", internal_url), ("external", external_url)):
        for name in (None, "", "internal", "external", "absent"):
            fields = {} if name is None else {"advertised_listener_name": name}
            with WireClient(url) as client:
                answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=_TOPIC, **fields)
            found[f"port {port}, name {name!r}"] = [
                wire.CommandLookupTopicResponse.LookupType.Name(answer.response),
                answer.brokerServiceUrl,
                answer.brokerServiceUrlTls,
                wire.ServerError.Name(answer.error) if answer.HasField("error") else None,
            ]
    for parameter in (None, "", "internal", "external", "absent"):
        for header in (None, "external", "absent"):
            found[f"HTTP, parameter {parameter!r}, header {header!r}"] = _over_http(http_url, parameter, header)
    text = json.dumps(found)
    for url, word in ((internal_url, "INTERNAL"), (external_url, "EXTERNAL"), (http_url, "HTTP")):
        text = text.replace(url, word)
    return dict(json.loads(text))


def _over_http(http_url: str, parameter: str | None, header: str | None) -> list[Any]:
    query = "" if parameter is None else f"?listenerName={urllib.parse.quote(parameter)}"
    request = urllib.request.Request(http_url + _PATH + query)
    if header is not None:
        request.add_header(_HEADER, header)
    try:
        with urllib.request.urlopen(request) as answered:
            document = json.loads(answered.read())
        return [answered.status, document["brokerUrl"], document.get("nativeUrl"), document.get("brokerUrlSsl")]
    except urllib.error.HTTPError as refused:
        with refused:
            return [refused.code]


if __name__ == "__main__":
    print(json.dumps(answers_of(*sys.argv[1:4]), indent=2))
