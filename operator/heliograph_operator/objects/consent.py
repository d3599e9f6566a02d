"""Tells what the resources of a Kubernetes namespace may be in the brokers of a BrokerCluster in another one.

The BrokerCluster says it in ``spec.consents``. Nothing that a resource says about itself counts, its annotations
included: who may write it may write these, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from heliograph_api.resources.model import Namespace, OperatorResource, Subscription, Topic
from heliograph_api.values.names import TopicName

from .kinds import USER, Body, Key, key_of, shown
from .ownership import Claim
from .targets import Bodies

#: The kinds of a consent that names none.
_DEFAULT_KINDS: Final = ("Namespace", "Topic", "Subscription")


def refusal(bodies: Bodies, key: Key, claim: Claim) -> str:
    """Return why a resource may not stand for an object, and what would allow it; empty if it may.

    A BrokerCluster that is not known forbids nothing: nothing can be done without it either.
    """
    cluster = _other_cluster(bodies, key, claim.cluster)
    if cluster is None or _consents(cluster, key, claim.tenant, key.kind):
        return ""
    return (
        f"{shown(claim.cluster, key.namespace)} does not let a {key.kind} in Kubernetes namespace {key.namespace} be in"
        f" tenant {claim.tenant}; valid: an entry in its spec.consents with {key.namespace} in kubernetesNamespaces,"
        f" {claim.tenant} in tenants and {key.kind} in kinds"
    )


def user_refusal(cluster: Body, key: Key, tenants: Collection[str]) -> str:
    """Return why a User may not have its role on a BrokerCluster, and grants in these tenants; empty if it may."""
    on = key_of(cluster)
    if on.namespace == key.namespace:
        return ""
    consents = [
        each
        for each in (cluster.get("spec") or {}).get("consents") or ()
        if key.namespace in (each.get("kubernetesNamespaces") or ()) and USER.name in (each.get("kinds") or ())
    ]
    opened = {tenant for each in consents for tenant in each.get("tenants") or ()}
    if consents and opened >= set(tenants):
        return ""
    of_tenants = f", {', '.join(sorted(set(tenants) - opened))} in tenants" if set(tenants) - opened else ""
    return (
        f"{shown(on, key.namespace)} does not let Users of Kubernetes namespace {key.namespace} have these rights;"
        f" valid: an entry in its spec.consents with {key.namespace} in kubernetesNamespaces{of_tenants}"
        f" and {USER.name} in kinds"
    )


def foreign_permissions(bodies: Bodies, key: Key, claim: Claim, resource: OperatorResource) -> str:
    """Return why the permissions of a resource are not allowed: they give rights as Users do."""
    cluster = _other_cluster(bodies, key, claim.cluster)
    if cluster is None or not isinstance(resource, Namespace | Topic) or resource.spec.permissions is None:
        return ""
    why = user_refusal(cluster, key, [claim.tenant])
    return f"spec.permissions: {why}" if why else ""


def foreign_dead_letters(bodies: Bodies, key: Key, cluster: Key, resource: OperatorResource) -> str:
    """Return why the dead letter topics of a resource are not allowed: the broker would write to other tenants."""
    body = _other_cluster(bodies, key, cluster)
    if body is None:
        return ""
    for field, topic in _dead_letters(resource):
        if not _consents(body, key, topic.tenant, ""):
            return (
                f"{field}: {topic} is in tenant {topic.tenant}, which {shown(cluster, key.namespace)} does not open to"
                f" Kubernetes namespace {key.namespace} in its spec.consents; valid: a topic of a tenant that it opens"
            )
    return ""


def _other_cluster(bodies: Bodies, key: Key, cluster: Key) -> Body | None:
    """Return the BrokerCluster if it has to consent."""
    return bodies.get(cluster) if cluster.namespace != key.namespace else None


def _consents(cluster: Body, key: Key, tenant: str, kind: str) -> bool:
    """Whether a BrokerCluster consents to a resource of this kind (empty: of any) in a tenant."""
    return any(
        key.namespace in (consent.get("kubernetesNamespaces") or ())
        and tenant in (consent.get("tenants") or ())
        and kind in ("", *consent.get("kinds", _DEFAULT_KINDS))
        for consent in (cluster.get("spec") or {}).get("consents") or ()
    )


def _dead_letters(resource: OperatorResource) -> Iterator[tuple[str, TopicName]]:
    if not isinstance(resource, Namespace | Topic | Subscription):
        return
    policies = resource.spec.policies()
    named = {"spec.deadLetterTopic": policies.dead_letter_topic}
    for subscription, own in (policies.subscription_policies or {}).items():
        named[f"spec.subscriptionPolicies[{subscription}].deadLetterTopic"] = own.dead_letter_topic
    for field, topic in named.items():
        if topic:
            yield field, TopicName.parse(topic)
