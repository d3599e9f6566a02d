"""The order and the names of applied resources, and missing references."""

from __future__ import annotations

import pytest
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.manifests.plan import Existing, plan


def resource(kind: str, name: str, spec: str = "{}", namespace: str = "default") -> str:
    return (
        f"{{apiVersion: heliograph.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}}}, "
        f"spec: {spec}}}\n---\n"
    )


def in_namespace(name: str, more: str = "") -> str:
    return f"{{namespaceRef: {{name: {name}}}, {more}}}"


def of_tenant(name: str, more: str = "") -> str:
    return f"{{tenantRef: {{name: {name}}}, {more}}}"


def names(text: str, existing: Existing | None = None) -> list[str]:
    return [step.name for step in plan(parse(text, "m.yaml"), existing)]


def problems(text: str, existing: Existing | None = None) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        plan(parse(text, "m.yaml"), existing)
    return caught.value.problems


def test_parents_first_under_the_names_of_the_broker() -> None:
    text = (
        resource("Topic", "orders", in_namespace("pay", "name: Orders"))
        + resource("Topic", "live", in_namespace("pay", "persistent: false"))
        + resource("Namespace", "pay", of_tenant("shop", "name: Payments"))
        + resource("Tenant", "shop", "{name: Shop}")
        + resource("BrokerCluster", "main")
    )
    assert names(text) == [
        "main",
        "Shop",
        "Shop/Payments",
        "persistent://Shop/Payments/Orders",
        "non-persistent://Shop/Payments/live",
    ]


def test_nothing_is_a_plan_too() -> None:
    assert names("") == []


def test_references_to_what_the_broker_has() -> None:
    existing = Existing(tenants=["public", "shop"], namespaces=["public/default", "shop/a", "public/a"])
    text = (
        resource("Namespace", "new", of_tenant("shop"))
        + resource("Topic", "one", in_namespace("default"))
        + resource("Topic", "two", in_namespace("shop/a"))
    )
    assert names(text, existing) == ["shop/new", "persistent://public/default/one", "persistent://shop/a/two"]


def test_what_is_missing_is_named_all_at_once_and_only_once() -> None:
    text = (
        resource("Namespace", "pay", of_tenant("shop"))
        + resource("Topic", "orders", in_namespace("pay"))
        + resource("Topic", "bills", in_namespace("biling"))
        + resource("Tenant", "other")
    )
    assert problems(text, Existing(["public"], ["public/default"])) == [
        "m.yaml: document 1 (Namespace pay): spec.tenantRef.name: there is no Tenant 'shop', in the manifests or in "
        "the broker; valid: other, public",
        "m.yaml: document 3 (Topic bills): spec.namespaceRef.name: there is no Namespace 'biling', in the manifests "
        "or in the broker; valid: pay, public/default",
    ]


def test_nothing_to_refer_to() -> None:
    assert problems(resource("Topic", "orders", in_namespace("pay")))[0].endswith(
        "valid: none exists yet, so apply one with it"
    )


def test_a_reference_that_may_mean_two_is_refused() -> None:
    existing = Existing(["a", "b"], ["a/x", "b/x"])
    assert problems(resource("Topic", "orders", in_namespace("x")), existing) == [
        "m.yaml: document 1 (Topic orders): spec.namespaceRef.name: there are several namespaces 'x' in the broker; "
        "valid: a/x, b/x"
    ]


def test_references_stay_in_their_kubernetes_namespace() -> None:
    text = resource("Tenant", "shop", namespace="one") + resource("Namespace", "pay", of_tenant("shop"), "two")
    assert "there is no Tenant 'shop'" in problems(text)[0]


def test_two_resources_for_the_same_thing_are_refused() -> None:
    text = (
        resource("Tenant", "shop")
        + resource("Tenant", "store", "{name: shop}")
        + resource("Namespace", "pay", of_tenant("shop"))
        + resource("Topic", "orders", in_namespace("pay"))
        + resource("Topic", "orders-two", in_namespace("pay", "name: orders"))
        + resource("Topic", "orders-live", in_namespace("pay", "name: orders, persistent: false"))
    )
    assert problems(text) == [
        "m.yaml: document 2 (Tenant store): spec.name: shop is already described in m.yaml: document 1 (Tenant shop); "
        "valid: one Tenant resource for it",
        "m.yaml: document 5 (Topic orders-two): spec.name: persistent://shop/pay/orders is already described in "
        "m.yaml: document 4 (Topic orders); valid: one Topic resource for it",
    ]


def test_a_topic_is_not_its_own_dead_letter_topic() -> None:
    text = resource("Topic", "orders", in_namespace("default", "deadLetterTopic: public/default/orders"))
    assert problems(text, Existing(["public"], ["public/default"])) == [
        "m.yaml: document 1 (Topic orders): spec.deadLetterTopic: 'persistent://public/default/orders' is this topic; "
        "valid: another topic"
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            "deadLetterTopic: public/default/__change_events",
            "deadLetterTopic: 'persistent://public/default/__change_ev",
        ),
        ("subscriptions: [__compaction]", "subscriptions: '__compaction' is the broker's own"),
        (
            "subscriptionPolicies: [{name: __compaction, messageTTL: 1s}]",
            "subscriptionPolicies[0].name: '__compaction' is the broker's own",
        ),
        (
            "subscriptions: [a], subscriptionPolicies: [{name: b, expires: 1h}, {name: a, expires: 1h}]",
            "subscriptionPolicies[1].expires: 'a' would lose its backlog and be created again, as"
            " spec.subscriptions declares it; valid: leave one of them out, or -1",
        ),
        (
            "archive: {schedule: '@daily', path: /archive/a, volumeClaimRef: {name: a}},"
            " subscriptionPolicies: [{name: heliograph-archive, expires: 1h}]",
            "subscriptionPolicies[0].expires: 'heliograph-archive' would lose its backlog and be created again, as"
            " spec.archive declares it;",
        ),
    ],
)
def test_what_would_harm_a_topics_subscriptions_is_refused(fields: str, problem: str) -> None:
    text = resource("Topic", "orders", f"{{namespaceRef: {{name: default}}, {fields}}}")
    (found,) = problems(text, Existing(["public"], ["public/default"]))
    assert found.startswith(f"m.yaml: document 1 (Topic orders): spec.{problem}")


