"""Resources on a BrokerConnection, with a real API server: to a Heliograph, and to an Apache Pulsar."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support import real_pulsar as pulsar
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess
from tests.support.polling import eventually
from tests.support.rest import fetch

from .resources import Resources

ON = {"name": "external", "kind": "BrokerConnection"}
RETENTION = {"time": "2h", "size": "64Mi"}
QUOTA = {"destinationStorage": {"limit": "32Mi", "policy": "producer_exception"}}
TENANT = "namespaces/shop"
TOPIC = "persistent/shop/payments/orders"


class External(NamedTuple):
    """Brokers that somebody else runs."""

    http_url: str
    service_url: str
    product: str

    def get(self, path: str) -> Any:
        """Return the answer of the admin API, None for what does not exist."""
        try:
            answer = fetch(f"{self.http_url}/admin/v2/{path}", "GET")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return json.loads(answer) if answer else ""

    def post(self, path: str, body: Any) -> None:
        fetch(f"{self.http_url}/admin/v2/{path}", "POST", body)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.RealPulsar]:
    """An Apache Pulsar that deletes no namespace with its topics, as most do not."""
    if (reason := pulsar.missing()) is not None:
        pytest.skip(reason)
    with pulsar.real_pulsar(tmp_path_factory.mktemp("pulsar"), "forceDeleteNamespaceAllowed=false") as running:
        # On a busy machine, its first topic takes it longer than the operator waits for an answer.
        eventually(lambda: answers(running), within_s=120, what="its first topic exists")
        yield running


def answers(running: pulsar.RealPulsar) -> bool:
    """Whether it creates a topic, or has it, in the time of a request."""
    try:
        fetch(f"{running.http_url}/admin/v2/persistent/public/default/first", "PUT")
    except urllib.error.HTTPError as error:
        return error.code == 409
    except TimeoutError:
        return False
    return True


@pytest.fixture(params=["Heliograph", "Apache Pulsar"])
def external(request: pytest.FixtureRequest) -> External:
    if request.param == "Heliograph":
        broker: BrokerProcess = request.getfixturevalue("broker")
        return External(broker.http_url, broker.service_url, request.param)
    running: pulsar.RealPulsar = request.getfixturevalue("real")
    return External(running.http_url, running.service_url, request.param)


def family(resources: Resources, partitions: int = 0, **topic: Any) -> None:
    resources.tenant(clusterRef=ON)
    resources.hns(messageTTL="3h")
    spec = {"retention": RETENTION, "messageTTL": "1h", "backlogQuota": QUOTA, "partitions": partitions, **topic}
    resources.topic(**spec)


@pytest.mark.parametrize("partitions", [0, 3])
def test_topics_are_made_changed_repaired_and_deleted(
    operator: OperatorProcess, resources: Resources, external: External, partitions: int
) -> None:
    resources.connection_to("external", external.http_url, serviceUrl=external.service_url)
    family(resources, partitions)
    resources.wait_ready("Topic", "orders")
    status = resources.status("BrokerConnection", "external")
    assert (status["product"], status["endpoints"]["http"]) == (external.product, external.http_url)
    shown = resources._kubectl("get", "hconnection", "external", "--no-headers").split()
    assert shown[:2] == ["external", "True"]
    assert status["version"] in shown
    assert external.get(f"{TOPIC}/partitions")["partitions"] == partitions
    assert external.get(f"{TOPIC}/retention") == {"retentionTimeInMinutes": 120, "retentionSizeInMB": 64}
    assert external.get(f"{TOPIC}/messageTTL") == 3600
    assert external.get(f"{TOPIC}/backlogQuotaMap")["destination_storage"]["limitSize"] == 32 * 1024 * 1024
    assert external.get(f"{TENANT}/payments")["message_ttl_in_seconds"] == 10_800

    external.post(f"{TOPIC}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    repaired = {"retentionTimeInMinutes": 120, "retentionSizeInMB": 64}
    resources.wait("drift is repaired", lambda: external.get(f"{TOPIC}/retention") == repaired)
    drift = resources.wait("an event names it", lambda: resources.events("orders", "DriftRepaired"))
    assert drift[0].startswith("retention was ")

    family(resources, partitions, messageTTL="2h", maxProducers=4)
    resources.wait("the topic has the new spec", lambda: external.get(f"{TOPIC}/messageTTL") == 7200)
    resources.wait("all of it", lambda: external.get(f"{TOPIC}/maxProducers") == 4)
    resources.wait_ready("Topic", "orders")

    # In any order, and with the connection itself.
    for kind, name in (("BrokerConnection", "external"), ("Tenant", "shop"), ("Namespace", "payments")):
        resources.delete(kind, name)
    message = resources.wait_reason("BrokerConnection", "external", "ChildrenExist")
    assert "Topic orders" in message
    assert external.get(f"{TOPIC}/partitions")["partitions"] == partitions
    resources.delete("Topic", "orders")
    for kind, name in (("Topic", "orders"), ("Tenant", "shop"), ("BrokerConnection", "external")):
        resources.wait_gone(kind, name)
    assert external.get(f"{TOPIC}/partitions") is None
    assert external.get("tenants/shop") is None


def test_a_deletion_waits_for_brokers_that_are_away(
    operator: OperatorProcess, resources: Resources, broker: BrokerProcess
) -> None:
    resources.connection_to("external", broker.http_url)
    family(resources)
    resources.wait_ready("Topic", "orders")
    broker.kill9()
    resources.wait_reason("BrokerConnection", "external", "BrokerUnreachable")
    resources.delete("Topic", "orders")
    message = resources.wait_reason("Topic", "orders", "BrokerUnreachable")
    assert "is deleted when the broker answers" in message
    # An operator that starts now waits, too.
    operator.kill9()
    operator.start()

    def tried() -> bool:
        return "has not reached its broker" in resources.condition("Topic", "orders")["message"]

    resources.wait("it has tried", tried)
    broker.start()
    resources.wait_gone("Topic", "orders")
    resources.wait_ready("BrokerConnection", "external")


def test_other_brokers_behind_the_url_are_left_alone(
    operator: OperatorProcess, resources: Resources, broker: BrokerProcess, tmp_path: Path
) -> None:
    resources.connection_to("external", broker.http_url)
    family(resources)
    resources.wait_ready("Topic", "orders")
    with BrokerProcess(tmp_path / "others") as running:
        others = External(running.http_url, running.service_url, "Heliograph")
        info = {"adminRoles": ["somebody-else"], "allowedClusters": ["standalone"]}
        for path, body in (("tenants/shop", info), (f"{TENANT}/payments", None), (TOPIC, None)):
            fetch(f"{others.http_url}/admin/v2/{path}", "PUT", body)
        others.post(f"{TOPIC}/messageTTL", 7)
        resources.connection_to("external", others.http_url)
        message = resources.wait_reason("BrokerConnection", "external", "BrokersChanged")
        assert broker.http_url in message
        assert others.http_url in message
        resources.wait_reason("Topic", "orders", "BrokersChanged")
        family(resources, messageTTL="2h")
        resources.delete("Topic", "orders")

        def waits() -> bool:
            return "is deleted when its own broker answers again" in resources.condition("Topic", "orders")["message"]

        resources.wait("the deletion waits", waits)
        assert others.get(f"{TOPIC}/messageTTL") == 7
        assert others.get("tenants/shop")["adminRoles"] == ["somebody-else"]
        # The topic is the operator's to delete as soon as a person says so.
        resources.annotate("BrokerConnection", "external", f"heliograph.dev/same-brokers={others.http_url}")
        resources.wait_gone("Topic", "orders")
        assert others.get(f"{TOPIC}/partitions") is None
        resources.wait_ready("Tenant", "shop")
        assert others.get("tenants/shop")["adminRoles"] == []
        status = resources.status("BrokerConnection", "external")
        assert status["endpoints"]["http"] == others.http_url
        assert status["storeId"] in (running.data_dir / "FORMAT").read_text()
        for kind, name in (("Namespace", "payments"), ("Tenant", "shop"), ("BrokerConnection", "external")):
            resources.delete(kind, name)
        resources.wait_gone("BrokerConnection", "external")


def test_a_wrong_token_is_shown_and_a_right_one_used(
    operator: OperatorProcess, resources: Resources, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if (reason := pulsar.missing()) is not None:
        pytest.skip(reason)

    def secret(token: str) -> None:
        metadata = {"name": "pulsar-token", "namespace": resources.namespace}
        cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": token}})

    with pulsar.real_pulsar(tmp_path_factory.mktemp("pulsar"), tokens=True) as running:
        secret("wrong")
        auth = {"secretRef": {"name": "pulsar-token"}}
        resources.connection_to("external", running.http_url, auth=auth)
        family(resources)
        resources.wait_reason("BrokerConnection", "external", "Unauthorized")
        resources.wait_reason("Tenant", "shop", "ClusterNotReady")
        secret((running.directory / "token").read_text())
        # Any change lets the operator read the Secret before its minute is over.
        resources.connection_to("external", running.http_url, auth=auth, serviceUrl=running.service_url)
        resources.wait_ready("Topic", "orders")
        assert (running.directory / "token").read_text().strip() not in operator.log_tail(100_000)
        for kind, name in (("Topic", "orders"), ("Namespace", "payments"), ("Tenant", "shop")):
            resources.delete(kind, name)
        resources.wait_gone("Tenant", "shop")
