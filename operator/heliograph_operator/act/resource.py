"""One resource as reconcilers pass it on: the API server's copy, its key, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from heliograph_api.manifests.explain import explain
from heliograph_api.resources.model import KINDS, OperatorResource
from pydantic import ValidationError

from heliograph_operator.decide.broker_manifests import manifest
from heliograph_operator.objects.kinds import Body, Key, is_deleted, is_managed, is_paused

from .resource_memory import ResourceMemory

_NOT_MANAGED: Final = "annotation heliograph.dev/managed is false"
#: The message of a resource that is not managed.
NOT_RECONCILED: Final = f"not reconciled: {_NOT_MANAGED}"


@dataclass(slots=True)
class Resource:
    """Built by the controller for one reconcile, in which ``body`` is replaced when the operator changes metadata."""

    body: Body
    key: Key
    memory: ResourceMemory

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec as the API server has it."""
        return self.body.get("spec") or {}

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as it was when the reconcile began."""
        return self.body.get("status") or {}

    @property
    def uid(self) -> str:
        """The identifier that, unlike the key, changes when the resource is recreated."""
        return str(self.body["metadata"].get("uid", ""))

    @property
    def generation(self) -> int:
        """The version of its spec."""
        return int(self.body["metadata"].get("generation", 0))

    @property
    def deleted(self) -> bool:
        """Whether its deletion was requested."""
        return is_deleted(self.body)

    @property
    def managed(self) -> bool:
        """Whether the operator is to reconcile it at all."""
        return is_managed(self.body)

    @property
    def paused(self) -> bool:
        """Whether an annotation suspends all changes."""
        return is_paused(self.body)

    @property
    def suspended(self) -> str:
        """The annotation that suspends all changes, as text; empty if there is none."""
        if not self.managed:
            return _NOT_MANAGED
        return "annotation heliograph.dev/paused is true" if self.paused else ""

    @property
    def model(self) -> OperatorResource | None:
        """The parsed resource; None if it is invalid, and ``memory.problem`` says why.

        The API server checks the same rules; an invalid resource comes from another version of the definitions.
        """
        memory, generation = self.memory, self.generation
        if memory.generation != generation:
            memory.generation, memory.model, memory.problem = generation, None, ""
            document = manifest(self.key, self.spec)
            model = KINDS[self.key.kind]
            try:
                memory.model = model.model_validate(document)
            except ValidationError as error:
                memory.problem = "; ".join(explain(error, model, document))
        return memory.model
