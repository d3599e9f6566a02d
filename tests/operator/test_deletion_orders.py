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

    for step in range(len(KINDS)):
        # One command each time, as the next thing is to be deleted before the last is done.
        names = [f"{KINDS[order[step]]}/n{number}" for number, order in enumerate(ORDERS)]
        resources._kubectl("delete", "--wait=false", *names)
        if step == 1:
            operator.kill9()
        if step == 2:
            operator.start()
    for kind in KINDS:
        for number in range(len(ORDERS)):
            resources.wait_gone(kind, f"n{number}", within_s=60)
    # What was deleted while its BrokerCluster was there is gone from the broker.
    left = {topic.split("/")[2] for topic in broker_state(broker).topics}
    whole = {f"n{number}" for number, order in enumerate(ORDERS) if order[-1] == "BrokerCluster"}
    first = {f"n{number}" for number, order in enumerate(ORDERS) if order[0] == "BrokerCluster"}
    assert left & whole == set()
    assert first <= left
