"""Random histories: a seed determines what people do, and what fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from .world import ELSEWHERE, LEADER, NAMESPACE, Operation

#: Operations of a history.
LENGTH = 40
#: Kubernetes names for the same object of the broker, first and last in any order by name.
TENANTS = ("a-shop", "shop", "z-shop")
NAMESPACES = ("a-pay", "pay", "z-pay")
TOPICS = ("a-orders", "orders", "z-orders")
SUBSCRIPTIONS = ("a-billing", "billing", "z-billing")
TTLS = {"1m": 60_000, "1h": 3_600_000, "7d": 604_800_000}
POLICIES = ("Delete", "Delete", None, "DeleteIfEmpty", "Retain")
ARCHIVE: dict[str, Any] = {"schedule": "@daily", "path": "/archive", "volumeClaimRef": {"name": "files"}}
#: Consent to archives: all that Topics have, none, and to others than those.
ARCHIVES: tuple[dict[str, Any] | None, ...] = (
    {"enabled": True, "volumeClaims": ["files"]},
    {"enabled": False, "volumeClaims": ["files"]},
    {"enabled": True, "volumeClaims": ["others"]},
    None,
)
Made = list[tuple[str, tuple[Any, ...]]]
_PAUSES_S = (0.0, 0.01, 0.05, 0.2, 1.0, 1.0, 5.0, 20.0, 40.0)
_ALL = (
    *(("Tenant", name) for name in TENANTS),
    *(("Namespace", name) for name in NAMESPACES),
    *(("Topic", name) for name in TOPICS),
    *(("Subscription", name) for name in SUBSCRIPTIONS),
    ("Tenant", f"{ELSEWHERE}/shop"),
    ("Namespace", f"{ELSEWHERE}/pay"),
    ("Topic", f"{ELSEWHERE}/orders"),
    ("Topic", f"{ELSEWHERE}/z-orders"),
    ("Subscription", f"{ELSEWHERE}/billing"),
)
_MAIN = {"name": "main", "namespace": NAMESPACE}
_HERE = {"kubernetesNamespaces": [ELSEWHERE], "tenants": ["shop"]}
#: What the BrokerCluster may consent to; nothing, half of it, and all.
CONSENTS: tuple[list[dict[str, Any]], ...] = (
    [],
    [_HERE],
    [_HERE | {"kinds": ["Topic"]}],
    [_HERE | {"tenants": ["bank"]}, _HERE | {"kubernetesNamespaces": ["others"]}],
    [_HERE, _HERE | {"kinds": ["Tenant"]}],
    [_HERE | {"kinds": ["Tenant", "Namespace", "Topic", "Subscription"]}],
)


def generate(seed: int, length: int = LENGTH, *, operators: int = 1) -> list[Operation]:
    """Return the history of a seed, for one operator or for several that share a Lease."""
    rng = random.Random(f"history {seed}")
    # Most histories begin with a family that stands, and go on with what happens to it.
    operations = [] if rng.random() < 0.2 else _family(rng)
    makers: tuple[tuple[Callable[[random.Random], Made], int], ...] = (
        (_create, 8),
        (_edit, 4),
        (_annotate, 2),
        (_delete, 6),
        (_recreate, 1),
        (_publish, 4),
        (_subscribe, 1),
        (_name_in_topic, 2),
        (_drift, 1),
        (_restart, 4),
        (_trouble, 2),
        (_second_cluster, 1),
        (_consent, 2),
        (_archive, 3),
    )
    if operators > 1:
        makers = (*makers, (partial(_leadership, operators), 10))
    weights = [weight for _, weight in makers]
    while len(operations) < length:
        maker = rng.choices([make for make, _ in makers], weights)[0]
        operations += [Operation(kind, arguments, _pause(rng)) for kind, arguments in maker(rng)]
    return operations


def _pause(rng: random.Random) -> float:
    return 700.0 if rng.random() < 0.02 else rng.choice(_PAUSES_S)


def _family(rng: random.Random) -> list[Operation]:
    found = [
        *(_new(rng, "Tenant", rng.choice(TENANTS)) + _new(rng, "Namespace", rng.choice(NAMESPACES))),
        *_new(rng, "Topic", rng.choice(TOPICS)),
    ]
    if rng.random() < 0.6:
        found += _new(rng, "Subscription", rng.choice(SUBSCRIPTIONS))
    if rng.random() < 0.5:
        found = [("consent", (CONSENTS[-1],)), *found]
        for made in found[1:]:
            if rng.random() < 0.3:
                # One more for the same object, in the other Kubernetes namespace.
                found += _new(rng, made[1][0], f"{ELSEWHERE}/{made[1][1].rpartition('-')[2]}")
    if rng.random() < 0.7:
        found = [("edit", ("BrokerCluster", "main", {"archives": ARCHIVES[0]})), *found]
    operations = [Operation(kind, arguments, 1.0) for kind, arguments in found]
    operations.append(Operation("publish", ("persistent://shop/pay/orders", 1000), 20.0))
    return operations


def _new(rng: random.Random, kind: str, name: str) -> Made:
    ttl = rng.choice(list(TTLS))
    spec: dict[str, Any] = {"deletionPolicy": rng.choice(POLICIES)}
    if kind == "Tenant":
        spec |= {"name": "shop", "adminRoles": [ttl]} | rng.choice(({}, {"clusterRef": {"name": "main"}}))
    elif kind == "Namespace":
        spec |= {"name": "pay", "tenantRef": {"name": rng.choice(TENANTS)}, "messageTTL": ttl}
    elif kind == "Subscription":
        reference = rng.choice((*TOPICS, "shop/pay/orders", "shop/pay/orders"))
        spec |= {"name": "billing", "topicRef": {"name": reference}, "messageTTL": ttl}
        spec |= rng.choice(({}, {"position": "earliest"}, {"adoptionPolicy": "Replace"}))
    else:
        reference = rng.choice((*NAMESPACES, "shop/pay", "shop/pay"))
        spec |= {"name": "orders", "namespaceRef": {"name": reference}, "messageTTL": ttl}
        spec |= rng.choice(({}, {}, {"partitions": 2}))
        spec |= rng.choice(({}, {"archive": ARCHIVE}))
        spec |= {"subscriptions": ["billing"]} if rng.random() < 0.15 else {}
    if name.startswith(ELSEWHERE):
        spec |= _elsewhere(rng, spec)
    notes = {"managed": "false"} if rng.random() < 0.05 else {}
    return [("create", (kind, name, spec, notes))]


def _elsewhere(rng: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the references of a resource that is not in the Kubernetes namespace of its BrokerCluster."""
    for field, in_broker in (("tenantRef", "shop"), ("namespaceRef", "shop/pay"), ("topicRef", "shop/pay/orders")):
        if field in spec:
            there: dict[str, Any] = {field: spec[field] | {"namespace": NAMESPACE}}
            broker_name = {"name": in_broker}
            by_name: dict[str, Any] = {field: broker_name, "clusterRef": _MAIN}
            missing: dict[str, Any] = {field: {"name": "pay"}}
            return rng.choice((there, there, by_name, missing))
    return {"clusterRef": _MAIN}


