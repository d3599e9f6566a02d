"""The files that are made from the definitions: ``crds/*.yaml``, the reference, the file for kube-state-metrics.

``python -m heliograph_api.crds.crd_files DIRECTORY`` writes them there; ``scripts/generate-crds`` calls it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from heliograph_api.resources.cel import RULES

from . import kube_state_metrics
from .definitions import definitions

REFERENCE = "docs/resources.md"

_HEADER = "# Made by scripts/generate-crds from api/heliograph_api/resources: not to be edited.\n"
_WIDTH = 118
_INTRODUCTION = """\
# Resources

Every field of the kinds of `heliograph.dev/v1alpha1`, generated from their definitions in [`crds/`](../crds) by
`scripts/generate-crds`. [Manifests](manifests.md) describes how to write them, and the syntax of sizes and durations.
In a cluster `kubectl explain topic.spec.retention` prints the same.

The API server itself refuses what `heliograph standalone -f` refuses: invalid values, invalid combinations of fields
within a resource, and changes of fields that cannot be changed. `kubectl apply` refuses an unknown field by its name
(strict validation is its default); a client that asks for no validation loses it silently. Only the operator can check
what depends on other resources: a missing parent, a retention below the backlog quota of the *namespace*, a name that
another resource has already, a dead letter topic that is the topic itself, a name that is too long only with its
tenant's and namespace's. Such a resource is stored, and its condition `Ready` is `False` with the reason.
"""


def files() -> Iterator[tuple[str, str]]:
    """Yield (path below the project, content) for each file."""
    made = list(definitions())
    for definition in made:
        text = yaml.dump(definition, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
        yield f"crds/{definition['spec']['names']['plural']}.yaml", _HEADER + text
    text = yaml.dump(kube_state_metrics.configuration(), Dumper=_Dumper, sort_keys=False, width=_WIDTH)
    yield kube_state_metrics.PATH, _HEADER + text
    yield REFERENCE, "\n".join([_INTRODUCTION, *(_section(definition) for definition in made)])


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: nothing else of Kubernetes is written with them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _section(definition: dict[str, Any]) -> str:
    names, (version,) = definition["spec"]["names"], definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    columns = version["additionalPrinterColumns"]
    shown = ", ".join(column["name"] for column in columns if not column.get("priority"))
    wide = ", ".join(column["name"] for column in columns if column.get("priority"))
    properties = schema["properties"]
    return "\n".join(
        [
            f"## {names['kind']}",
            "",
            f"{schema['description']} `kubectl get {names['shortNames'][0]}` shows {shown}; `-o wide` {wide} too.",
            "",
            *_table(properties["spec"], "spec"),
            *_rules(schema, properties["spec"]),
            f"### Status of a {names['kind']}",
            "",
            *_table(properties["status"], "status"),
        ]
    )


def _table(schema: dict[str, Any], path: str) -> list[str]:
    return ["| field | type | default | meaning |", "|---|---|---|---|", *_rows(schema, path), ""]


def _rows(schema: dict[str, Any], path: str) -> Iterator[str]:
    required = schema.get("required", [])
    for name, field in schema["properties"].items():
        here = f"{path}.{name}"
        default = "needed" if name in required else _default(field)
        meaning = field.get("description", "").replace("\n", " ").replace("|", "\\|")
        yield f"| `{here.partition('.')[2]}` | {_type(field)} | {default} | {meaning} |"
        inner = field["items"] if field.get("type") == "array" else field
        if "properties" in inner:
            yield from _rows(inner, f"{here}[]" if inner is not field else here)


def _default(field: dict[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    if isinstance(value, dict):
        return ", ".join(f"`{name}: {item}`" for name, item in value.items())
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        messages = " ".join(rule["message"] for rule in field.get(RULES, []))
        return "duration" if "not a duration" in messages else "size"
    kind = field["type"]
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object":
        return f"{_type(field['additionalProperties'])} by name" if "additionalProperties" in field else "mapping"
    least, most = field.get("minimum"), field.get("maximum")
    if kind == "integer" and least is not None:
        return f"{least} to {most}" if most is not None and most < 2**31 - 1 else f"number, {least} or more"
    return {"string": "text", "boolean": "true or false", "integer": "number", "number": "number"}[kind]


def _rules(schema: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    found = [*_found(spec, ""), *((rule.get("fieldPath", ""), rule["message"]) for rule in schema.get(RULES, []))]
    if not found:
        return []
    rows = [f"- `{path.removeprefix('.').removeprefix('spec.')}`: {message}" for path, message in dict.fromkeys(found)]
    return ["Refused by rules across fields, or when a field is changed:", "", *rows, ""]


def _found(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    if schema.get("type") == "object":
        for rule in schema.get(RULES, []):
            yield path + rule.get("fieldPath", ""), rule["message"]
    for name, field in schema.get("properties", {}).items():
        yield from _found(field, f"{path}.{name}")


def main(arguments: Sequence[str]) -> None:
    """Write the files below the directory named."""
    (directory,) = arguments
    for path, text in files():
        target = Path(directory, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
