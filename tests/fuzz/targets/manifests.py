"""Manifests in YAML and JSON: resources, or a ManifestError that says what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.resources.model import API_VERSION, BROKER_KINDS

from tests.fuzz.target import Finding

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
_HEADS = [b"", *(f"apiVersion: {API_VERSION}\nkind: {kind}\n".encode() for kind in BROKER_KINDS)]


def run(data: bytes) -> None:
    # Few inputs would begin like this by chance.
    head = _HEADS[data[0] % len(_HEADS)] if data else b""
    text = (head + data[1:]).decode("utf-8", "replace")
    source = "m.json" if data[:1] >= b"\x80" else "m.yaml"
    try:
        resources = parse(data[1:].decode("utf-8", "replace") if source == "m.json" else text, source)
    except ManifestError as error:
        if not error.problems or any(not line.startswith(source) for line in error.problems):
            raise Finding(f"problems that do not say where: {error.problems}") from error
        str(error).encode()
        return
    for resource in resources:
        if resource.kind not in BROKER_KINDS or not resource.metadata.name:
            raise Finding(f"taken: {resource}")


_SPECS: dict[str, dict[str, object]] = {
    "Tenant": {"allowedClusters": ["standalone"], "adminRoles": ["a"], "name": "t"},
    "Namespace": {
        "tenantRef": "t",
        "retention": {"time": "3d", "size": "10G"},
        "messageTTL": "1h",
        "backlogQuota": {"destinationStorage": {"limit": "1G", "policy": "producer_exception"}},
    },
    "Topic": {
        "namespaceRef": "n",
        "name": "x",
        "partitions": 3,
        "subscriptions": [{"name": "s", "deadLetterTopic": "d"}],
        "properties": {"a": "b"},
        "retention": {"time": "infinite", "size": "-1"},
    },
}


def seeds() -> Iterator[bytes]:
    for example in sorted(_EXAMPLES.glob("*.yaml")):
        for document in example.read_bytes().split(b"\n---\n"):
            yield b"\0" + document[:1500]
    for number, kind in enumerate(BROKER_KINDS, 1):
        body = {"metadata": {"name": "a", "namespace": "b"}, "spec": _SPECS.get(kind, {})}
        yield bytes([number]) + json.dumps(body).encode()
        yield b"\x80" + json.dumps({"apiVersion": API_VERSION, "kind": kind, **body}).encode()
        yield (
            bytes([number])
            + f"metadata:\n  name: a\nspec:\n  {next(iter(_SPECS.get(kind, {'a': 0})))}: &x [1]\n".encode()
        )
    yield b"\0a: &a [1, *a]\n<<: {b: !!int 3}\n? [c]\n: |\n  text\n--- >-\n %TAG\n...\n"


#: Tags and signs of YAML, for the fuzzer.
WORDS = ["!!int", "!!float", "!!bool", "!!timestamp", "!!binary", "!!set", "!!omap", "!!pairs", "!!null", "!!seq"]
WORDS += [
    "!!map",
    "!!str",
    "<<: ",
    "&a ",
    "*a",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "? ",
    ": ",
    "|\n",
    ">-\n",
    "- ",
    "\\u",
]
WORDS += ["retention", "metadata", "spec", "name", "infinite", "null", "true", "1e999", "-1", "10Gi", "3d"]
