"""Names and properties that do not fit a record are refused before anything changes, and fail nobody else."""

from __future__ import annotations

import pytest
from heliograph_api.values.names import MAX_SUBSCRIPTION_NAME_BYTES, MAX_TOPIC_NAME_BYTES, PERSISTENT, TopicName
from heliograph_broker.messaging.base.errors import PreconditionFailed
from heliograph_broker.messaging.base.names import (
    MAX_NAMESPACE_NAME_BYTES,
    MAX_PRODUCER_NAME_BYTES,
    MAX_PROPERTIES_BYTES,
)
from heliograph_broker.messaging.base.records import NamespaceRecord, SchemaRecord, TenantRecord, cursor_key
from heliograph_broker.messaging.broker.admission import check_producer
from heliograph_broker.messaging.broker.topic_properties import set_topic_properties
from heliograph_broker.storage.commit.group import MAX_KEY_BYTES

from tests.support.core import Client, Core

TOO_LARGE = {"key": "x" * MAX_PROPERTIES_BYTES}


def test_the_longest_names_fit_together_into_a_key(core: Core) -> None:
    tenant = "t" * (MAX_NAMESPACE_NAME_BYTES - 2)
    core.broker.tenants.create(tenant, TenantRecord())
    core.broker.namespaces.create(f"{tenant}/n", NamespaceRecord())
    local = "x" * (MAX_TOPIC_NAME_BYTES - len(f"{PERSISTENT}://{tenant}/n/"))
    name = TopicName.of(PERSISTENT, tenant, "n", local)
    core.broker.partitioned.create(name, 1)
    part = core.broker.directory.topics[str(name.with_partition(0))]
    subscription = "s" * MAX_SUBSCRIPTION_NAME_BYTES
    part.create_subscription(subscription)
    assert len(cursor_key(str(name.with_partition(999_999_999)), subscription)) <= MAX_KEY_BYTES
    core.commit()
    core.crash()
    assert list(core.broker.directory.topics[str(part.name)].subscriptions) == [subscription]


def test_a_tenant_or_namespace_whose_name_is_too_long_is_refused_and_fails_nobody(core: Core) -> None:
    client = Client()
    core.publish(core.producer(core.topic(), client))
    with pytest.raises(PreconditionFailed, match=rf"it has 600 bytes; valid: at most {MAX_NAMESPACE_NAME_BYTES}"):
        core.broker.tenants.create("t" * 600, TenantRecord())
    with pytest.raises(PreconditionFailed, match="Invalid namespace name 'public/"):
        core.broker.namespaces.create("public/" + "n" * MAX_NAMESPACE_NAME_BYTES, NamespaceRecord())
    assert set(core.broker.directory.tenants) == {"public"}
    assert set(core.broker.directory.namespaces) == {"public/default"}
    core.commit()
    assert len(client.receipts) == 1
    assert not client.errors


def test_a_producer_whose_name_is_too_long_is_refused(core: Core) -> None:
    check_producer(core.topic(), "p" * MAX_PRODUCER_NAME_BYTES, encrypted=False)
    with pytest.raises(PreconditionFailed, match=f"valid: at most {MAX_PRODUCER_NAME_BYTES}"):
        check_producer(core.topic(), "ü" * MAX_PRODUCER_NAME_BYTES, encrypted=False)


def test_properties_that_are_too_large_are_refused_wherever_they_are_kept(core: Core) -> None:
    topic = core.topic()
    core.broker.partitioned.create(TopicName.parse("p"), 1)
    for change in (
        lambda: core.broker.namespaces.set_properties("public/default", TOO_LARGE),
        lambda: core.broker.namespaces.create("public/new", NamespaceRecord(properties=TOO_LARGE)),
        lambda: core.broker.topics.create(TopicName.parse("new"), TOO_LARGE),
        lambda: core.broker.partitioned.create(TopicName.parse("new"), 1, TOO_LARGE),
        lambda: set_topic_properties(core.broker, topic.name, TOO_LARGE),
        lambda: set_topic_properties(core.broker, TopicName.parse("p"), TOO_LARGE),
        lambda: topic.create_subscription("s", properties=TOO_LARGE),
    ):
        with pytest.raises(PreconditionFailed, match=f"valid: at most {MAX_PROPERTIES_BYTES} in all"):
            change()
    assert not topic.properties
    assert not topic.subscriptions
    assert not core.broker.directory.namespaces["public/default"].properties
    assert not core.broker.directory.exists(TopicName.parse("new"))
    assert "public/new" not in core.broker.directory.namespaces


def test_schemas_that_are_too_large_together_are_refused_and_not_kept(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.schemas.add("t", SchemaRecord("s", 1, b"1" * 500), "ALWAYS_COMPATIBLE")
    monkeypatch.setattr("heliograph_broker.storage.commit.group.MAX_VALUE_BYTES", 1000)
    with pytest.raises(PreconditionFailed, match="valid: at most 1000"):
        core.broker.schemas.add("t", SchemaRecord("s", 1, b"2" * 800), "ALWAYS_COMPATIBLE")
    assert len(core.broker.schemas.versions("t")) == 1