def _consent(rng: random.Random) -> Made:
    return [("consent", (rng.choice(CONSENTS),))]


def _archive(rng: random.Random) -> Made:
    if rng.random() < 0.5:
        return [("edit", ("BrokerCluster", "main", {"archives": rng.choice(ARCHIVES)}))]
    return [
        ("edit", (*rng.choice([each for each in _ALL if each[0] == "Topic"]), {"archive": rng.choice((ARCHIVE, None))}))
    ]


def _create(rng: random.Random) -> Made:
    return _new(rng, *rng.choice(_ALL))


def _edit(rng: random.Random) -> Made:
    kind, name = rng.choice(_ALL)
    if rng.random() < 0.3:
        return [("edit", (kind, name, {"deletionPolicy": rng.choice(POLICIES)}))]
    ttl = rng.choice(list(TTLS))
    spec: dict[str, Any] = {"adminRoles": [ttl]} if kind == "Tenant" else {"messageTTL": ttl}
    if kind == "Topic" and rng.random() < 0.2:
        spec["partitions"] = 4
    return [("edit", (kind, name, spec))]


def _annotate(rng: random.Random) -> Made:
    kind, name = rng.choice(_ALL)
    note, text = rng.choice((("paused", "true"), ("managed", "false"), ("paused", None), ("managed", None)))
    return [("annotate", (kind, name, note, text))]


