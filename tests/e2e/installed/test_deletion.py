"""Deletion always ends, whatever goes first, with the operator ended in the middle; and volumes stay unless asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from tests.e2e.waiting import wait_ready
from tests.support.cluster import Cluster

from .conftest import Installation

RESOURCES: dict[str, tuple[str, dict[str, Any]]] = {
    "BrokerCluster": ("bcl/main", {"storage": {"size": "1Gi"}}),
    "Tenant": ("htenant/team", {}),
    "Namespace": ("hns/app", {"tenantRef": {"name": "team"}}),
    "Topic": ("htopic/events", {"namespaceRef": {"name": "app"}, "subscriptions": ["reader"]}),
}
#: Six of the twenty-four; tests/operator has them all, with one broker.
ORDERS = [order for index, order in enumerate(permutations(RESOURCES)) if index % 4 == 0]
ENDED_WITHIN_S = 300.0


class Place:
    """A Kubernetes namespace with a broker and one resource of each kind."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def fill(self, **cluster_spec: Any) -> None:
        for kind, (name, spec) in RESOURCES.items():
            metadata = {"name": name.partition("/")[2], "namespace": self.name}
            more = cluster_spec if kind == "BrokerCluster" else {}
            self.cluster.apply(
                {
                    "apiVersion": "heliograph.dev/v1alpha1",
                    "kind": kind,
                    "metadata": metadata,
                    "spec": {**spec, **more},
                }
            )

    def wait_ready(self) -> None:
        for name, _ in RESOURCES.values():
            wait_ready(self.cluster, self.name, name, within_s=240)

    def delete(self, kind: str) -> None:
        self.cluster.kubectl("delete", RESOURCES[kind][0], "-n", self.name, "--wait=false")

    def delete_all_of_it(self) -> None:
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def left(self) -> list[str]:
        """The remaining resources, and objects created for the broker; volumes apart."""
        made = "statefulsets,pods,services,configmaps,poddisruptionbudgets,networkpolicies,serviceaccounts"
        found = self.cluster.kubectl("get", f"heliograph,{made}", "-n", self.name, "-o", "name").split()
        return [each for each in found if each not in ("configmap/kube-root-ca.crt", "serviceaccount/default")]

    def volumes(self) -> list[str]:
        return self.cluster.kubectl("get", "pvc", "-n", self.name, "-o", "name").split()


@pytest.fixture
def places(installation: Installation) -> Iterator[dict[str, Place]]:
    """One place for each order of deletion, and a few more."""
    cluster = installation.cluster
    names = ["-".join(kind.lower() for kind in order) for order in ORDERS]
    names += ["volumes-not-wanted", "kubernetes-namespace", "broker-away"]
    found = {name: Place(cluster, f"delete-{name}") for name in names}
    for place in found.values():
        cluster.kubectl("create", "namespace", place.name)
    for name, place in found.items():
        place.fill(**({"storage": {"size": "1Gi", "retainOnDelete": False}} if name == "volumes-not-wanted" else {}))
    for place in found.values():
        place.wait_ready()
    yield found
    for place in found.values():
        cluster.kubectl("delete", "namespace", place.name, "--ignore-not-found", "--wait=false")


def test_deletion_ends_in_every_order_though_the_operator_is_ended_in_the_middle(
    installation: Installation, places: dict[str, Place]
) -> None:
    cluster = installation.cluster
    in_order = dict(zip(ORDERS, places.values(), strict=False))
    for step in range(len(RESOURCES)):
        for order, place in in_order.items():
            place.delete(order[step])
        if step == 0:
            places["kubernetes-namespace"].delete_all_of_it()
            for kind in RESOURCES:
                places["volumes-not-wanted"].delete(kind)
            # A broker that cannot come up again: it is waited for until its Kubernetes namespace is to go, too.
            away = places["broker-away"]
            image = {"image": "heliograph/broker:there-is-none", "imagePullPolicy": "Never", "preflight": False}
            broken = json.dumps({"spec": image})
            cluster.kubectl("patch", "bcl/main", "-n", away.name, "--type=merge", "-p", broken)
            cluster.kubectl("delete", "pod", "main-0", "-n", away.name, "--grace-period=0", "--force")
            away.delete("Topic")
        if step == 1:
            operator = ("pod", "-l", "app.kubernetes.io/component=operator", "--grace-period=0", "--force")
            installation.kubectl("delete", *operator)
            away.delete_all_of_it()

    def ended() -> bool:
        kept = {place.name: left for name, place in places.items() if name in names and (left := place.left())}
        assert kept == {}
        there = cluster.kubectl("get", "namespaces", "-o", "name").split()
        return not {f"namespace/{place.name}" for place in (places["kubernetes-namespace"], away)} & set(there)

    names = [name for name in places if name not in ("kubernetes-namespace", "broker-away")]
    cluster.wait_for("everything has gone", ended, within_s=ENDED_WITHIN_S, namespace=installation.namespace)
    for place in in_order.values():
        assert place.volumes() == ["persistentvolumeclaim/data-main-0"], place.name
    cluster.wait_for(
        "volumes that were not to stay have gone, too",
        lambda: places["volumes-not-wanted"].volumes() == [],
        within_s=120,
        namespace=places["volumes-not-wanted"].name,
    )


def test_messages_are_there_again_when_a_broker_is_made_anew_on_the_volume_that_stayed(
    installation: Installation,
) -> None:
    client, cluster, namespace = installation.client, installation.cluster, installation.namespace
    topic = "persistent://public/default/kept"
    client.subscribe(topic, "reader")
    client.publish(topic, ["worth keeping"])
    resource = cluster.kubectl_json("get", "brokercluster", "default", "-n", namespace)
    installation.kubectl("delete", "brokercluster", "default", "--timeout=250s")
    assert "pod/default-0" not in installation.kubectl("get", "pods", "-o", "name").split()
    cluster.apply(
        {
            **{key: resource[key] for key in ("apiVersion", "kind", "spec")},
            "metadata": {key: resource["metadata"][key] for key in ("name", "namespace", "labels", "annotations")},
        }
    )
    wait_ready(cluster, namespace, "brokercluster/default", within_s=240)
    assert client.consume(topic, "reader", 1, acknowledge=True) == ["worth keeping"]
    for name in ("orders", "departures"):
        wait_ready(cluster, namespace, f"htopic/{name}")
