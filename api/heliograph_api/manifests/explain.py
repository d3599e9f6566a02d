"""Validation errors as text: the field's path, the value, and what would be valid."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from heliograph_api.values.quoting import quoted

_WANTED = {
    "bool_type": ("not true or false", "true, false"),
    "string_type": ("not a text", "a text (quotes make one of a number)"),
    "int_type": ("not a whole number", "a whole number"),
    "list_type": ("not a list", "a list ([a, b], or one line with a dash for each)"),
    "dict_type": ("not a mapping", "a mapping of names to texts"),
    "model_type": ("not a mapping", "a mapping"),
}
_MISSING = "is missing"


def explain(error: ValidationError, model: type[BaseModel], document: object) -> Iterator[str]:
    """Yield one line for each thing ``error`` found in ``document``, which was to be a ``model``."""
    for item in error.errors(include_url=False):
        location = item["loc"]
        if item["type"] == "contradiction":
            for field, problem in item["ctx"]["found"]:
                yield f"{path_of((*location, field))}: {problem}"
            continue
        yield f"{path_of(location)}: {_problem(item, model)}"


def path_of(location: tuple[int | str, ...]) -> str:
    """Return ``spec.subscriptions[2]`` for ``("spec", "subscriptions", 2)``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _problem(item: ErrorDetails, model: type[BaseModel]) -> str:
    kind, location, value, context = item["type"], item["loc"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        fields = fields_at(model, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), fields, n=1, cutoff=0.7)
        guess = f"did you mean {near[0]}? " if near else ""
        return f"unknown field; {guess}valid: {', '.join(fields)}"
    if kind == "missing":
        fields = fields_at(model, location)
        return f"{_MISSING}; valid: a mapping with {', '.join(fields)}" if fields else _MISSING
    if kind == "model_type":
        return f"{quoted(value)} is not a mapping; valid: a mapping with {', '.join(fields_at(model, location))}"
    if kind in _WANTED:
        what, valid = _WANTED[kind]
        return f"{quoted(value)} is {what}; valid: {valid}"
    if kind == "literal_error":
        # Pydantic writes 'a', 'b' or 'c'.
        valid = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        return f"{quoted(value)} is not one of them; valid: {valid}"
    if kind == "greater_than_equal":
        return f"{quoted(value)} is too small; valid: {context['ge']} or more"
    if kind == "less_than_equal":
        return f"{quoted(value)} is too large; valid: {context['le']} or less"
    if kind == "string_too_short":
        return "'' is empty; valid: a name"
    if kind == "string_too_long":
        return f"{quoted(value)} is too long; valid: at most {context['max_length']} characters"
    if kind == "too_long":
        return f"{quoted(value)} is too long; valid: at most {context['max_length']}"
    message = item["msg"].removeprefix("Value error, ")
    return message if kind == "value_error" else f"{quoted(value)}: {message}"


def fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the fields (as manifests write them) of the object at ``location`` in ``model``; none if it has none."""
    at: type[BaseModel] | None = model
    for part in location:
        # Errors in a list are found with the list.
        if not isinstance(part, int):
            at = _submodel(at, part) if at is not None else None
    return [field.alias or name for name, field in at.model_fields.items()] if at is not None else []


def _submodel(model: type[BaseModel], part: str) -> type[BaseModel] | None:
    for name, field in model.model_fields.items():
        if part in (field.alias, name):
            return _model_in(field.annotation)
    return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType, list):
        for member in get_args(annotation):
            if (found := _model_in(member)) is not None:
                return found
    return None


def title(document: Mapping[str, object]) -> str:
    """Return ``Topic orders`` for a document of that kind and name, as far as it says."""
    kind, metadata = document.get("kind"), document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    words = [word for word in (kind, name) if isinstance(word, str) and word.isprintable() and 0 < len(word) <= 253]
    return " ".join(words)
