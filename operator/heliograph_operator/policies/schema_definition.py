"""Reads the definition of a Topic's schema from a ConfigMap, where the spec says that it is there."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from heliograph_api.manifests.explain import explain
from heliograph_api.resources.model import OfBroker, Topic
from pydantic import ValidationError

from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource import Resource
from heliograph_operator.decide.broker_manifests import Spec, manifest
from heliograph_operator.decide.cluster_objects import CONFIG_MAP
from heliograph_operator.objects.conditions import Reason
from heliograph_operator.objects.targets import Waiting

#: Time (s) until a ConfigMap is read again: a watch would have to keep every ConfigMap there is.
REREAD_S: Final = 60.0


class Wanted(NamedTuple):
    """A valid resource and its spec; those of a Topic have the definition of its schema in them."""

    model: OfBroker
    spec: Spec


def reads_config_map(spec: Spec) -> bool:
    """Whether the spec of a Topic leaves the definition of its schema to a ConfigMap."""
    return bool((spec.get("schema") or {}).get("definitionFrom"))


async def with_definition(context: Context, resource: Resource) -> Wanted | Waiting:
    """Return what a valid resource wants, with the definition that a ConfigMap has now, or why there is none."""
    key, model = resource.key, resource.model
    assert isinstance(model, OfBroker)
    if not reads_config_map(resource.spec):
        return Wanted(model, resource.spec)
    schema: dict[str, Any] = dict(resource.spec["schema"])
    reference = schema.pop("definitionFrom")["configMapKeyRef"]
    name, entry = reference["name"], reference["key"]
    found = await context.kube.find(CONFIG_MAP, key.namespace, name)
    if found is None:
        message = f"spec.schema.definitionFrom: there is no ConfigMap {name!r} in Kubernetes namespace {key.namespace}"
        return Waiting(Reason.SCHEMA_MISSING, message)
    definition = (found.get("data") or {}).get(entry)
    if definition is None:
        message = f"spec.schema.definitionFrom: ConfigMap {name!r} has no entry {entry!r} in its data"
        return Waiting(Reason.SCHEMA_MISSING, message)
    spec = {**resource.spec, "schema": {**schema, "definition": definition}}
    document = manifest(key, spec)
    try:
        return Wanted(Topic.model_validate(document), spec)
    except ValidationError as error:
        problems = "; ".join(explain(error, Topic, document))
        return Waiting(Reason.INVALID, f"with entry {entry!r} of ConfigMap {name!r}: {problems}")
