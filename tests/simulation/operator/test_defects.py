"""Small histories, each of which finds a defect that is put back, and nothing without it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.run import quiet

from .defects import DEFECTS, put_back
from .history import ARCHIVE, ARCHIVES
from .run import run
from .world import Operation

ORDERS = "persistent://shop/pay/orders"
#: Delays are drawn from the seed: one of these has those that matter.
SEEDS = 40


def _new(kind: str, resource: str, pause_s: float = 5.0, notes: dict[str, str] | None = None, **spec: Any) -> Operation:
    return Operation("create", (kind, resource, spec, notes or {}), pause_s)


def _does(kind: str, *arguments: Any, pause_s: float = 5.0) -> Operation:
    return Operation(kind, arguments, pause_s)


def _topic(resource: str, reference: str = "pay", pause_s: float = 5.0, notes: Any = None, **spec: Any) -> Operation:
    return _new("Topic", resource, pause_s, notes, **{"name": "orders", "namespaceRef": {"name": reference}, **spec})


def _subscription(**spec: Any) -> Operation:
    return _new("Subscription", "billing", name="billing", topicRef={"name": "orders"}, **spec)


def _elsewhere(pause_s: float = 5.0, **spec: Any) -> Operation:
    return _topic("apps/orders", pause_s=pause_s, **{"namespaceRef": {"name": "pay", "namespace": "team"}, **spec})


SHOP = _new("Tenant", "shop", pause_s=1.0)
PAY = _new("Namespace", "pay", name="pay", tenantRef={"name": "shop"})
CONSENT = {"kubernetesNamespaces": ["apps"], "tenants": ["shop"]}
MESSAGES = _does("publish", ORDERS, 1000)

ALLOWED = _does("edit", "BrokerCluster", "main", {"archives": ARCHIVES[0]}, pause_s=1.0)

SCENARIOS = {
    "archive-without-consent": [SHOP, PAY, _topic("orders", archive=ARCHIVE)],
    "archive-goes-on": [
        SHOP,
        PAY,
        ALLOWED,
        _topic("orders", archive=ARCHIVE),
        _does("edit", "BrokerCluster", "main", {"archives": None}),
    ],
    "refused-is-own": [
        SHOP,
        PAY,
        _does("broker_full", True),
        _topic("orders"),
        MESSAGES,
        _does("broker_full", False),
        _does("delete", "Topic", "orders", pause_s=60.0),
    ],
    "topic-takes-policies": [
        SHOP,
        PAY,
        _topic("orders"),
        _subscription(messageTTL="7d"),
        _does("edit", "Topic", "orders", {"messageTTL": "1m"}),
    ],
    "subscriptions-not-below": [
        SHOP,
        PAY,
        _topic("orders"),
        _subscription(),
        MESSAGES,
        _does("delete", "Topic", "orders"),
    ],
    "deletions-by-watch-only": [
        SHOP,
        PAY,
        _topic("orders", notes={"managed": "false"}),
        MESSAGES,
        _does("watches_lose_news", True),
        _does("delete", "Topic", "orders"),
        _does("watches_lose_news", False),
        _does("delete", "Namespace", "pay"),
    ],
    "deletion-by-the-watch": [
        SHOP,
        PAY,
        _topic("orders", deletionPolicy="Delete"),
        MESSAGES,
        _does("broker_away", True),
        _does("delete", "Topic", "orders"),
        _does("watches_lose_news", True),
        _does("annotate", "Topic", "orders", "paused", "true"),
        _does("broker_away", False, pause_s=60.0),
        _does("watches_lose_news", False),
    ],
    "deletion-repeated": [
        SHOP,
        PAY,
        _topic("orders", deletionPolicy="Delete"),
        MESSAGES,
        _does("delete", "Topic", "orders", pause_s=0.3),
        _does("api_server_away", True),
        MESSAGES,
        _does("api_server_away", False),
    ],
    "index-when-reconciled": [
        SHOP,
        PAY,
        _topic("orders", messageTTL="7d"),
        _topic("a-orders", messageTTL="1m"),
        MESSAGES,
        _does("stop_operator", pause_s=0.0),
        _does("start_operator"),
    ],
    "older-wins": [
        SHOP,
        PAY,
        _topic("a-orders", messageTTL="1m", notes={"managed": "false"}),
        _topic("orders", messageTTL="7d"),
        # A listing of the broker is fresh then, so that nothing has to wait for one.
        _does("publish", ORDERS, 1000, pause_s=15.0),
        _does("annotate", "Topic", "a-orders", "managed", None),
    ],
    "children-by-reference": [
        SHOP,
        _new("Namespace", "dflt", name="pay", tenantRef={"name": "shop"}),
        _topic("orders", "shop/pay", deletionPolicy="Retain"),
        MESSAGES,
        _does("delete", "Namespace", "dflt"),
    ],
    "only-held-children": [
        SHOP,
        PAY,
        _topic("orders"),
        MESSAGES,
        _does("annotate", "Topic", "orders", "managed", "false"),
        _does("annotate", "Namespace", "pay", "holds-retained", None),
        _does("delete", "Namespace", "pay"),
    ],
    "newest-generation": [
        SHOP,
        PAY,
        _topic("orders", messageTTL="7d"),
        *(
            _does("edit", "Topic", "orders", {"messageTTL": ttl}, pause_s=0.2)
            for ttl in ("1m", "1h", "2h", "3h", "4h", "5h", "6h", "7h")
        ),
    ],
    "cluster-by-spec": [SHOP, PAY, _topic("orders"), _new("BrokerCluster", "other")],
    "cluster-of-held-only": [
        SHOP,
        PAY,
        # The broker has the namespace then.
        _does("wait"),
        MESSAGES,
        _topic("orders", "shop/pay", notes={"managed": "false"}),
        _new("BrokerCluster", "other"),
        _does("delete", "Namespace", "pay"),
    ],
    "consent-not-asked": [SHOP, PAY, _elsewhere(messageTTL="1m")],
    "consent-asked-once": [
        _does("consent", [CONSENT]),
        SHOP,
        PAY,
        _elsewhere(messageTTL="1m"),
        _does("consent", []),
        _does("edit", "Topic", "apps/orders", {"messageTTL": "1h"}),
    ],
}
KINDS = {
    "deletion-by-the-watch": "messages are lost",
    "deletion-repeated": "messages are lost",
    "archive-without-consent": "an archive goes on",
    "archive-goes-on": "an archive goes on",
    "refused-is-own": "messages are lost",
    "topic-takes-policies": "policies of another",
    "subscriptions-not-below": "messages are lost",
    "deletions-by-watch-only": "a deletion hangs",
    "index-when-reconciled": "two owners",
    "older-wins": "two owners",
    "children-by-reference": "messages are lost",
    "only-held-children": "messages are lost",
    "newest-generation": "a false status",
    "cluster-by-spec": "a false status",
    "cluster-of-held-only": "messages are lost",
    "consent-not-asked": "without consent",
    "consent-asked-once": "without consent",
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_defect_is_found_by_its_history_and_nothing_without_it(name: str) -> None:
    with quiet():
        with put_back(name):
            found = (run(seed, SCENARIOS[name]).violation for seed in range(SEEDS))
            violation = next((each for each in found if each is not None), None)
        assert violation is not None, DEFECTS[name].what
        assert violation.kind == KINDS[name]
        for seed in range(3):
            assert run(seed, SCENARIOS[name]).violation is None


def test_every_defect_has_a_history_that_finds_it() -> None:
    assert SCENARIOS.keys() == KINDS.keys() == DEFECTS.keys()