def _delete(rng: random.Random) -> Made:
    return [("delete", rng.choice(_ALL))]


def _recreate(rng: random.Random) -> Made:
    kind, name = rng.choice(_ALL)
    return [("recreate", (kind, name, {"deletionPolicy": rng.choice(POLICIES)}))]


def _publish(rng: random.Random) -> Made:
    return [("publish", (f"persistent://shop/pay/{rng.choice(('orders', 'orders', 'stray'))}", rng.randint(1, 100)))]


def _subscribe(rng: random.Random) -> Made:
    return [("subscribe", ("persistent://shop/pay/orders", "billing"))]


def _name_in_topic(rng: random.Random) -> Made:
    """Let a Topic name the subscription that others describe, or not any more."""
    kind, name = rng.choice([each for each in _ALL if each[0] == "Topic"])
    return [("edit", (kind, name, {"subscriptions": rng.choice((["billing"], None, None))}))]


def _drift(rng: random.Random) -> Made:
    return [("drift", ("persistent://shop/pay/orders", 5000))]


def _restart(rng: random.Random) -> Made:
    """End the operator, let people do something meanwhile, and start it."""
    meanwhile = rng.choice((_create, _delete, _edit, _annotate, _publish))
    between = [made for _ in range(rng.choice((0, 0, 1, 2))) for made in meanwhile(rng)]
    return [(rng.choice(("stop_operator", "kill_operator")), ()), *between, ("start_operator", ())]


def _trouble(rng: random.Random) -> Made:
    kind = rng.choice(("api_server_away", "broker_away", "broker_full", "watches_lose_news"))
    meanwhile = (_create, _delete, _edit, _publish)
    between = [made for _ in range(rng.choice((0, 1, 2, 3))) for made in rng.choice(meanwhile)(rng)]
    return [(kind, (True,)), *between, (kind, (False,))]


def _leadership(operators: int, rng: random.Random) -> Made:
    """Make one operator lose the leadership, or nearly, while people go on."""
    number = rng.choice((LEADER, rng.randrange(operators)))
    meanwhile = rng.choice((_create, _delete, _edit, _annotate, _publish, _recreate))
    between = [made for _ in range(rng.choice((0, 1, 2))) for made in meanwhile(rng)]
    for_s = rng.choice((3.0, 9.0, 14.0, 16.0, 30.0, 90.0))
    trouble: Made = rng.choice(
        (
            [("freeze_operator", (number, for_s))],
            [("freeze_operator", (number, for_s))],
            [("cut_operator", (number, for_s))],
            [("set_clock", (number, rng.choice((-3600.0, 0.0, 3600.0))))],
            [("kill_operator", (number,)), *meanwhile(rng), ("start_all", ())],
            [("stop_operator", (number,)), *meanwhile(rng), ("start_all", ())],
        )
    )
    return [*meanwhile(rng), *trouble, *between]


def _second_cluster(rng: random.Random) -> Made:
    name = rng.choice(("default", "other"))
    return rng.choice(
        ([("create", ("BrokerCluster", name, {}, {}))], [("delete", ("BrokerCluster", name))]),
    )
