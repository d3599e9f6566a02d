"""Manifests, good and bad, over all kinds and rules: one table for all validators.

``manifest_table.yaml`` holds the cases. `heliograph standalone -f` and the API server, with the definitions of
``crds/``, accept the same of them and refuse the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph_api.manifests.documents import read_yaml, write_yaml

_KINDS = {
    "subscription": "Subscription",
    "topic": "Topic",
    "namespace": "Namespace",
    "tenant": "Tenant",
    "cluster": "BrokerCluster",
    "connection": "BrokerConnection",
}
_REFERENCES = {
    "subscription": {"topicRef": {"name": "orders"}},
    "topic": {"namespaceRef": {"name": "payments"}},
    "namespace": {"tenantRef": {"name": "shop"}},
}
_API_VERSION = "heliograph.dev/v1alpha1"
# Too long to be read in a table.
_LONG: list[dict[str, Any]] = [
    {
        "case": "as many subscriptions as there can be, with the longest of names",
        "topic": {"subscriptions": [f"{number:0240}" for number in range(1000)]},
        "errors": [],
    },
    {
        "case": "one subscription too many",
        "topic": {"subscriptions": [str(number) for number in range(1001)]},
        "errors": ["spec.subscriptions: a list of 1001 is too long; valid: at most 1000"],
    },
    {"case": "tenant name as long as can be", "tenant": {"name": "x" * 240}, "errors": []},
    {
        "case": "tenant name too long",
        "tenant": {"name": "x" * 241},
        "errors": ["spec.name: 'xxxx…"],
    },
    {
        "case": "reference too long",
        "namespace": {"tenantRef": {"name": "x" * 254}},
        "errors": ["spec.tenantRef.name: 'xxxx…"],
    },
]


@dataclass(frozen=True)
class Case:
    """A manifest and what is wrong with it: nothing, or a line for each error."""

    name: str
    text: str
    """The file."""
    errors: list[str]
    """The lines, each to its end or to its ``…``."""
    resource: dict[str, Any] | None
    """The one resource in the file; ``None`` where the case is about files and not about a resource."""
    fields: list[str]
    """Paths of the fields that the API server names, if the resource is bad."""

    def __str__(self) -> str:
        return self.name


def cases() -> list[Case]:
    """Return the table."""
    (table,) = read_yaml(Path(__file__).with_name("manifest_table.yaml").read_text(encoding="utf-8"))
    assert isinstance(table, list)
    return [_case(entry) for entry in [*table, *_LONG]]


def _case(entry: dict[str, Any]) -> Case:
    name, errors = entry["case"], entry["errors"]
    if "text" in entry:
        return Case(name, entry["text"], errors, None, [])
    if "resource" in entry:
        resource = {"apiVersion": _API_VERSION, **entry["resource"]}
    else:
        shape = next(key for key in _KINDS if key in entry)
        resource = {
            "apiVersion": _API_VERSION,
            "kind": _KINDS[shape],
            "metadata": {"name": "orders"},
            "spec": {**_REFERENCES.get(shape, {}), **entry[shape]},
        }
    fields = entry.get("api", [line.partition(":")[0] for line in errors])
    prefix = f"m.yaml: document 1 ({resource['kind']} {resource['metadata']['name']}): "
    return Case(name, write_yaml([resource]), [prefix + line for line in errors], resource, fields)
