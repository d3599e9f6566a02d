"""The definitions in ``crds/``: made from the model as it is, structural, described, and with the model's defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from heliograph_api.broker_config import RANGES, BrokerConfig
from heliograph_api.crds import kube_state_metrics
from heliograph_api.crds.crd_files import REFERENCE, files
from heliograph_api.crds.definitions import DEFINITIONS, definitions
from heliograph_api.resources.cel import RULES
from heliograph_api.resources.model import KINDS
from heliograph_api.resources.settings import OPERATORS
from heliograph_api.resources.status import BacklogStatus, Condition, TopicStatus
from pydantic import BaseModel

_PROJECT = Path(__file__).parents[3]
_Schema = dict[str, Any]
_MADE = {definition["spec"]["names"]["kind"]: definition for definition in definitions()}
_BACKUP: _Schema = {
    "clusterRef": {"name": "main"},
    "destination": {"volume": {"claimRef": {"name": "disk"}, "directory": "main"}},
}
_MINIMAL: dict[str, _Schema] = {
    "BrokerCluster": {},
    "BrokerConnection": {"adminUrl": "http://pulsar:8080"},
    "Tenant": {},
    "Namespace": {"tenantRef": {"name": "shop"}},
    "Topic": {"namespaceRef": {"name": "payments"}},
    "Subscription": {"topicRef": {"name": "orders"}},
    "Backup": _BACKUP,
    "ScheduledBackup": {"schedule": "@daily", "template": _BACKUP},
    "User": {"clusterRef": {"name": "main"}},
}

kinds = pytest.mark.parametrize("kind", KINDS)


def _version(kind: str) -> _Schema:
    (version,) = _MADE[kind]["spec"]["versions"]
    assert isinstance(version, dict)
    return version


def _schema(kind: str) -> _Schema:
    schema = _version(kind)["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


def _nodes(schema: _Schema, path: str = "") -> Iterator[tuple[str, _Schema]]:
    """Yield (path, schema) of a schema and all in it."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from _nodes(field, f"{path}.{name}")
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            yield from _nodes(schema[inner], f"{path}[]")


def _at(schema: _Schema, path: str) -> _Schema | None:
    found: _Schema | None = schema
    for name in path.strip(".").split("."):
        found = found.get("properties", {}).get(name) if found is not None else None
    return found


def test_the_files_are_current() -> None:
    made = dict(files())
    for path, text in made.items():
        assert (_PROJECT / path).read_text(encoding="utf-8") == text, f"{path}: run scripts/generate-crds"
    assert {f"crds/{file.name}" for file in (_PROJECT / "crds").iterdir()} == set(made) - {
        REFERENCE,
        kube_state_metrics.PATH,
    }


@kinds
def test_names(kind: str) -> None:
    names, metadata = _MADE[kind]["spec"]["names"], _MADE[kind]["metadata"]
    assert names["categories"] == ["heliograph"]
    short = {"BrokerCluster": "bcl", "BrokerConnection": "hconnection", "Tenant": "htenant"}
    short |= {"Namespace": "hns", "Topic": "htopic", "Subscription": "hsub"}
    short |= {"Backup": "hbackup", "ScheduledBackup": "hsbackup", "User": "huser"}
    assert names["shortNames"] == [short[kind]]
    assert metadata["name"] == f"{names['plural']}.heliograph.dev"


@kinds
def test_schemas_are_structural(kind: str) -> None:
    for path, node in _nodes(_schema(kind)):
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert not node.keys() & {"$ref", "anyOf", "allOf", "oneOf", "title", "const", "nullable"}, path
        assert node.get("additionalProperties") not in (True, False), path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert node.get("default", "") is not None, path


@kinds
def test_every_field_is_described(kind: str) -> None:
    for path, node in _nodes(_schema(kind)):
        for name, field in node.get("properties", {}).items():
            if f"{path}.{name}" not in (".metadata", ".metadata.name"):
                assert len(field.get("description", "")) > 10, f"{path}.{name}"
                assert "``" not in field["description"]


