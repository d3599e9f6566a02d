"""An operator that is killed at any moment leaves nothing half done: the next one goes on where things are."""

from __future__ import annotations

import json
import time

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import broker_state
from .resources import API_VERSION, Resources

TOPICS = 60
#: Lives of an operator (s) from when it leads: it reads, marks, applies, reports, and deletes in them.
LIVES_S = (0.05, 0.3, 0.8)


def _lives(operator: OperatorProcess) -> None:
    for life_s in LIVES_S:
        operator.start()
        # When it is killed is what is tested; there is nothing to wait for.
        time.sleep(life_s)
        operator.kill9()
    operator.start()


def test_an_operator_killed_again_and_again_makes_changes_and_deletes_all_the_same(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    operator.kill9()
    served.tenant()
    served.hns()

    def applied(ttl: str) -> None:
        reference = {"name": "payments"}
        specs = [{"namespaceRef": reference, "partitions": number % 3, "messageTTL": ttl} for number in range(TOPICS)]
        items = [served.manifest("Topic", f"t{number}", spec) for number, spec in enumerate(specs)]
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        served.cluster.kubectl("apply", "--server-side", "-f", "-", input=listed)

    def ready(generation: int) -> bool:
        found = served.cluster.kubectl_json("get", "htopic", "-n", served.namespace)["items"]
        states = [each.get("status", {}) for each in found]
        conditions = [(each["type"], each["status"]) for state in states for each in state.get("conditions", ())]
        assert conditions.count(("Ready", "True")) == TOPICS, f"{conditions.count(('Ready', 'True'))} are ready"
        return all(state["observedGeneration"] == generation for state in states)

    for generation, (ttl, ttl_ms) in enumerate((("1h", 3_600_000), ("2h", 7_200_000)), start=1):
        applied(ttl)
        _lives(operator)
        served.wait("all topics are ready", lambda generation=generation: ready(generation))
        topics = broker_state(broker).topics
        assert len(topics) == TOPICS
        assert {topic.policies.message_ttl_ms for topic in topics.values()} == {ttl_ms}
        operator.kill9()
    served.cluster.kubectl("delete", "--raw", f"/apis/{API_VERSION}/namespaces/{served.namespace}/topics")
    served.delete("Namespace", "payments")
    served.delete("Tenant", "shop")
    _lives(operator)
    served.wait_gone("Tenant", "shop")
    state = broker_state(broker)
    assert (state.topics, "shop" in state.tenants) == ({}, False)
    assert served.cluster.kubectl("get", "htopic,hns", "-n", served.namespace, "-o", "name") == ""
