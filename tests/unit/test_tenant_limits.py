"""Limits of a tenant: one too many is refused and counted for every caller, and other tenants go on."""

from __future__ import annotations

import pytest
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import NotAllowed, PreconditionFailed
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.usecases.apply import apply_resources
from heliograph_broker.usecases.subscriptions import create_subscription

from tests.support.core import Core

A = TopicName.parse("acme/shop/a")


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"max_namespaces_per_tenant": 2, "max_topics_per_tenant": 3, "max_subscriptions_per_tenant": 4}


@pytest.fixture
def acme(core: Core) -> Core:
    """A broker with the tenants ``acme`` and ``acme2``, and two namespaces of the first."""
    for tenant in ("acme", "acme2"):
        core.broker.tenants.create(tenant, TenantRecord(allowed_clusters=["standalone"]))
    for namespace in ("acme/shop", "acme/store", "acme2/shop"):
        core.broker.namespaces.create(namespace, NamespaceRecord())
    return core


def reached(core: Core) -> dict[str, int]:
    return {name: count for name, count in core.broker.metrics.limits_reached.items() if count}


def test_one_namespace_too_many_is_refused(acme: Core) -> None:
    with pytest.raises(
        PreconditionFailed, match=r"acme has 2 of 2, 1 more are asked for \(max_namespaces_per_tenant\)"
    ):
        acme.broker.namespaces.create("acme/third", NamespaceRecord())
    acme.broker.namespaces.create("acme2/second", NamespaceRecord())
    assert reached(acme) == {"max_namespaces_per_tenant": 1}


def test_topics_of_all_namespaces_count_each_partition_and_those_that_store_nothing(acme: Core) -> None:
    broker = acme.broker
    broker.partitioned.create(A, 2)
    with pytest.raises(NotAllowed, match=r"acme has 2 of 3, 2 more are asked for \(max_topics_per_tenant\)"):
        broker.partitioned.create(TopicName.parse("acme/store/b"), 2)
    with pytest.raises(NotAllowed):
        broker.partitioned.extend(A, 4)
    broker.topics.create(TopicName.parse("non-persistent://acme/store/n"))
    for name in ("acme/shop/c", "non-persistent://acme/shop/c"):
        with pytest.raises(NotAllowed, match="acme has 3 of 3"):
            broker.topics.create(TopicName.parse(name))
        with pytest.raises(NotAllowed):
            broker.topics.get_or_create(TopicName.parse(name))
    broker.topics.create(TopicName.parse("acme2/shop/c"))
    assert reached(acme) == {"max_topics_per_tenant": 6}
    # Topics that are there stay in use, and deleted ones make room.
    broker.topics.get_or_create(A.with_partition(0))
    broker.topics.delete(TopicName.parse("non-persistent://acme/store/n"))
    broker.topics.create(TopicName.parse("acme/shop/c"))


def test_subscriptions_count_on_each_partition(acme: Core) -> None:
    broker = acme.broker
    broker.partitioned.create(A, 2)
    create_subscription(broker, A, "s")
    broker.topics.create(TopicName.parse("acme/store/b"))
    create_subscription(broker, TopicName.parse("acme/store/b"), "s")
    with pytest.raises(NotAllowed, match=r"acme has 3 of 4, 2 more are asked for \(max_subscriptions_per_tenant\)"):
        create_subscription(broker, A, "t")
    create_subscription(broker, TopicName.parse("acme/store/b"), "t")
    with pytest.raises(NotAllowed):
        create_subscription(broker, TopicName.parse("acme/store/b"), "u")
    assert reached(acme) == {"max_subscriptions_per_tenant": 2}


def test_more_partitions_have_the_subscriptions_of_the_others(acme: Core) -> None:
    acme.broker.partitioned.create(A, 2)
    for name in ("s", "t"):
        create_subscription(acme.broker, A, name)
    with pytest.raises(NotAllowed, match=r"acme has 4 of 4, 2 more are asked for \(max_subscriptions_per_tenant\)"):
        acme.broker.partitioned.extend(A, 3)
    assert acme.broker.directory.partitions_of(A) == 2


TOPIC = "{namespaceRef: {name: acme/shop}, partitions: 2"


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        (["Namespace third {tenantRef: {name: acme}}"], "acme has 2 of 2, 1 more"),
        ([f"Topic a {TOPIC}}}", f"Topic b {TOPIC}}}"], "acme has 0 of 3, 4 more"),
        ([f"Topic a {TOPIC}, subscriptions: [x, y, z]}}"], "acme has 0 of 4, 6 more"),
    ],
)
def test_manifests_over_a_limit_are_refused_with_nothing_changed(acme: Core, documents: list[str], reason: str) -> None:
    def manifest(document: str) -> str:
        kind, name, spec = document.split(" ", 2)
        return f"apiVersion: heliograph.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}"

    with pytest.raises(PreconditionFailed, match=reason):
        apply_resources(acme.broker, parse("\n---\n".join(map(manifest, documents))))
    assert not acme.broker.directory.topics
    assert "acme/third" not in acme.broker.directory.namespaces


def test_partitions_that_were_deleted_count_when_they_are_created_again(acme: Core) -> None:
    broker, other = acme.broker, TopicName.parse("acme/store/b")
    broker.partitioned.create(A, 3)
    for index in range(3):
        broker.topics.delete(A.with_partition(index))
    broker.partitioned.create(other, 2)
    create_subscription(broker, other, "one")
    create_subscription(broker, other, "two")
    with pytest.raises(NotAllowed, match=r"acme has 2 of 3, 3 more are asked for \(max_topics_per_tenant\)"):
        broker.partitioned.create_missing(A)
    broker.topics.delete(other.with_partition(1))
    create_subscription(broker, other.with_partition(0), "three")
    with pytest.raises(NotAllowed, match=r"acme has 3 of 4, 3 more are asked for \(max_subscriptions_per_tenant\)"):
        broker.partitioned.create_missing(other)
    assert [name for name in broker.directory.topics if name.startswith("persistent://acme/")] == [
        str(other.with_partition(0))
    ]
