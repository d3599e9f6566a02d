"""Resources of the API server as manifests: read for what they want, and written with full names for a broker."""

from __future__ import annotations

from typing import Any

from heliograph_api.manifests.explain import explain
from heliograph_api.resources.model import KINDS, Namespace, Tenant, Topic
from pydantic import ValidationError

from heliograph_operator.decide.targets import Target
from heliograph_operator.objects.kinds import API_VERSION, Body

from .resource_memory import Memory, PolicyResource


def model_of(body: Body, memory: Memory) -> PolicyResource | None:
    """Return the resource as the model has it, None if it is not valid: ``memory.problem`` says why then.

    The API server checks the same rules; what it lets through is of another version of the definitions.
    """
    generation = body["metadata"].get("generation", 0)
    if memory.generation == generation:
        return memory.model
    memory.generation, memory.model, memory.problem = generation, None, ""
    metadata = body["metadata"]
    document = {
        "apiVersion": API_VERSION,
        "kind": body["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata.get("namespace", "default")},
        "spec": body.get("spec") or {},
    }
    model = KINDS[body["kind"]]
    try:
        found = model.model_validate(document)
    except ValidationError as error:
        memory.problem = "; ".join(explain(error, model, document))
        return None
    assert isinstance(found, Tenant | Namespace | Topic)
    memory.model = found
    return found


def rendered(body: Body, target: Target, partitions: int | None = None) -> dict[str, Any]:
    """Return the manifest to send: references are full names in the broker, so that it needs no other with it.

    With ``partitions`` it has as many as the broker has already, whatever the resource says.
    """
    spec = dict(body.get("spec") or {})
    if target.kind == "Namespace":
        spec["tenantRef"] = {"name": target.parent}
    elif target.kind == "Topic":
        spec["namespaceRef"] = {"name": target.parent}
        if partitions is not None:
            spec["partitions"] = partitions
    metadata = body["metadata"]
    return {
        "apiVersion": API_VERSION,
        "kind": target.kind,
        "metadata": {"name": metadata["name"], "namespace": metadata.get("namespace", "default")},
        "spec": spec,
    }
