"""Paths of objects in the admin REST API, URL-encoded where names need it."""

from __future__ import annotations

from urllib.parse import quote

from heliograph_api.values.names import NamespaceName, TopicName


def tenant_path(tenant: str) -> str:
    """Return the path of a tenant in the admin API."""
    return f"/admin/v2/tenants/{encoded(tenant)}"


def namespace_path(namespace: NamespaceName) -> str:
    """Return the path of a namespace in the admin API."""
    return f"/admin/v2/namespaces/{namespace}"


def topic_path(topic: TopicName) -> str:
    """Return the path of a topic in the admin API."""
    return f"/admin/v2/{topic.domain}/{topic.namespace_name}/{encoded(topic.local)}"


def subscription_path(topic: TopicName, subscription: str) -> str:
    """Return the path of a subscription's own policies, which Pulsar has not."""
    name = f"{topic.domain}/{topic.namespace_name}/{encoded(topic.local)}"
    return f"/heliograph/v1/{name}/subscription/{encoded(subscription)}"


def encoded(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def encoded_subscription(name: str) -> str:
    """Return a subscription's name as a part of a path of the admin API, whose brokers decode escapes twice."""
    return encoded(encoded(name)) if "%" in name or "+" in name else encoded(name)
