"""The status follows the broker: backlog, quotas, one that does not answer; and is left alone where nothing moved."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.operator_process import OperatorProcess

from .at_rest import wait_for_refreshes, wait_until_at_rest
from .broker_side import consume, publish_to
from .resources import Resources

ORDERS = "persistent://shop/payments/orders"


def test_backlog_and_quota_are_shown_and_an_exceeded_quota_is_a_condition_and_an_event(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family(
        backlogQuota={"destinationStorage": {"limit": "10Ki", "policy": "producer_exception"}},
        subscriptions=["billing"],
    )
    assert served.status("Topic", "orders")["quotaUsed"] == "0%"
    publish_to(broker, ORDERS, 5, size=1000)
    status = served.wait("the backlog is shown", lambda: _with_messages(served, 5))
    assert 40 <= status["quotaUsedPercent"] <= 60
    assert status["quotaUsed"] == f"{status['quotaUsedPercent']}%"
    assert status["backlog"]["bytes"].endswith("Ki")
    assert {"oldestAge", "oldestTime"} < status["backlog"].keys()
    for kind, name in (("Namespace", "payments"), ("Tenant", "shop")):
        served.wait(f"{kind} adds up", lambda of=(kind, name): served.status(*of)["backlog"]["messages"] == 5)
    publish_to(broker, ORDERS, 4, size=1000)
    _refused(broker)
    served._kubectl("wait", "--for=condition=QuotaExceeded", "htopic", "orders", "--timeout=120s")
    assert served.condition("Topic", "orders", "QuotaExceeded")["reason"] == "SizeQuotaExceeded"
    reported = served.wait("an event reports it", lambda: served.events("orders", "SizeQuotaExceeded"))
    assert reported == ["the backlog has reached its limit of 10Ki"]
    consume(broker, ORDERS, "billing", 9)
    served.wait_reason("Topic", "orders", "QuotaWithinLimits", "QuotaExceeded")
    served.wait("its end is reported", lambda: served.events("orders", "QuotaRecovered"))


def _with_messages(served: Resources, messages: int) -> dict[str, object] | None:
    status = served.status("Topic", "orders")
    return status if status["backlog"]["messages"] == messages else None


def _refused(broker: BrokerProcess) -> None:
    with pytest.raises(pulsar.PulsarException, match=r"Quota|ProducerBlocked"):
        publish_to(broker, ORDERS, 3, size=1000)


def test_a_broker_away_is_told_asked_seldom_and_noticed_when_it_is_back(
    operator: OperatorProcess, served: Resources, broker: BrokerProcess
) -> None:
    served.family()
    since = served.condition("Topic", "orders")["lastTransitionTime"]
    broker.terminate()
    assert "Connection refused" in served.wait_reason("Topic", "orders", "BrokerUnreachable")
    served.wait_reason("Tenant", "shop", "BrokerUnreachable")
    began, before = time.monotonic(), operator.metric("heliograph_operator_broker_requests_total", result="unreachable")
    served.topic("another")
    served.wait_reason("Topic", "another", "BrokerUnreachable")
    served.wait("twenty seconds passed", lambda: time.monotonic() - began > 20)
    attempts = operator.metric("heliograph_operator_broker_requests_total", result="unreachable") - before
    assert attempts <= 1 + (time.monotonic() - began) / 10, f"{attempts} attempts for four resources"
    broker.start()
    served.wait_ready("Topic", "orders")
    served.wait_ready("Topic", "another")
    assert served.condition("Topic", "orders")["lastTransitionTime"] > since


def test_nothing_is_written_while_nothing_changes(operator: OperatorProcess, served: Resources) -> None:
    served.family()
    served.wait("the topic is counted", lambda: served.status("Tenant", "shop").get("topics") == 1)
    wait_until_at_rest(operator, served)
    before, versions = operator.writes(), _versions(served)
    wait_for_refreshes(operator, served, 5)
    assert operator.writes() == before
    assert _versions(served) == versions


def _versions(served: Resources) -> list[str]:
    named = (("Tenant", "shop"), ("Namespace", "payments"), ("Topic", "orders"))
    return [served.get(kind, name)["metadata"]["resourceVersion"] for kind, name in named]


def test_the_spec_and_others_annotations_are_never_written(operator: OperatorProcess, served: Resources) -> None:
    served.family(messageTTL="90m", retention={"time": "1d", "size": "1.5Gi"})
    body = served.get("Topic", "orders")
    assert body["spec"]["messageTTL"] == "90m"
    assert body["spec"]["retention"] == {"time": "1d", "size": "1.5Gi"}
    assert body["metadata"]["generation"] == 1
    own = {"heliograph.dev/cluster", "heliograph.dev/broker-object", "kubectl.kubernetes.io/last-applied-configuration"}
    assert set(body["metadata"]["annotations"]) == own
    assert body["metadata"]["finalizers"] == ["heliograph.dev/broker-data"]


def test_a_restarted_operator_changes_nothing(operator: OperatorProcess, served: Resources) -> None:
    served.family()
    served.wait("the status is whole", lambda: served.status("Tenant", "shop").get("topics") == 1)
    wait_until_at_rest(operator, served)
    before = _versions(served)
    operator.kill9()
    operator.start()
    assert operator.get("/healthz") == "ok\n"
    served.wait("all were reconciled", lambda: operator.metric("heliograph_operator_reconciles_total") >= 3)
    assert _versions(served) == before