@pytest.mark.parametrize(
    "fields",
    [
        "subscriptions: [billing], subscriptionPolicies: [{name: billing, expires: infinite}]",
        "subscriptions: [billing], subscriptionPolicies: [{name: billing, messageTTL: 1h}, {name: other, expires: 1h}]",
    ],
)
def test_a_declared_subscription_may_have_policies_that_keep_it(fields: str) -> None:
    text = resource("Topic", "orders", f"{{namespaceRef: {{name: default}}, {fields}}}")
    assert names(text, Existing(["public"], ["public/default"])) == ["persistent://public/default/orders"]


def test_a_topic_may_not_contradict_what_it_inherits() -> None:
    text = (
        resource("Tenant", "shop")
        + resource("Namespace", "pay", of_tenant("shop", "retention: {time: 1d, size: 1Gi}"))
        + resource("Topic", "orders", in_namespace("pay", "backlogQuota: {destinationStorage: {limit: 2Gi}}"))
        + resource("Topic", "fine", in_namespace("pay", "backlogQuota: {destinationStorage: {limit: 1Gi}}"))
    )
    assert problems(text) == [
        "m.yaml: document 3 (Topic orders): spec.retention.size (with the policies of namespace shop/pay): 1Gi is "
        "below backlogQuota.destinationStorage.limit 2Gi; valid: at least the quota, or infinite"
    ]


def test_a_name_too_long_only_in_its_namespace_is_refused() -> None:
    text = (
        resource("Tenant", "t" * 100)
        + resource("Namespace", "n" * 100, of_tenant("t" * 100))
        + resource("Topic", "o" * 50, in_namespace("n" * 100))
    )
    assert "it has 265 bytes; valid: at most 240" in problems(text)[0]


def of_topic(name: str, more: str = "") -> str:
    return f"{{topicRef: {{name: {name}}}, {more}}}"


EXISTING = Existing(["public"], ["public/default"], ["persistent://public/default/clicks"])


def test_subscriptions_come_after_their_topics() -> None:
    text = (
        resource("Subscription", "billing", of_topic("orders"))
        + resource("Subscription", "audit", of_topic("public/default/clicks", "name: 'a/b'"))
        + resource("Topic", "orders", in_namespace("default"))
    )
    orders = "persistent://public/default/orders"
    clicks = "persistent://public/default/clicks"
    assert names(text, EXISTING) == [orders, f"{orders}/subscription/billing", f"{clicks}/subscription/a%2Fb"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            resource("Subscription", "billing", of_topic("gone")),
            "spec.topicRef.name: there is no Topic 'gone', in the manifests or in the broker; valid: none exists yet",
        ),
        (
            resource("Topic", "live", in_namespace("default", "persistent: false"))
            + resource("Subscription", "billing", of_topic("live")),
            "'non-persistent://public/default/live' stores no messages; valid: a persistent topic",
        ),
        (
            resource("Topic", "orders", in_namespace("default", "subscriptions: [billing]"))
            + resource("Subscription", "billing", of_topic("orders")),
            "'billing' is a subscription in the spec of m.yaml: document 1 (Topic orders), too",
        ),
        (
            resource("Topic", "orders", in_namespace("default", "subscriptionPolicies: [{name: billing}]"))
            + resource("Subscription", "billing", of_topic("orders")),
            "'billing' is a subscription in the spec of m.yaml: document 1 (Topic orders), too",
        ),
        (
            resource("Subscription", "billing", of_topic("public/default/clicks"))
            + resource("Subscription", "other", of_topic("public/default/clicks", "name: billing")),
            "is already described in m.yaml: document 1 (Subscription billing); valid: one Subscription",
        ),
        (
            resource(
                "Subscription",
                "billing",
                of_topic("public/default/clicks", "deadLetterTopic: public/default/clicks"),
            ),
            "spec.deadLetterTopic: 'persistent://public/default/clicks' is this topic; valid: another topic",
        ),
    ],
)
def test_subscriptions_that_cannot_be(text: str, problem: str) -> None:
    found = problems(text, EXISTING)
    assert len(found) == 1
    assert problem in found[0]


def test_a_broker_reads_no_config_maps() -> None:
    source = "schema: {type: AVRO, definitionFrom: {configMapKeyRef: {name: schemas, key: order}}}"
    assert problems(resource("Topic", "orders", in_namespace("default", source)), EXISTING) == [
        "m.yaml: document 1 (Topic orders): spec.schema.definitionFrom: only the operator reads ConfigMaps; valid: the"
        " definition itself, in spec.schema.definition"
    ]
