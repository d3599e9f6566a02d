"""Listeners of a BrokerCluster: their Services, and what brokers advertise, on a real API server."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cluster import Cluster
from tests.support.operator_process import OperatorProcess

from .resources import Resources

STOPPED = {"replicas": 0, "storage": {"size": "1Gi"}}
OFFICE = {"name": "office", "type": "NodePort"}
WORLD = {"name": "world", "type": "LoadBalancer", "externalTrafficPolicy": "Local"}


def advertised(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The addresses by listener that the pods of BrokerCluster main are to advertise."""
    found = cluster.kubectl_json("get", "statefulset", "main", "-n", namespace)
    [container] = found["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "") for each in container["env"]}
    entries = variables.get("HELIOGRAPH_ADVERTISED_LISTENERS", "").split(",")
    return dict(entry.split(":", 1) for entry in entries if entry)


def test_addresses_are_advertised_when_services_have_them(
    cluster: Cluster, resources: Resources, operator: OperatorProcess, kube_namespace: str
) -> None:
    def service(name: str) -> dict[str, Any]:
        found: dict[str, Any] = cluster.kubectl_json("get", "service", name, "-n", kube_namespace)
        return found

    def given() -> dict[str, str]:
        return advertised(cluster, kube_namespace)

    resources.apply("BrokerCluster", "main", STOPPED | {"listeners": [OFFICE, WORLD]})
    cluster.wait_for("the port of the nodes is advertised", lambda: "office" in given(), namespace=kube_namespace)
    port = service("main-office")["spec"]["ports"][0]["nodePort"]
    assert given().keys() == {"internal", "office"}
    assert given()["office"] == f"pulsar://$(POD_HOST_IP):{port}"

    address = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}}
    cluster.kubectl(
        *("patch", "service", "main-world", "-n", kube_namespace, "--subresource=status", "--type=merge"),
        *("-p", json.dumps(address)),
    )
    cluster.wait_for("the load balancer is advertised", lambda: given().get("world"), namespace=kube_namespace)
    assert given()["world"] == "pulsar://203.0.113.9:6650"

    def shown() -> Any:
        return {each["name"]: each for each in resources.status("BrokerCluster", "main").get("listeners", [])}

    cluster.wait_for("the status has it", lambda: shown()["world"]["addresses"], namespace=kube_namespace)
    assert shown()["world"]["addresses"] == ["203.0.113.9"]
    assert shown()["office"]["nodePort"] == port
    written = cluster.kubectl(
        "get", "statefulset", "main", "-n", kube_namespace, "-o", "jsonpath={.metadata.generation}"
    )

    # One that goes takes its Service with it, and the other one stays as it is.
    resources.apply("BrokerCluster", "main", STOPPED | {"listeners": [WORLD]})

    def gone() -> bool:
        names = cluster.kubectl("get", "services", "-n", kube_namespace, "-o", "name").split()
        assert "service/main-world" in names
        return "service/main-office" not in names and given().keys() == {"internal", "world"}

    cluster.wait_for("the Service is removed", gone, namespace=kube_namespace)
    generation = cluster.kubectl(
        "get", "statefulset", "main", "-n", kube_namespace, "-o", "jsonpath={.metadata.generation}"
    )
    assert int(generation) == int(written) + 1


def test_a_port_of_the_nodes_that_is_taken_is_named(
    cluster: Cluster, resources: Resources, operator: OperatorProcess, kube_namespace: str
) -> None:
    taken = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken", "namespace": kube_namespace}}
    cluster.apply(taken | {"spec": {"type": "NodePort", "ports": [{"port": 1}]}})
    found = cluster.kubectl_json("get", "service", "taken", "-n", kube_namespace)
    port = found["spec"]["ports"][0]["nodePort"]
    resources.apply("BrokerCluster", "main", STOPPED | {"listeners": [OFFICE | {"nodePort": port}]})
    message = resources.wait_reason("BrokerCluster", "main", "Invalid")
    assert "Service main-office" in message
    assert f"{port}" in message
    assert "already allocated" in message
