"""Certificates of authorities that a resource names: an entry of a Secret or of a ConfigMap."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .cel import Rule
from .fields import Contradiction, Model, Reference

_ENTRY: Final = "[-._a-zA-Z0-9]+"
_NO_ENTRY: Final = "is not an entry of a Secret or ConfigMap; valid: letters, digits, -, _ and ."
_ONE: Final = "needs one source of certificates; valid: secretRef or configMapRef"


def _entry(text: str) -> str:
    if not re.fullmatch(_ENTRY, text):
        raise ValueError(f"{quoted(text)} {_NO_ENTRY}")
    return text


EntryName = Annotated[
    str,
    Field(min_length=1, max_length=253),
    AfterValidator(_entry),
    Rule(f"self.matches('^({_ENTRY})$')", _NO_ENTRY),
]
"""The name of an entry of a Secret or ConfigMap."""


class CertificateReference(Reference):
    """An entry of a Secret or ConfigMap with certificates."""

    key: EntryName = "ca.crt"
    """The entry that has the certificates, in PEM."""


class CertificateSource(Model):
    """Certificates of authorities."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.secretRef) != has(self.configMapRef)", _ONE, ".configMapRef"),
    )

    secret_ref: CertificateReference | None = None
    """Secret with the certificates."""
    config_map_ref: CertificateReference | None = None
    """ConfigMap with them."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            raise Contradiction([("configMapRef", _ONE)])
        return self


class MountedCertificates(CertificateSource):
    """Certificates of authorities that brokers get as a file."""

    secret_ref: CertificateReference | None = None
    """Secret with the certificates, in the Kubernetes namespace of the BrokerCluster. Brokers mount it; the operator
    does not read it."""
    config_map_ref: CertificateReference | None = None
    """ConfigMap with them, in the Kubernetes namespace of the BrokerCluster."""
