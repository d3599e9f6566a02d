"""Thousands of generated requests against a real broker: whatever is asked, it answers as its description says.

Every operation gets requests that fit the description and requests that do not, most of them on things that exist, so
that they get past the first look-up. Each operation that may change something has a tenant of its own, and what it
destroys is recreated before the next request; those that only read share one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from zlib import crc32

import hypothesis
import pulsar
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from schemathesis.checks import not_a_server_error
from schemathesis.core import NOT_SET
from schemathesis.core.failures import FailureGroup
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.broker_process import BrokerProcess
from tests.support.clients import BATCH_WAITS_MS, connect, ignore_receipt

CASES = 5000
#: If hypothesis finds only one possible request, it is sent once: the others, and the plain ones, make up for it.
MARGIN = 1.05
SEED = 20_260_611
TIMEOUT_S = 30.0
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: Once one of these is accepted, the things it was sent to may be gone, or no longer what they were. Any other DELETE
#: takes away a setting.
DESTRUCTIVE_PATHS = ("/terminate", "/terminate/partitions", "/truncate")
DESTROYED_BY_DELETE = (
    "{tenant}",
    "{namespace}",
    "{topic}",
    "{subscription}",
    "{cluster}",
    "{role}",
    "{resourcegroup}",
    "/partitions",
    "/schema",
)
#: The bundle that is asked about has all topics: it is not given up, and as it is none of several, not split.
NEVER_ACCEPTED = (
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}/{bundle}",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split",
)
CLUSTER = "standalone"
ISOLATION = {
    "namespaces": ["acme/.*"],
    "primary": [".*"],
    "secondary": [],
    "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1", "usage_threshold": "80"}},
}


class World:
    """The things one operation's requests are about."""

    def __init__(self, session: requests.Session, http_url: str, client: pulsar.Client, tenant: str) -> None:
        self._session = session
        self._http_url = http_url
        self._client = client
        self.tenant = tenant
        self._last = {"ledgerId": 0, "entryId": 0}

    @classmethod
    def made(cls, session: requests.Session, http_url: str, client: pulsar.Client, tenant: str) -> World:
        """Return a world with everything in it."""
        world = cls(session, http_url, client, tenant)
        world.make()
        world.fill()
        return world

    def make(self) -> None:
        """Make what is not there; 409 says that it is."""
        namespace = f"{self.tenant}/shop"
        path = f"/admin/v2/persistent/{namespace}"
        self._put(f"/admin/v2/tenants/{self.tenant}", {"allowedClusters": [CLUSTER]})
        self._put(f"/admin/v2/namespaces/{namespace}", {})
        self._put(f"/admin/v2/resourcegroups/{self.tenant}", {})
        self._put("/heliograph/v1/roles/ops", {"limits": {"connections": 1000}})
        about_cluster = f"/admin/v2/clusters/{CLUSTER}"
        self._post(f"{about_cluster}/failureDomains/{self.tenant}", {"brokers": [f"{self.tenant}:8080"]})
        self._post(f"{about_cluster}/namespaceIsolationPolicies/{self.tenant}", ISOLATION)
        self._post(f"/admin/v2/namespaces/{namespace}/permissions/subscription/billing", ["ops"])
        self._put(f"{path}/orders", {})
        self._put(f"{path}/parts/partitions", 2)
        # One partition of it may have been deleted.
        self._post(f"{path}/parts/createMissedPartitions")
        self._put(f"/admin/v2/non-persistent/{namespace}/ticker", {})
        for topic in ("orders", "parts"):
            self._put(f"{path}/{topic}/subscription/billing", {"ledgerId": -1, "entryId": -1})
            self._post(f"/admin/v2/schemas/{namespace}/{topic}/schema", {"type": "STRING", "schema": ""})

    def fill(self) -> None:
        """Publish what the subscription has not seen: a batch, and single messages."""
        for batching in (True, False):
            producer = self._client.create_producer(
                f"persistent://{self.tenant}/shop/orders",
                batching_enabled=batching,
                batching_max_publish_delay_ms=BATCH_WAITS_MS,
            )
            for number in range(3):
                producer.send_async(b"%d" % number, ignore_receipt, properties={"n": str(number)})
            producer.flush()
            producer.close()
        last = f"{self._http_url}/admin/v2/persistent/{self.tenant}/shop/orders/lastMessageId"
        self._last = self._session.get(last, timeout=TIMEOUT_S).json()

    def _put(self, path: str, body: Any) -> None:
        answer = self._session.put(f"{self._http_url}{path}", json=body, timeout=TIMEOUT_S)
        assert answer.status_code in (204, 409), f"{path}: {answer.status_code} {answer.text}"

    def _post(self, path: str, body: Any = None) -> None:
        answer = self._session.post(f"{self._http_url}{path}", json=body, timeout=TIMEOUT_S)
        assert answer.ok, f"{path}: {answer.status_code} {answer.text}"

    def path_parameters(self, domain: str, topic: str) -> dict[str, Any]:
        """Return the names of what there is, by the names of the parameters."""
        return {
            "tenant": self.tenant,
            "namespace": "shop",
            "domain": domain,
            "topic": topic,
            "subscription": "billing",
            "cluster": CLUSTER,
            "resourcegroup": self.tenant,
            "failuredomain": self.tenant,
            "policy": self.tenant,
            "role": "ops",
            "setting": "superUserRoles",
            "broker": self._http_url.removeprefix("http://"),
            "bundle": "0x00000000_0xffffffff",
            "ledger": self._last["ledgerId"],
            "entry": self._last["entryId"],
            "position": 1,
            "version": 0,
            "timestamp": 0,
        }


