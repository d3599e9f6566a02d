"""A thousand Topics at once cost a few requests each, and an operator with nothing to do does next to nothing.

``benchmarks/run-operator`` measures the time that it takes, and the share of a core.
"""

from __future__ import annotations

import json
import time

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .at_rest import wait_for_refreshes, wait_until_at_rest
from .broker_side import broker_state
from .resources import API_VERSION, Resources

TOPICS = 1000
#: Requests to the API server for each Topic, with those for the counts of its parents.
MOST_REQUESTS = 3
WITHIN_S = 600.0


@pytest.mark.timeout(1800)
def test_a_thousand_topics_cost_few_requests_each_and_rest_costs_none(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.tenant()
    served.hns(messageTTL="1d")
    served.wait_ready("Namespace", "payments")
    items = [
        served.manifest("Topic", f"orders-{number}", {"namespaceRef": {"name": "payments"}, "maxProducers": 7})
        for number in range(TOPICS)
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    began, before = time.monotonic(), _requests(operator)
    served.cluster.kubectl("create", "-f", "-", input=listed, timeout_s=WITHIN_S)

    def all_ready() -> bool:
        paths = "-o=jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}"
        states = served.cluster.kubectl("get", "htopic", "-n", served.namespace, paths).split()
        return states.count("True") == TOPICS

    served.wait(f"{TOPICS} topics are ready", all_ready, WITHIN_S)
    asked = _requests(operator) - before
    print(f"{TOPICS} topics were ready after {time.monotonic() - began:.0f} s and {asked:.0f} requests")
    assert asked < MOST_REQUESTS * TOPICS
    assert len(broker_state(broker).topics) == TOPICS

    def counted() -> bool:
        parents = (("Namespace", "payments"), ("Tenant", "shop"))
        return all(served.status(kind, name).get("topics") == TOPICS for kind, name in parents)

    served.wait("their parents count them", counted)
    wait_until_at_rest(operator, served)
    idle = _work(operator)
    wait_for_refreshes(operator, served, 5)
    assert _work(operator) == idle

    # All in one request, which kubectl has no word for.
    served.cluster.kubectl("delete", "--raw", f"/apis/{API_VERSION}/namespaces/{served.namespace}/topics")
    served.wait("all topics are gone from the broker", lambda: not broker_state(broker).topics, WITHIN_S)
    left = ("get", "htopic", "-n", served.namespace, "-o", "name")
    served.wait("and from the API server", lambda: not served.cluster.kubectl(*left))


def _requests(operator: OperatorProcess) -> float:
    """Return how often it has asked the API server."""
    return operator.metric("heliograph_operator_kubernetes_requests_total")


def _work(operator: OperatorProcess) -> tuple[float, float, float]:
    """Return how often it has asked the API server, reconciled, and sent a broker anything but a listing."""
    changes = [
        operator.metric("heliograph_operator_broker_requests_total", operation=each) for each in ("apply", "delete")
    ]
    return _requests(operator), operator.metric("heliograph_operator_reconciles_total"), sum(changes)
