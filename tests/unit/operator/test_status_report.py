"""A status is written once for each change of it, and Events report the changes that concern people."""

from __future__ import annotations

from typing import Any

from heliograph_operator.act.status_report import named, report, report_drift, report_policies
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.resource_stats import ResourceStats
from heliograph_operator.objects.conditions import POLICIES_APPLIED, READY, Reason, Verdict, condition, ready
from heliograph_operator.objects.kinds import Key

from .api_server import ApiServer, resource_of
from .bodies import cluster, topic

TOPIC = Key("Topic", "team", "orders")
CLUSTER = Key("BrokerCluster", "team", "main")
READY_NOW = ready(Reason.RECONCILED, "", "True")
APPLIED = Verdict(POLICIES_APPLIED, "True", Reason.RECONCILED, "")


def _written(server: ApiServer, key: Key) -> dict[str, Any]:
    status: dict[str, Any] = server.objects[key]["status"]
    return status


async def test_the_same_report_is_written_once_and_small_movements_wait() -> None:
    server = ApiServer(topic())
    context = server.context()
    for messages in (1000, 1000, 1001):
        resource = resource_of(context, TOPIC)
        await report_policies(context, resource, [READY_NOW], "persistent://a/b/c", ResourceStats(messages))
    assert len(server.patches) == 1
    assert _written(server, TOPIC)["backlog"]["messages"] == 1000
    await report_policies(context, resource, [READY_NOW], "persistent://a/b/c", ResourceStats(2000))
    assert _written(server, TOPIC)["backlog"]["messages"] == 2000


async def test_what_usually_passes_within_a_second_is_no_event_and_a_problem_is() -> None:
    server = ApiServer(topic())
    context = server.context()
    for verdict in (
        ready(Reason.PARENT_NOT_READY, "the broker has no namespace a/b yet"),
        READY_NOW,
        ready(Reason.REFUSED, "too many topics"),
        READY_NOW,
    ):
        await report_policies(context, resource_of(context, TOPIC), [verdict])
    assert server.events == [
        ("Refused", "too many topics"),
        ("Reconciled", "the broker matches the resource"),
    ]


async def test_a_field_of_none_is_removed_and_the_generation_is_that_of_the_reconcile() -> None:
    server = ApiServer(cluster())
    context = server.context()
    resource = resource_of(context, CLUSTER)
    server.change(CLUSTER, generation=2)
    context.cache.put(server.objects[CLUSTER])
    verdict = Verdict(READY, "False", ClusterReason.STOPPED, "spec.replicas is 0: there is no broker")
    await report(context, resource, [verdict], {"replicas": 0, "endpoints": None})
    status = _written(server, CLUSTER)
    assert "endpoints" not in status
    assert (status["replicas"], status["observedGeneration"]) == (0, 1)
    assert condition(status, READY)["observedGeneration"] == 1
    assert server.events == [("Stopped", "spec.replicas is 0: there is no broker")]


async def test_a_difference_is_drift_only_if_this_generation_was_applied_before() -> None:
    server = ApiServer(topic())
    context = server.context()
    await report_drift(context, resource_of(context, TOPIC), ["messageTTL was 1s, is 2s"])
    assert server.events == []
    await report_policies(context, resource_of(context, TOPIC), [READY_NOW, APPLIED])
    await report_drift(context, resource_of(context, TOPIC), ["messageTTL was 1s, is 2s"])
    assert server.events == [("DriftRepaired", "messageTTL was 1s, is 2s")]
    server.change(TOPIC, generation=2)
    context.cache.put(server.objects[TOPIC])
    await report_drift(context, resource_of(context, TOPIC), ["messageTTL was 2s, is 3s"])
    assert len(server.events) == 1


async def test_a_resource_that_is_gone_has_no_status_to_write() -> None:
    server = ApiServer(topic())
    context = server.context()
    resource = resource_of(context, TOPIC)
    server.objects.clear()
    await report_policies(context, resource, [READY_NOW])
    assert server.events == []


def test_more_than_a_few_items_are_counted() -> None:
    assert named(["a", "b"]) == "a; b"
    assert named(["a", "b", "c"], 2, ", ") == "a, b and 1 more"
