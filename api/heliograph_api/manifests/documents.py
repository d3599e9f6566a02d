"""The documents in a file of YAML or JSON.

Stricter than YAML 1.1 where that guesses: a key that is there twice is an error, and ``yes``, ``on``, ``1:30``
(not 90), ``010`` (not 8) and ``2024-01-01`` (not a date) are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import yaml
from yaml.constructor import ConstructorError

_BREAKS = re.compile("[\x85\u2028\u2029]")


class NotReadable(ValueError):
    """The text is not YAML or JSON; the message says where and why."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain scalars, and no key twice."""


# Not SafeLoader's, which its subclasses share and would add to.
_Loader.yaml_implicit_resolvers = {}


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,99})", "-+0123456789"),
    ("float", r"[-+]?(0|[1-9][0-9]{0,99})\.[0-9]{1,99}([eE][-+][0-9]{1,3})?", "-+0123456789"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Iterator[dict[Any, Any]]:
    # Handed out before it is filled, as it may hold itself.
    mapping: dict[Any, Any] = {}
    yield mapping
    seen: set[object] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float | bool | None):
            raise ConstructorError(None, None, "a key that is not plain", key_node.start_mark)
        if key in seen:
            raise ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    mapping.update(loader.construct_mapping(node, deep=True))


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(text: str) -> list[object]:
    """Return the documents of a YAML stream, empty ones as ``None``. Raises :class:`NotReadable`."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise NotReadable(f"not YAML: {at}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise NotReadable(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise NotReadable("not YAML that can be read: nested too deeply") from None
    except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
        raise NotReadable(f"not YAML that can be read: a value does not fit its tag (!!int, !!bool): {error}") from None


def read_json(text: str) -> list[object]:
    """Return the one document of a JSON text. Raises :class:`NotReadable`."""
    try:
        return [json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)]
    except json.JSONDecodeError as error:
        raise NotReadable(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise NotReadable("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        raise NotReadable(f"not JSON: {error}") from None


def write_yaml(documents: Iterable[object]) -> str:
    """Return a YAML stream that :func:`read_yaml` reads back as ``documents``."""
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, explicit_start=True))


class _Dumper(yaml.SafeDumper):
    """Escapes the line breaks of Unicode, which a reader takes for one of its own and makes a line feed of."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if _BREAKS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"duplicate key {twice!r}")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")
