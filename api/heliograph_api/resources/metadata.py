"""The metadata that the resources share with every object in Kubernetes."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from heliograph_api.values.quoting import quoted

from .fields import Model

OTHER_SUBSCRIPTIONS: Final = "heliograph.dev/other-subscriptions"
"""Annotation of a Topic's manifest: a JSON list of subscriptions that other resources describe, so that applying the
Topic leaves their policies alone. The operator sends it to a broker."""
OTHER_ROLES: Final = "heliograph.dev/other-roles"
"""Annotation of the manifest of a Namespace or Topic: a JSON list of roles that Users have, so that applying the
permissions leaves their grants alone. The operator sends it to a broker."""
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*", re.ASCII)
_NAMESPACE_NAME = re.compile(_LABEL, re.ASCII)
MAX_NAMESPACE = 63


def _object_name(text: str) -> str:
    if len(text) > 253 or not _OBJECT_NAME.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is not a name of an object in Kubernetes; valid: small letters, digits, - and ."
            " (a letter or digit at both ends), at most 253; a name in the broker that has others goes in spec.name"
        )
    return text


def check_namespace_name(text: str) -> str:
    """Check the name of a Kubernetes namespace. Raises :class:`ValueError`."""
    if len(text) > MAX_NAMESPACE or not _NAMESPACE_NAME.fullmatch(text):
        raise ValueError(
            f"{quoted(text)} is not a name of a namespace in Kubernetes; valid: small letters, digits and -"
            " (a letter or digit at both ends), at most 63"
        )
    return text


class Metadata(Model):
    """Kubernetes' metadata: ``name`` and ``namespace`` tell resources apart, the rest does not concern a broker."""

    name: Annotated[str, AfterValidator(_object_name)]
    namespace: Annotated[str, AfterValidator(check_namespace_name)] = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    # Fields that `kubectl get -o yaml` adds.
    uid: Any = None
    resource_version: Any = None
    generation: Any = None
    generate_name: Any = None
    creation_timestamp: Any = None
    deletion_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    managed_fields: Any = None
    finalizers: Any = None
    owner_references: Any = None
    self_link: Any = None
