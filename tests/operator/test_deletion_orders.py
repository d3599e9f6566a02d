"""Whatever is deleted in whatever order, with the operator killed in the middle: it always ends."""

from __future__ import annotations

from itertools import permutations

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .broker_side import broker_state
from .resources import Resources

KINDS = {"BrokerCluster": "bcl", "Tenant": "htenant", "Namespace": "hns", "Topic": "htopic"}
ORDERS = list(permutations(KINDS))


def test_a_family_goes_in_each_of_the_twenty_four_orders(
    operator: OperatorProcess, resources: Resources, broker: BrokerProcess
) -> None:
    for number in range(len(ORDERS)):
        name = f"n{number}"
        resources.cluster_at(name, broker.http_url, broker.service_url)
        resources.tenant(name, clusterRef={"name": name})
        resources.hns(name, tenant=name)
        resources.topic(name, namespace=name, subscriptions=["reader"])
    for number in range(len(ORDERS)):
        resources.wait_ready("Topic", f"n{number}")
    assert len(broker_state(broker).topics) == len(ORDERS)

    last = [f"n{number}" for number, order in enumerate(ORDERS) if order[-1] == "BrokerCluster"]
    first = [f"n{number}" for number, order in enumerate(ORDERS) if order[0] == "BrokerCluster"]
    for step in range(len(KINDS)):
        if step == 3:
            # This BrokerCluster is not the operator's to hold until its tenants have gone.
            for name in last:
                resources.wait_gone("Tenant", name)
        # One command each time, as the next thing is to be deleted before the last is done.
        names = [f"{KINDS[order[step]]}/n{number}" for number, order in enumerate(ORDERS)]
        resources._kubectl("delete", "--wait=false", *names)
        if step == 1:
            operator.kill9()
        if step == 2:
            operator.start()
    resources.wait("everything is deleted", lambda: not resources._kubectl("get", "heliograph", "-o", "name"))
    # Objects deleted while their BrokerCluster existed are gone from the broker, and nothing else.
    left = {topic.split("/")[2] for topic in broker_state(broker).topics}
    assert left & set(last) == set()
    assert set(first) <= left
