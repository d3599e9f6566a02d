"""A quota that is exceeded is visible everywhere: condition, event, metric."""

from __future__ import annotations

import re

from tests.e2e.guide import commands
from tests.e2e.waiting import conditions, events, wait_ready

from .conftest import Installation

ORDERS = "persistent://shop/payments/orders"
#: Those in the spec of the Topic, and the one with a resource of its own.
SUBSCRIPTIONS = ("billing", "warehouse", "fraud-check")


def exceeded(metrics: str) -> list[float]:
    """Return the broker's metrics of the quota by size for each partition of the topic."""
    samples = re.findall(r"^heliograph_backlog_quota_exceeded\{(.*?)\} (\S+)", metrics, re.MULTILINE)
    return [float(value) for labels, value in samples if f'topic="{ORDERS}' in labels and '"size"' in labels]


def test_an_exceeded_quota_is_a_condition_an_event_and_a_metric_and_so_is_its_end(installation: Installation) -> None:
    cluster, namespace, client = installation.cluster, installation.namespace, installation.client
    smaller = '{"spec": {"backlogQuota": {"destinationStorage": {"limit": "100Ki"}}}}'
    installation.kubectl("patch", "htopic", "orders", "--type=merge", "-p", smaller)
    wait_ready(cluster, namespace, "htopic/orders")
    assert set(exceeded(client.metrics())) == {0.0}

    # Ten messages fit into each of the four partitions.
    assert 10 <= client.fill(ORDERS) <= 40
    until_exceeded = commands("docs/operator.md", "The operator")[-1]
    installation.shell.run(until_exceeded, timeout_s=180)
    status = conditions(cluster.kubectl_json("get", "htopic", "orders", "-n", namespace))["QuotaExceeded"]
    assert status["reason"] == "SizeQuotaExceeded"
    cluster.wait_for(
        "its begin is reported",
        lambda: (
            "the backlog has reached its limit of 100Ki" in events(cluster, namespace, "orders", "SizeQuotaExceeded")
        ),
        namespace=namespace,
    )
    assert 1.0 in exceeded(client.metrics())

    for subscription in SUBSCRIPTIONS:
        client.heliograph("topics", "clear-backlog", ORDERS, "-s", subscription)
    installation.shell.run("kubectl wait --for=condition=QuotaExceeded=False --timeout=180s htopic/orders")
    assert set(exceeded(client.metrics())) == {0.0}
    cluster.wait_for(
        "its end is reported, too",
        lambda: events(cluster, namespace, "orders", "QuotaRecovered"),
        namespace=namespace,
    )
    installation.shell.run("kubectl apply -f examples/")
    wait_ready(cluster, namespace, "htopic/orders")