@kinds
def test_the_model_has_the_same_fields(kind: str) -> None:
    def compare(model: type[BaseModel], schema: _Schema, path: str) -> None:
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        assert schema["properties"].keys() == fields.keys(), path
        assert sorted(schema.get("required", [])) == sorted(
            name for name, field in fields.items() if field.is_required()
        ), path
        for name, field in fields.items():
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    inner = schema["properties"][name]
                    compare(part, inner.get("items", inner), f"{path}.{name}")

    compare(KINDS[kind].model_fields["spec"].annotation, _schema(kind)["properties"]["spec"], "spec")  # type: ignore[arg-type]


@kinds
def test_defaults_are_those_of_the_model(kind: str) -> None:
    def defaulted(schema: _Schema, value: Any) -> Any:
        """Return what the API server stores."""
        if isinstance(value, list):
            return [defaulted(schema["items"], each) for each in value]
        if not isinstance(value, dict):
            return value
        filled = dict(value)
        for name, field in schema.get("properties", {}).items():
            if name not in filled and "default" in field:
                filled[name] = field["default"]
            if name in filled:
                filled[name] = defaulted(field, filled[name])
        return filled

    rates: _Schema = {"publishRate": {}, "subscribeRate": {"perConsumer": 3}} if kind in ("Namespace", "Topic") else {}
    rates |= {"auth": {"secretRef": {"name": "a"}}} if kind == "BrokerConnection" else {}
    rates |= {"authentication": [{"token": {}}]} if kind == "User" else {}
    spec = {**_MINIMAL[kind], **rates}
    head = {"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    stored = defaulted(_schema(kind)["properties"]["spec"], spec)
    assert stored != spec
    model = KINDS[kind]
    assert model.model_validate({**head, "spec": stored}) == model.model_validate({**head, "spec": spec})


@kinds
def test_rules_point_at_fields_and_say_what_is_valid(kind: str) -> None:
    rules = [(path, node, rule) for path, node in _nodes(_schema(kind)) for rule in node.get(RULES, [])]
    assert rules
    for path, node, rule in rules:
        if "fieldPath" in rule:
            assert _at(node, rule["fieldPath"]) is not None, (path, rule["fieldPath"])
        assert "valid: " in rule["message"] or "cannot be" in rule["message"] or "begins or ends" in rule["message"]


@kinds
def test_what_rules_read_has_an_end(kind: str) -> None:
    """The API server refuses rules that could take long."""
    for path, node in _nodes(_schema(kind)["properties"]["spec"]):
        if RULES in node and node.get("type") in (None, "string"):
            assert "maxLength" in node, path
        if node.get("type") == "array" and any(RULES in inner for _, inner in _nodes(node["items"])):
            assert "maxItems" in node, path


# Kubernetes before 1.34 estimates these to cost the same for a text of any length.
_CHEAP_CALLS = {"charAt", "startsWith", "endsWith", "size", "exists", "all", "filter", "map", "sum"}
_CHEAP_ON_WHAT_IS_WRITTEN_OUT = {"indexOf", "substring"}
_CHEAP_FUNCTIONS = {"type", "size", "int", "uint", "has"}


def _costly(rule: str) -> list[str]:
    """Return the parts of a rule on an int-or-string that Kubernetes before 1.34 takes for reading 3 MB."""
    found = []
    for written_out, call in re.findall(r"('?)\.(\w+)\(", rule):
        if call not in _CHEAP_CALLS | (_CHEAP_ON_WHAT_IS_WRITTEN_OUT if written_out else set()):
            found.append(f".{call}()")
    for function in re.findall(r"(?<![.\w])(\w+)\(", rule.replace("string(int(", "int(")):
        if function not in _CHEAP_FUNCTIONS:
            found.append(f"{function}()")
    for left, right in re.findall(r"(\S+) [!=]= (\S+)", rule):
        if not any(re.fullmatch(r"\W*(\d+u?|'.*'|size\(\w+\))\W*", side) for side in (left, right)):
            found.append(f"{left} == {right}")
    if re.search(r"'\s*\+|\+\s*'|\bx\s*\+|\+\s*x\b", rule):
        found.append("+ of texts")
    return found


def test_what_is_costly_in_a_rule_is_found() -> None:
    for rule, costly in [
        ("self.matches('^[0-9]+$')", ".matches()"),
        ("int(self.find('^[0-9]+')) > 0", ".find()"),
        ("size(self.substring(1)) > 0", ".substring()"),
        ("[1].exists(p, [1].exists(n, p == n))", "p == n))"),
        ("self.indexOf('0') == 0", ".indexOf()"),
        ("string(self) == '0'", "string()"),
        ("type(self) == int", "type(self) == int"),
        ("['s' + x].exists(y, y == 's')", "+ of texts"),
    ]:
        assert _costly(rule)[0] == costly, rule
    assert not _costly("['a'].exists(x, '01'.indexOf(x.charAt(0)) >= 0 && size(x) == n + 1 && x != '0')")


@kinds
def test_rules_of_sizes_and_durations_are_cheap_for_an_older_kubernetes(kind: str) -> None:
    for path, node in _nodes(_schema(kind)["properties"]["spec"]):
        for rule in node.get(RULES, []):
            text = rule["rule"]
            read = [node, *(_at(node, field) or {} for field in re.findall(r"\b(?:self|oldSelf)((?:\.\w+)+)", text))]
            if any(each.get("x-kubernetes-int-or-string") for each in read):
                assert _costly(text) == [], (path, text)


@kinds
def test_columns_show_what_there_is(kind: str) -> None:
    columns = _version(kind)["additionalPrinterColumns"]
    assert len({column["name"] for column in columns}) == len(columns)
    for column in columns:
        path = re.sub(r"\[\?\(@\.type==\"\w+\"\)\]\.\w+$", "", column["jsonPath"])
        assert path == ".metadata.creationTimestamp" or _at(_schema(kind), path) is not None, path
    shown = [column["name"] for column in columns if not column.get("priority")]
    assert "Age" in shown
    assert "Phase" in shown if kind == "Backup" else {"Ready", "Reason"} <= set(shown)
    assert kind not in ("Tenant", "Namespace", "Topic") or {"Backlog", "Oldest"} <= set(shown)
    assert kind != "Topic" or "Quota" in shown


def test_subresources() -> None:
    for kind in DEFINITIONS:
        subresources = _version(kind)["subresources"]
        assert subresources["status"] == {}
        paths = subresources.get("scale", {}).values()
        assert bool(paths) == (kind == "BrokerCluster")
        assert all(_at(_schema(kind), path) is not None for path in paths)


def test_settings_are_those_of_the_broker_with_its_limits() -> None:
    schema = _at(_schema("BrokerCluster"), "spec.config")
    assert schema is not None
    settings = schema["properties"]
    assert settings.keys() == set(BrokerConfig.__struct_fields__) - set(OPERATORS)
    for name in RANGES.keys() & settings.keys():
        least = settings[name]["minimum"]
        BrokerConfig(**{name: least})
        with pytest.raises(ValueError, match="is out of range"):
            BrokerConfig(**{name: least - 1})


def test_definitions_are_small_enough_for_a_kubectl_apply() -> None:
    # It keeps what was applied as JSON in an annotation, of which there may be 256 KiB.
    for path, text in files():
        if path.endswith(".yaml"):
            assert len(json.dumps(yaml.safe_load(text), separators=(",", ":"))) < 200 * 1024, path


def test_a_status_is_written_as_the_definition_has_it() -> None:
    status = TopicStatus(
        observed_generation=3,
        conditions=[
            Condition.model_validate(
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Reconciled",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
            )
        ],
        backlog=BacklogStatus(messages=7, bytes="1.2Mi", oldest_age="42s"),
        quota_used="15%",
        quota_used_percent=15,
    )
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written["backlog"] == {"messages": 7, "bytes": "1.2Mi", "oldestAge": "42s"}
    assert written["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    schema = _at(_schema("Topic"), "status")
    assert schema is not None
    assert written.keys() <= schema["properties"].keys()
