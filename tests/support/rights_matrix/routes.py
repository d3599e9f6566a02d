"""Every route of the HTTP port, every kind of role that asks for it, and what each has.

What a route needs comes from ``http_rights.yaml``, what a role has from :data:`HAS`; neither is read from the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

_TABLE: Final = Path(__file__).parents[2] / "integration" / "http_rights.yaml"
TOPIC: Final = "persistent://shop/payments/orders"

#: What stands for each parameter of a path.
_NAMES: Final = {
    "domain": "persistent",
    "tenant": "shop",
    "namespace": "payments",
    "topic": "orders",
    "subscription": "closed",
    "role": "somebody",
    "cluster": "standalone",
    "bundle": "0x00000000_0x40000000",
    "broker": "127.0.0.1:8080",
    "messages": "1",
    "seconds": "1",
    "timestamp": "1",
    "ledger": "0",
    "entry": "0",
    "position": "1",
    "version": "0",
}

_MESSAGE: Final = '{"ledgerId": 1, "entryId": 1}'
#: By the end of their path, bodies of POST and PUT without which Pulsar looks for nobody's rights.
_BODIES: Final = {
    **dict.fromkeys(("deduplication", "encryptionRequired", "isAllowAutoUpdateSchema"), "true"),
    **dict.fromkeys(("replicatedSubscriptionStatus", "schemaValidationEnforced"), "true"),
    **dict.fromkeys(("maxConsumers", "maxConsumersPerSubscription", "maxConsumersPerTopic", "maxMessageSize"), "100"),
    **dict.fromkeys(("maxProducers", "maxProducersPerTopic", "maxSubscriptionsPerTopic"), "100"),
    **dict.fromkeys(("maxTopicsPerNamespace", "maxUnackedMessagesPerConsumer", "messageTTL"), "100"),
    **dict.fromkeys(("maxUnackedMessagesPerSubscription", "compactionThreshold", "subscriptionExpirationTime"), "100"),
    **dict.fromkeys(("offloadDeletionLagMs", "offloadThreshold", "offloadThresholdInSeconds"), "100"),
    **dict.fromkeys(("expireMessages", "offload", "resetcursor"), _MESSAGE),
    "antiAffinity": '"group"',
    "migration": "false",
    "partitions": "2",
    "properties": '{"owner": "billing"}',
}

_CONSUMES: Final = {"lookup on the topic", "consume on the topic", "consume with the subscription of the topic"}
_ALL_OF_TOPIC: Final = {
    *_CONSUMES,
    "produce on the topic",
    "consume with every subscription of the topic",
    "admin of the topic",
    "admin of every topic in the body",
}
_ALL_OF_NAMESPACE: Final = {
    *_ALL_OF_TOPIC,
    "lookup on the namespace",
    "consume with the subscription of the namespace",
    "consume with every subscription of the namespace",
    "admin of the namespace",
}
_EVERYTHING: Final = {
    *_ALL_OF_NAMESPACE,
    "admin of the tenant",
    "admin of the tenant in the query",
    "monitor",
    "backup",
    "superuser",
}

#: What each role has beside an identity. The subscription "closed" is granted to "reader" and "owner" only.
HAS: Final[dict[str, set[str]]] = {
    "foreign": set(),
    "neighbour": set(),
    "writer": {"lookup on the topic", "produce on the topic"},
    "producer": {"lookup on the topic", "lookup on the namespace", "produce on the topic"},
    "reader": {*_CONSUMES, "consume with every subscription of the topic"},
    "outsider": _CONSUMES - {"consume with the subscription of the topic"},
    "consumer": {*_CONSUMES, "lookup on the namespace"} - {"consume with the subscription of the topic"},
    "owner": {
        *_CONSUMES,
        "lookup on the namespace",
        "consume with the subscription of the namespace",
        "consume with every subscription of the topic",
        "consume with every subscription of the namespace",
    },
    "keeper": _ALL_OF_TOPIC,
    "steward": _ALL_OF_NAMESPACE,
    "boss": _EVERYTHING - {"monitor", "backup", "superuser"},
    "monitor": {"monitor"},
    "saver": {"backup"},
    "root": _EVERYTHING,
}
GRANTS: Final[dict[str, Any]] = {
    "namespace_auth": {
        "producer": ["produce"],
        "consumer": ["consume"],
        "owner": ["consume"],
        "steward": ["admin"],
    },
    "destination_auth": {
        TOPIC: {"writer": ["produce"], "reader": ["consume"], "outsider": ["consume"]},
        f"{TOPIC[:-3]}*": {"keeper": ["admin"]},
    },
    "subscription_auth_roles": {"closed": ["reader", "owner"]},
}


class Route(NamedTuple):
    """A route, and the right that it needs."""

    method: str
    path: str
    needs: str


def _routes() -> Iterator[Route]:
    for needs, paths in yaml.safe_load(_TABLE.read_text(encoding="utf-8")).items():
        for path, methods in paths.items():
            for method in methods.split(", "):
                yield Route(method, path, needs)


ROUTES: Final = tuple(_routes())


def request_of(route: Route, **names: str) -> tuple[str, str | None]:
    """Return the path and the body that ask for a route of the objects with these names."""
    known = _NAMES | names
    # The bundles of a namespace's non-persistent topics have a path of their own.
    path = re.sub(r"\{(\w+)\}", lambda found: known.get(found[1], "x"), route.path)
    if route.needs == "admin of the tenant in the query":
        return f"{path}?tenant={known['tenant']}", None
    if route.needs == "admin of every topic in the body":
        topic = f"persistent://{known['tenant']}/{known['namespace']}/{known['topic']}"
        return path, json.dumps([{"topic": topic, "role": "somebody", "actions": ["consume"]}])
    return path, _BODIES.get(path.rpartition("/")[2]) if route.method in ("POST", "PUT") else None