@pytest.fixture
def schemathesis_broker(broker_factory: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    broker = broker_factory()
    broker.start()
    yield broker
    broker.close()


# Some three minutes on two free cores.
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_answer_is_as_described(schemathesis_broker: BrokerProcess) -> None:
    broker = schemathesis_broker
    with requests.Session() as session, closing(connect(broker.service_url)) as client:
        # Requests need no search of the environment for a proxy.
        session.trust_env = False
        _ask_everything(broker, session, client)
        ready = session.get(f"{broker.http_url}/health/ready", timeout=TIMEOUT_S)
        assert ready.status_code == 200, ready.text
        World.made(session, broker.http_url, client, "afterwards")
    assert broker.terminate() == 0
    assert errors_logged(broker) == []


def _ask_everything(broker: BrokerProcess, session: requests.Session, client: pulsar.Client) -> None:
    """Send every operation its share of the requests."""
    description = session.get(f"{broker.http_url}/admin/v2/openapi.json", timeout=TIMEOUT_S).json()
    schema = schemathesis.openapi.from_dict(description)
    schema.validate()
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) == sum(len(item) for item in description["paths"].values())
    examples = math.ceil(CASES * MARGIN / len(operations))
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    never_accepted: list[str] = []
    read = World.made(session, broker.http_url, client, "read")
    for index, operation in enumerate(operations):
        reads = operation.method.upper() == "GET"
        world = read if reads else World.made(session, broker.http_url, client, f"tenant-{index}")
        answered: Counter[int] = Counter()
        failures += _exercise(operation, world, broker, session, examples, answered)
        assert broker.running, f"the broker ended after {operation.label}; log:\n{broker.log_tail()}"
        statuses += answered
        may_succeed = operation.label not in NEVER_ACCEPTED and any(
            int(status) < 300 for status in operation.definition.raw["responses"]
        )
        if may_succeed and min(answered, default=999) >= 300:
            never_accepted.append(f"{operation.label}: {dict(answered)}")
    assert not failures, f"{len(failures)} answers are not as described:\n\n" + "\n\n".join(failures)
    assert statuses.total() >= CASES, statuses
    # Requests that never get past the first look-up would show nothing.
    assert not never_accepted, "\n".join(never_accepted)


