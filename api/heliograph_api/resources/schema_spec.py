"""The schema of a Topic: what its messages hold, for clients that serialize and check them."""

from __future__ import annotations

import json
import re
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.schema_digest import schema_digest

from .cel import Rule
from .fields import MAX_REFERENCE, Contradiction, Model, Reference

_MAX_DEFINITION: Final = 65_536
_AVRO: Final = ("AVRO", "JSON", "PROTOBUF")
_DEFINED: Final = (*_AVRO, "PROTOBUF_NATIVE")
_NEEDED = "is missing; valid: for this type, the schema's definition"
_NOT_JSON = "is not a definition of this type; valid: an Avro schema, as JSON"
_NO_DEFINITION = "this type says all there is to say; valid: leave it out"
_TWICE = "there is a definition, too; valid: one of definition and definitionFrom"
_KEY: Final = "^[-._a-zA-Z0-9]+$"
_NO_KEY = "not a key of a ConfigMap; valid: letters, digits and the characters - . _"


def _key(text: str) -> str:
    if not re.fullmatch(_KEY, text, re.ASCII):
        raise ValueError(_NO_KEY)
    return text


class ConfigMapKeyReference(Reference):
    """A reference to an entry of a ConfigMap in the Kubernetes namespace of the resource."""

    key: Annotated[
        str,
        AfterValidator(_key),
        Field(min_length=1, max_length=MAX_REFERENCE),
        Rule(f"self.matches('{_KEY}')", _NO_KEY),
    ]
    """Key of the entry in `data`."""


class DefinitionSource(Model):
    """A place that has the definition of a schema."""

    config_map_key_ref: ConfigMapKeyReference
    """Entry of a ConfigMap."""


class SchemaSpec(Model):
    """A schema. A topic's earlier versions stay, and nothing is deleted when the field is removed."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!(self.type in {list(_DEFINED)}) || has(self.definition) || has(self.definitionFrom)",
            _NEEDED,
            ".definition",
        ),
        Rule(f"self.type in {list(_DEFINED)} || !has(self.definition)", _NO_DEFINITION, ".definition"),
        Rule(f"self.type in {list(_DEFINED)} || !has(self.definitionFrom)", _NO_DEFINITION, ".definitionFrom"),
        Rule("!has(self.definition) || !has(self.definitionFrom)", _TWICE, ".definitionFrom"),
    )

    type: Literal[
        "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE",
        "TIME", "TIMESTAMP", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE",
    ]  # fmt: skip
    """Pulsar's name of the type."""
    definition: Annotated[str, Field(min_length=1, max_length=_MAX_DEFINITION)] | None = None
    """The definition: an Avro schema as JSON for AVRO, JSON and PROTOBUF, and Pulsar's JSON of a descriptor for
    PROTOBUF_NATIVE; the other types have none."""
    definition_from: DefinitionSource | None = None
    """Entry of a ConfigMap that has the definition, instead of `definition`. The operator reads it again every minute.
    A broker without the operator refuses it."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Properties that the version of the schema gets when it is stored; later changes of them have no effect."""

    @property
    def digest(self) -> str:
        """Tells the schema from others, as :func:`schema_digest` does; only of one whose definition is here."""
        return schema_digest(self.type, (self.definition or "").encode())

    @model_validator(mode="after")
    def _has_the_definition_of_its_type(self) -> Self:
        if self.type not in _DEFINED and self.definition_from is not None:
            raise Contradiction([("definitionFrom", _NO_DEFINITION)])
        if self.definition is not None and self.definition_from is not None:
            raise Contradiction([("definitionFrom", _TWICE)])
        if self.type in _DEFINED and self.definition is None and self.definition_from is None:
            raise Contradiction([("definition", _NEEDED)])
        if self.type not in _DEFINED and self.definition is not None:
            raise Contradiction([("definition", _NO_DEFINITION)])
        if self.type in _AVRO and self.definition is not None and not _is_json(self.definition):
            raise Contradiction([("definition", _NOT_JSON)])
        return self


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    return True
