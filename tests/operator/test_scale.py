"""A thousand Topics at once are ready within three minutes, and an operator with nothing to do uses next to nothing."""

from __future__ import annotations

import json
import time

import psutil
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import broker_state
from .resources import API_VERSION, Resources

TOPICS = 1000
READY_WITHIN_S = 180.0
#: Share of one core, over this time (s) at rest.
IDLE_SHARE = 0.05
IDLE_S = 15.0


@pytest.mark.timeout(600)
def test_a_thousand_topics_are_ready_in_three_minutes_and_rest_costs_nothing(
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
    began = time.monotonic()
    served.cluster.kubectl("create", "-f", "-", input=listed, timeout_s=READY_WITHIN_S)

    def all_ready() -> bool:
        paths = "-o=jsonpath={range .items[*]}{.status.conditions[?(@.type=='Ready')].status}{'\\n'}{end}"
        states = served.cluster.kubectl("get", "htopic", "-n", served.namespace, paths).split()
        return states.count("True") == TOPICS

    served.wait(f"{TOPICS} topics are ready", all_ready, READY_WITHIN_S)
    took = time.monotonic() - began
    print(f"{TOPICS} topics were ready after {took:.0f} s")
    assert took < READY_WITHIN_S
    assert len(broker_state(broker).topics) == TOPICS

    def counted() -> bool:
        parents = (("Namespace", "payments"), ("Tenant", "shop"))
        return all(served.status(kind, name).get("topics") == TOPICS for kind, name in parents)

    # The next refresh writes that; between two refreshes, the operator seems to be at rest.
    served.wait("their parents count them", counted, 30)
    process = psutil.Process(operator.pid)
    writes = [-1.0, operator.writes()]

    def at_rest() -> bool:
        writes.append(operator.writes())
        return writes[-1] == writes[-2] == writes[-3]

    served.wait("nothing is written any more", at_rest)
    used, since = sum(process.cpu_times()[:2]), time.monotonic()
    served.wait("it rested a while", lambda: time.monotonic() - since > IDLE_S, IDLE_S + 10)
    share = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - since)
    print(f"at rest it used {share:.1%} of a core, {process.memory_info().rss >> 20} MiB")
    assert share < IDLE_SHARE
    assert operator.writes() == writes[-1]

    # All in one request, which kubectl has no word for.
    served.cluster.kubectl("delete", "--raw", f"/apis/{API_VERSION}/namespaces/{served.namespace}/topics")
    served.wait("all topics are gone from the broker", lambda: not broker_state(broker).topics, READY_WITHIN_S)
    left = ("get", "htopic", "-n", served.namespace, "-o", "name")
    served.wait("and from the API server", lambda: not served.cluster.kubectl(*left))