def _exercise(
    operation: Any,
    world: World,
    broker: BrokerProcess,
    session: requests.Session,
    examples: int,
    answered: Counter[int],
) -> list[str]:
    """Send an operation its requests and count the statuses; returns what was wrong, if anything was."""
    is_delete = operation.method.upper() == "DELETE"
    destructive = operation.path.endswith(DESTRUCTIVE_PATHS + (DESTROYED_BY_DELETE if is_delete else ()))

    def send_one(case: Any) -> None:
        answer = case.call(base_url=broker.http_url, session=session, timeout=TIMEOUT_S)
        answered[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)
        if destructive and answer.status_code < 300:
            world.make()

    # An operation's requests are the same whatever other operations there are.
    @hypothesis.seed(SEED ^ crc32(operation.label.encode()))
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=_cases(operation, world))
    def send(case: Any) -> None:
        send_one(case)

    try:
        for case in _plain_cases(operation, world):
            send_one(case)
        send()
    except FailureGroup as failed:
        # The other operations are looked at all the same.
        return [f"{operation.label}: {found}" for found in failed.exceptions]
    return []


def _cases(operation: Any, world: World) -> strategies.SearchStrategy[Any]:
    """Mix requests that fit and that do not, on what exists (mostly) and on what does not."""
    names = {parameter.name for parameter in operation.path_parameters}
    more = bool(list(operation.query) or list(operation.body))
    parts = [operation.as_strategy(generation_mode=GenerationMode.POSITIVE)]
    if names or more:
        parts.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    topics = [
        ("persistent", "orders"),
        ("persistent", "parts"),
        ("persistent", "parts-partition-1"),
        ("non-persistent", "ticker"),
        ("persistent", "new"),
    ]
    for domain, topic in topics if "topic" in names else topics[:1]:
        there = {name: value for name, value in world.path_parameters(domain, topic).items() if name in names}
        parts.append(operation.as_strategy(generation_mode=GenerationMode.POSITIVE, path_parameters=there))
        if more:
            parts.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE, path_parameters=there))
        if topic == "orders" and list(operation.query):
            # With what is asked of it left to the defaults it finds what there is.
            plain = operation.as_strategy(generation_mode=GenerationMode.POSITIVE, path_parameters=there)
            parts += [plain.map(_without_query)] * 2
    for example in _examples(operation):
        # As often as all the others together: hypothesis tells strategies apart by identity, and flattens nested ones.
        parts += [
            operation.as_strategy(path_parameters=where, body=example).map(_without_query)
            for where in _places(operation, world)
            for _ in parts
        ]
    return strategies.one_of(parts)


def _plain_cases(operation: Any, world: World) -> Iterator[Any]:
    """Make the requests that nothing is wrong with, whatever is generated besides: one for each place and example."""
    for where in _places(operation, world):
        if len(where) < len(list(operation.path_parameters)):
            continue
        for example in _examples(operation) or [NOT_SET]:
            yield operation.Case(path_parameters=where, body=example)
            if any(parameter.name == "force" for parameter in operation.query):
                # Without it what is not empty stays, and few generated requests have it.
                yield operation.Case(path_parameters=where, query={"force": "true"}, body=example)


def _places(operation: Any, world: World) -> list[dict[str, Any]]:
    """Return where a good request may go: PUT creates in some places, and changes what there is in others."""
    names = {parameter.name for parameter in operation.path_parameters}
    last = operation.path.rpartition("/")[2]
    topic = "parts" if last == "partitions" or last.startswith("partitioned-") else "orders"
    there = {name: value for name, value in world.path_parameters("persistent", topic).items() if name in names}
    return [there, there | _new(there)] if operation.method == "put" else [there]


def _without_query(case: Any) -> Any:
    """Flags that may be given can be a reason to refuse a good body."""
    case.query = {}
    return case


def _examples(operation: Any) -> list[Any]:
    """Return the body that the description shows, if it shows one: it names what there is, as hardly another does."""
    content = operation.definition.raw.get("requestBody", {}).get("content", {})
    return [media["example"] for media in content.values() if "example" in media]


def _new(there: dict[str, Any]) -> dict[str, Any]:
    """Return the name of something to be created, in the innermost place the path has."""
    for name in ("subscription", "topic", "namespace", "tenant"):
        if name in there:
            return {name: f"new-{there[name]}"}
    return {}


def errors_logged(broker: BrokerProcess) -> list[str]:
    """Return the lines of the broker's log that say something went wrong in it."""
    lines = broker.log_path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if json.loads(line)["level"] in ("error", "critical")]
