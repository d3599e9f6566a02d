"""The commands of README and the operator's guide, as written; and messages through the broker that they create."""

from __future__ import annotations

from tests.e2e.guide import commands

from .conftest import Installation

ORDERS = "persistent://shop/payments/orders"


def test_a_client_in_a_pod_publishes_and_consumes_by_the_services_name(installation: Installation) -> None:
    messages = [f"order {number}" for number in range(20)]
    # The example has the subscription from the start, so nothing is missed.
    installation.client.publish(ORDERS, messages)
    assert sorted(installation.client.consume(ORDERS, "billing", 20, acknowledge=True)) == sorted(messages)
    assert sorted(installation.client.consume(ORDERS, "warehouse", 20, acknowledge=True)) == sorted(messages)


def test_what_the_operators_guide_shows_works(installation: Installation) -> None:
    *shown, until_exceeded = commands("docs/operator.md", "The operator")
    assert until_exceeded.startswith("kubectl wait --for=condition=QuotaExceeded")
    output = "".join(installation.shell.run(command) for command in shown)
    for expected in ("htopic/orders", "topic.heliograph.dev/departures", "QuotaWithinLimits"):
        assert expected in output or expected.replace("htopic", "topic.heliograph.dev") in output


def test_every_example_is_as_it_is_to_be_and_says_what_it_uses(installation: Installation) -> None:
    shown = installation.shell.run("kubectl get htopic orders departures orders-expired -o wide")
    lines = {line.split()[0]: line for line in shown.splitlines()[1:]}
    assert set(lines) == {"orders", "departures", "orders-expired"}
    for line in lines.values():
        assert line.split()[1:3] == ["True", "Reconciled"], line
    assert ORDERS in lines["orders"]
