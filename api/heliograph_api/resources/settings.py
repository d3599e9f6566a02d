"""The settings of a broker as a BrokerCluster may give them: those of :class:`BrokerConfig`, by the same names."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from heliograph_api.broker_config import METRICS_LEVELS, RANGES, BrokerConfig
from heliograph_api.values.quoting import quoted

from .fields import Contradiction

OPERATORS: Final = (
    "data_dir",
    "bind",
    "broker_port",
    "http_port",
    "metrics_port",
    "advertised_host",
    "advertised_listeners",
    "internal_listener_name",
    "bind_addresses",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "tls_require_client_certificate",
    "broker_tls_port",
    "https_port",
    "tls_only",
)
"""Settings that belong to the pod a broker runs in, so that nobody but the operator chooses them."""

_TYPES: Final[Mapping[type, tuple[str, str, str]]] = {
    bool: ("boolean", "true or false", "true, false"),
    int: ("integer", "a whole number", "a whole number"),
    float: ("number", "a number", "a number"),
    str: ("string", "a text", "a text (quotes make one of a number)"),
}
_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(BrokerConfig) if field.name not in OPERATORS}


def check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return ``settings`` without null ones. Raises :class:`Contradiction` naming those that are wrong."""
    given = {name: value for name, value in settings.items() if value is not None or name not in _FIELDS}
    if found := [(name, problem) for name, value in given.items() for problem in _problems(name, value)]:
        raise Contradiction(found)
    try:
        BrokerConfig(**given).check_together(given_by_others=True)
    except ValueError as error:
        name, _, problem = str(error).partition(": ")
        raise Contradiction([(name, problem)]) from None
    return given


def _problems(name: str, value: Any) -> Iterator[str]:
    if name in OPERATORS:
        yield "is set by the operator; valid: leave it out"
        return
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.7)
        yield f"unknown field; {f'did you mean {near[0]}? ' if near else ''}valid: {', '.join(_FIELDS)}"
        return
    wanted = _FIELDS[name].type
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        _, what, valid = _TYPES[wanted]
        yield f"{quoted(value)} is not {what}; valid: {valid}"
        return
    try:
        BrokerConfig(**{name: value})
    except ValueError as error:
        yield str(error).removeprefix(f"{name}: ")


class SettingsSchema:
    """Describes the settings one by one, in the words of :class:`BrokerConfig`."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        docs = _docstrings()
        return {
            "type": "object",
            "properties": {name: _setting(field, docs[name]) for name, field in _FIELDS.items()},
        }


def _setting(field: msgspec.structs.FieldInfo, description: str) -> dict[str, Any]:
    default = quoted(field.default).replace("'", "") or '""'
    schema: dict[str, Any] = {
        "type": _TYPES[field.type][0],
        "description": f"{description} Default: {default}.",
    }
    least, most = RANGES.get(field.name, (None, None))
    if least is not None:
        schema["minimum"] = least
    if most is not None:
        schema["maximum"] = most
    if field.type is float:
        schema |= {"minimum": 0, "exclusiveMinimum": True}
    if field.name == "metrics_level":
        schema["enum"] = list(METRICS_LEVELS)
    return schema


def _docstrings() -> dict[str, str]:
    """Return what stands below each setting: Python keeps no docstrings of attributes."""
    body = ast.parse(textwrap.dedent(inspect.getsource(BrokerConfig))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            assert isinstance(below.value, ast.Constant)
            docs[statement.target.id] = " ".join(inspect.cleandoc(str(below.value.value)).replace("``", "`").split())
    return docs
