"""Manifests for the broker, which understands full names and none of the API server's own fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from heliograph_api.resources.metadata import OTHER_ROLES, OTHER_SUBSCRIPTIONS

from heliograph_operator.objects.kinds import API_VERSION, Key
from heliograph_operator.objects.targets import Target

Spec = Mapping[str, Any]
#: Fields that only the operator acts on: an older broker rejects new ones.
_FOR_OPERATOR: Final = ("adoptionPolicy", "clusterRef", "deletionPolicy", "deletionWhenUnreachable")


def manifest(key: Key, spec: Spec) -> dict[str, Any]:
    """Return the manifest of the resource ``key`` with ``spec``."""
    return {
        "apiVersion": API_VERSION,
        "kind": key.kind,
        "metadata": {"name": key.name, "namespace": key.namespace or "default"},
        "spec": dict(spec),
    }


def policy_manifest(
    key: Key,
    spec: Spec,
    target: Target,
    partitions: int | None = None,
    others: Collection[str] = (),
    users: Collection[str] = (),
) -> dict[str, Any]:
    """Return the manifest of what stands for an object; parents have full names, so the broker needs only this one.

    With ``partitions``, that number is sent and not the one in ``spec``. ``others`` are subscriptions that a Topic is
    to leave alone, also those that it names. ``users`` are roles of which the permissions leave the grants alone.
    """
    changed = {name: value for name, value in spec.items() if name not in _FOR_OPERATOR}
    if target.kind == "Namespace":
        changed["tenantRef"] = {"name": target.parent}
    elif target.kind == "Topic":
        changed["namespaceRef"] = {"name": target.parent}
        if partitions is not None:
            changed["partitions"] = partitions
    elif target.kind == "Subscription":
        changed["topicRef"] = {"name": target.parent}
    annotations = {OTHER_ROLES: json.dumps(sorted(users))} if users else {}
    if others:
        annotations[OTHER_SUBSCRIPTIONS] = json.dumps(sorted(others))
        for field, name_of in (("subscriptions", str), ("subscriptionPolicies", _name)):
            if changed.get(field):
                changed[field] = [each for each in changed[field] if name_of(each) not in others]
    made = manifest(key, changed)
    if annotations:
        made["metadata"]["annotations"] = annotations
    return made


def _name(own: Mapping[str, Any]) -> str:
    return str(own["name"])


def defaults_manifest(key: Key, spec: Spec) -> dict[str, Any]:
    """Return the manifest of a BrokerCluster with only its policies: an older broker rejects new fields for pods."""
    policies = ("brokerDefaults", "limits")
    return manifest(key, {field: spec[field] for field in policies if spec.get(field) is not None})
