"""The custom resource definitions of all kinds, made from the model: structural OpenAPI v3, with its rules in CEL.

``scripts/generate-crds`` writes them to ``crds/``. The API server prunes fields that are not in them; `kubectl apply`
and other clients that ask for strict validation get their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from heliograph_api.resources.cel import RULES
from heliograph_api.resources.fields import DURATION_FORMAT, SIZE_FORMAT
from heliograph_api.resources.model import API_VERSION, KINDS, OperatorKind
from heliograph_api.resources.status import (
    BackupStatus,
    BrokerClusterStatus,
    BrokerConnectionStatus,
    NamespaceStatus,
    ScheduledBackupStatus,
    SubscriptionStatus,
    TenantStatus,
    TopicStatus,
    UserStatus,
)
from heliograph_api.values.durations import format_duration
from heliograph_api.values.sizes import format_size

GROUP, _, VERSION = API_VERSION.partition("/")
CATEGORY: Final = "heliograph"

_Schema = dict[str, Any]
_PRESERVED = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``; ``wide`` ones are shown by ``-o wide`` only."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def schema(self) -> _Schema:
        """Return the column as a CustomResourceDefinition describes it."""
        column: _Schema = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return {**column, "priority": 1} if self.wide else column


@dataclass(frozen=True, slots=True)
class Definition:
    """The parts of a definition that do not follow from the model of its kind."""

    plural: str
    short_name: str
    status: type[BaseModel]
    columns: tuple[Column, ...]
    scaled: bool = False


def _condition(field: str, kind: str = "Ready") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_READY = (
    Column("Ready", _condition("status"), "Whether the broker's state matches the resource."),
    Column("Reason", _condition("reason"), "Reason of the condition Ready."),
)
_HELD = (
    Column("Backlog", ".status.backlog.messages", "Number of unacknowledged messages.", "integer"),
    Column("Oldest", ".status.backlog.oldestTime", "Age of the oldest unacknowledged message.", "date"),
)
_HELD_WIDE = (
    Column("Backlog-Bytes", ".status.backlog.bytes", "Bytes of unacknowledged messages.", wide=True),
    Column("Storage", ".status.storage.bytes", "Bytes stored.", wide=True),
    Column("Name-In-Broker", ".status.name", "Full name in the broker.", wide=True),
    Column("Message", _condition("message"), "Message of the condition Ready.", wide=True),
)
_AGE = Column("Age", ".metadata.creationTimestamp", "Age of the resource.", "date")

DEFINITIONS: Final[Mapping[str, Definition]] = {
    "BrokerCluster": Definition(
        "brokerclusters",
        "bcl",
        BrokerClusterStatus,
        (
            *_READY,
            Column("Brokers", ".status.readyReplicas", "Number of ready brokers.", "integer"),
            Column("Version", ".status.version", "Version of the running broker."),
            _AGE,
            Column("Desired", ".spec.replicas", "Desired number of brokers.", "integer", wide=True),
            Column("Endpoint", ".status.endpoints.broker", "Address for clients.", wide=True),
            _HELD_WIDE[-1],
        ),
        scaled=True,
    ),
    "BrokerConnection": Definition(
        "brokerconnections",
        "hconnection",
        BrokerConnectionStatus,
        (
            *_READY,
            Column("Product", ".status.product", "Product of the brokers."),
            Column("Version", ".status.version", "Version of the brokers."),
            _AGE,
            Column("Admin-URL", ".spec.adminUrl", "URL of the admin API.", wide=True),
            Column("Endpoint", ".spec.serviceUrl", "Address for clients.", wide=True),
            _HELD_WIDE[-1],
        ),
    ),
    "Tenant": Definition(
        "tenants",
        "htenant",
        TenantStatus,
        (
            *_READY,
            Column("Namespaces", ".status.namespaces", "Number of namespaces.", "integer"),
            Column("Topics", ".status.topics", "Number of topics in them.", "integer"),
            *_HELD,
            _AGE,
            *_HELD_WIDE,
        ),
    ),
    "Namespace": Definition(
        "namespaces",
        "hns",
        NamespaceStatus,
        (
            *_READY,
            Column("Topics", ".status.topics", "Number of topics.", "integer"),
            *_HELD,
            _AGE,
            Column("Tenant", ".spec.tenantRef.name", "The Tenant it belongs to.", wide=True),
            *_HELD_WIDE,
        ),
    ),
    "Topic": Definition(
        "topics",
        "htopic",
        TopicStatus,
        (
            *_READY,
            *_HELD,
            Column("Quota", ".status.quotaUsed", "Used share of the backlog quota."),
            _AGE,
            Column(
                "Exceeded", _condition("status", "QuotaExceeded"), "Whether the backlog quota is exceeded.", wide=True
            ),
            Column("Partitions", ".status.partitions", "Number of partitions.", "integer", wide=True),
            Column("Namespace-Ref", ".spec.namespaceRef.name", "The Namespace it belongs to.", wide=True),
            *_HELD_WIDE,
        ),
    ),
    "Subscription": Definition(
        "subscriptions",
        "hsub",
        SubscriptionStatus,
        (
            *_READY,
            *_HELD,
            Column("Consumers", ".status.consumers", "Number of connected consumers.", "integer"),
            _AGE,
            Column("Topic-Ref", ".spec.topicRef.name", "The Topic it belongs to.", wide=True),
            _HELD_WIDE[0],
            *_HELD_WIDE[2:],
        ),
    ),
    "Backup": Definition(
        "backups",
        "hbackup",
        BackupStatus,
        (
            Column("Phase", ".status.phase", "Waiting, Running, Succeeded or Failed."),
            Column("Cluster", ".spec.clusterRef.name", "The BrokerCluster."),
            Column("Size", ".status.size", "Bytes of the backup."),
            Column("Completed", ".status.completionTime", "Time since it ended.", "date"),
            _AGE,
            Column("Verified", ".status.verifiedTime", "Time since it was verified.", "date", wide=True),
            Column("Name-In-Store", ".status.name", "Name of the backup in the store.", wide=True),
            Column("URL", ".status.url", "URL of the place in which it is stored.", wide=True),
            _HELD_WIDE[-1],
        ),
    ),
    "ScheduledBackup": Definition(
        "scheduledbackups",
        "hsbackup",
        ScheduledBackupStatus,
        (
            *_READY,
            Column("Schedule", ".spec.schedule", "Schedule of the backups."),
            Column("Suspended", ".spec.suspend", "Whether no more backups are started.", "boolean"),
            Column("Last-Success", ".status.lastSuccessTime", "Time since the last successful backup.", "date"),
            Column("Backups", ".status.backups", "Number of successful backups.", "integer"),
            _AGE,
            Column("Cluster", ".spec.template.clusterRef.name", "The BrokerCluster.", wide=True),
            Column("Next", ".status.nextTime", "Next time of the schedule.", wide=True),
            Column("Last-Backup", ".status.lastBackup", "The Backup that was created last.", wide=True),
            _HELD_WIDE[-1],
        ),
    ),
    "User": Definition(
        "users",
        "huser",
        UserStatus,
        (
            *_READY,
            Column("Role", ".status.role", "Name of the role in the broker."),
            Column("Expires", ".status.tokenExpires", "When the token expires."),
            _AGE,
            Column("Cluster", ".spec.clusterRef.name", "The BrokerCluster.", wide=True),
            Column("Secret", ".status.credentials.name", "The Secret with the token.", wide=True),
            _HELD_WIDE[-1],
        ),
    ),
}


def definitions() -> Iterator[_Schema]:
    """Yield the definitions, parents first, as they are to be applied."""
    for kind, model in KINDS.items():
        yield _definition(kind, model, DEFINITIONS[kind])


def _definition(kind: str, model: OperatorKind, definition: Definition) -> _Schema:
    subresources: _Schema = {"status": {}}
    if definition.scaled:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": definition.plural,
                "singular": kind.lower(),
                "shortNames": [definition.short_name],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [column.schema() for column in definition.columns],
                    "subresources": subresources,
                    "schema": {"openAPIV3Schema": schema(model, definition.status)},
                }
            ],
        },
    }


def schema(model: OperatorKind, status: type[BaseModel]) -> _Schema:
    """Return the structural schema of a kind."""
    given = model.model_json_schema(by_alias=True)
    own = _Inliner(given["$defs"]).inlined(given)
    spec = own["properties"]["spec"]
    required = "spec" in own["required"]
    if not required:
        # Its defaults then are there to be seen, and handlers need not ask.
        spec["default"] = {}
    reported = status.model_json_schema(by_alias=True)
    return {
        "type": "object",
        "description": own["description"],
        "required": ["spec"] if required else ["metadata"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Version of the API: {API_VERSION}."},
            "kind": {"type": "string", "description": f"Kind of the resource: {model.__name__}."},
            # The name is described so that a rule can point at it.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": {**spec, "description": "Desired state."},
            "status": {
                **_Inliner(reported.get("$defs", {})).inlined(reported),
                "description": "Observed state; written by the operator.",
            },
        },
    } | ({RULES: own[RULES]} if RULES in own else {})


class _Inliner:
    """Makes a structural schema for the API server: without references, unions with null, titles."""

    def __init__(self, shared: Mapping[str, _Schema]) -> None:
        self._shared = shared

    def inlined(self, given: _Schema) -> _Schema:
        """Return the schema with all that it refers to in it."""
        schema = self._resolved(given)
        default = schema.get("default")
        if isinstance(default, dict):
            # The model's are in bytes and milliseconds, and name what is left out.
            fields = {name: self._resolved(each) for name, each in schema.get("properties", {}).items()}
            schema["default"] = {
                name: _written(value, fields[name].get("format"))
                for name, value in default.items()
                if value is not None and value != fields[name].get("default")
            }
        return self._plain(schema)

    def _resolved(self, given: _Schema) -> _Schema:
        schema = dict(given)
        while "$ref" in schema or "anyOf" in schema:
            if "$ref" in schema:
                found = self._shared[schema.pop("$ref").removeprefix("#/$defs/")]
            else:
                (found,) = (each for each in schema.pop("anyOf") if each.get("type") != "null")
            # The field's own keys come before those of its type.
            schema = {**found, **schema, RULES: [*found.get(RULES, []), *schema.get(RULES, [])]}
        return schema

    def _plain(self, given: _Schema) -> _Schema:
        schema: _Schema = {}
        kind = given.get("format")
        if "type" in given:
            schema["type"] = given["type"]
        if "description" in given:
            schema["description"] = _sentences(given["description"])
        if (default := given.get("default")) not in (None, "", {}, []):
            schema["default"] = _written(default, kind)
        for key in ("enum", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "maxItems"):
            if key in given:
                schema[key] = given[key]
        if "const" in given:
            # One value is an enumeration, too; the API server knows no other word for it.
            schema["enum"] = [given["const"]]
        if kind not in (None, SIZE_FORMAT, DURATION_FORMAT):
            schema["format"] = kind
        if "properties" in given:
            schema["properties"] = {name: self.inlined(each) for name, each in given["properties"].items()}
        if given.get("required"):
            schema["required"] = sorted(given["required"])
        if given.get("additionalProperties") is True:
            schema[_PRESERVED] = True
        elif given.get("additionalProperties"):
            schema["additionalProperties"] = self.inlined(given["additionalProperties"])
        if "items" in given:
            schema["items"] = self.inlined(given["items"])
        for key, value in given.items():
            if key.startswith("x-kubernetes-") and value:
                schema[key] = value
        return schema


def _written(default: Any, kind: str | None) -> Any:
    """Return a default as a person writes it."""
    if kind == DURATION_FORMAT:
        return format_duration(default)
    return format_size(default) if kind == SIZE_FORMAT else default


def _sentences(description: str) -> str:
    """Return a docstring as plain lines, a paragraph in one."""
    paragraphs = re.split(r"\n\s*\n", description.strip())
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).replace("`", "")
