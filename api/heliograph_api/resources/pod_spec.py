"""The pods of a BrokerCluster: a patch of their template, and how many of them may be evicted."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .fields import Model

Opaque = dict[str, Any]
"""A part of a pod, as in Kubernetes; it is validated when the StatefulSet is applied."""


class PodTemplateMetadata(Model):
    """Metadata of the pods."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations, beside those of the operator."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels, beside those of the operator."""


class PodTemplateSpec(Model):
    """A strategic merge patch of the pod template that the operator makes."""

    metadata: PodTemplateMetadata = Field(default_factory=PodTemplateMetadata)
    """Metadata of the pods."""
    spec: Opaque = Field(default_factory=dict)
    """Patch of the pod's spec, as in Kubernetes: volumes, containers (the broker's is named `broker`), init containers,
    security context, probes and so on. What the operator depends on cannot be changed."""

    def patch(self) -> dict[str, Any]:
        """Return the patch as Kubernetes has it."""
        return {"metadata": self.metadata.model_dump(), "spec": self.spec}


class PodDisruptionBudgetSpec(Model):
    """The PodDisruptionBudget of the brokers."""

    enabled: bool = True
    """Whether there is a PodDisruptionBudget."""
    max_unavailable: int = Field(default=1, ge=0, le=2**31 - 1)
    """Brokers that may be evicted at a time. 0 blocks the drain of a broker's node until it is raised."""
