"""Writes the tables of policies in the guides from the table they are made from; ``--check`` only compares them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policies import SUBSCRIPTION_TYPES
from heliograph_api.policies.policy_field import Level, PolicyField, manifest_name
from heliograph_api.policies.policy_table import POLICY_FIELDS
from heliograph_api.resources.policy_parts import BacklogQuotaSpec
from heliograph_broker.cli.policies.policy_levels import NAMESPACE_POLICIES
from heliograph_broker.http.policies.policy_description import POST, PolicyPath
from heliograph_broker.http.policies.policy_table import MILLISECONDS, POLICIES

PROJECT: Final = Path(__file__).resolve().parents[1]
MARKER: Final = "<!-- Made by scripts/generate-policies: not to be edited. -->"

_RATE: Final = "`messages`, `bytes`, `period`"
#: Types of the kinds in manifests, and the default if the documentation of a row does not state it.
_MANIFEST_TYPES: Final = {
    kinds.SWITCH: ("true or false", "false"),
    kinds.COUNT: ("number", "0 (no limit)"),
    kinds.SIZE_LIMIT: ("size", "infinite"),
    kinds.THRESHOLD: ("size", "0 (never)"),
    kinds.DURATION: ("duration", "infinite"),
    kinds.DURATION_LIMIT: ("duration", "infinite"),
    kinds.UNUSED_FOR: ("duration", "infinite"),
    kinds.UNUSED_FOR_OR_ZERO: ("duration", "infinite"),
    kinds.RETENTION: (
        "`time` and `size`, both needed",
        "[as long as their ledger](policies.md#messages-outside-every-backlog)",
    ),
    kinds.SIZE_QUOTA: ("`limit` (size), `policy`", "none"),
    kinds.AGE_QUOTA: ("`limit` (duration), `policy`", "none"),
    kinds.RATE: (_RATE, "none"),
    kinds.SUBSCRIBE_RATE: ("`perConsumer`, `period`", "none"),
    kinds.INACTIVE_TOPIC: ("`maxInactive`, `mode`, `delete`", "none"),
    kinds.TOPIC_NAME: ("topic name", "none"),
    kinds.SUBSCRIPTION_TYPES: (f"list of {', '.join(f'`{name}`' for name in SUBSCRIPTION_TYPES)}", "none (all)"),
    kinds.SCHEMA_COMPATIBILITY: ("`FULL`, `BACKWARD`, `FORWARD`, …", "FULL"),
}


def of_manifests() -> Iterator[str]:
    """Yield the table of the policies that topics and namespaces have in manifests."""
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field, row in POLICY_FIELDS.items():
        if row.levels & Level.TOPIC:
            kind, default = _MANIFEST_TYPES[row.kind]
            doc = " ".join(_doc(field, row).split())
            stated = re.search(r" Default: ([^.]*)\.", doc)
            meaning = doc.replace(stated[0], "") if stated else doc
            yield f"| `{manifest_name(field, row)}` | {kind} | {stated[1] if stated else default} | {meaning} |"


def _doc(field: str, row: PolicyField) -> str:
    if row.kind in (kinds.SIZE_QUOTA, kinds.AGE_QUOTA):
        inner = "destination_storage" if row.kind is kinds.SIZE_QUOTA else "message_age"
        return BacklogQuotaSpec.model_fields[inner].description or ""
    return row.doc


def of_rest() -> Iterator[str]:
    """Yield the table of the paths of policies in the admin REST API."""
    yield from ("| namespace | topic | body |", "|---|---|---|")
    for path in (*POLICIES, *MILLISECONDS):
        yield f"| {_names(path, 0)} | {_names(path, 1)} | `{path.sample}`: {path.title}{_query(path)} |"
    yield (
        "| `backlogQuota` (GET: `backlogQuotaMap`) | `backlogQuota` (GET: `backlogQuotaMap`) | "
        '`{"limitSize": 10485760, "limitTime": -1, "policy": "producer_exception"}`: bytes, or with '
        "`?backlogQuotaType=message_age` seconds |"
    )
    yield '| `replication` | `replication` | `["standalone"]`: the broker\'s own cluster only |'


def _names(path: PolicyPath, level: int) -> str:
    names = ((path.namespace,) if path.namespace else (), path.topic)[level]
    notes = [path.verbs[level]] if path.verbs[level] != POST and names else []
    if path.unset[level] is not None:
        notes.append(f"unset: `{json.dumps(path.unset[level])}`")
    listed = ", ".join(f"`{name}`" for name in names if name is not None)
    return f"{listed} ({'; '.join(notes)})" if notes else listed


def _query(path: PolicyPath) -> str:
    return f"; at a topic `?{path.topic_query}={path.sample}` as well" if path.topic_query else ""


def of_commands() -> Iterator[str]:
    """Yield the table of the commands that set policies."""
    yield from ("| for namespaces | for topics | sets |", "|---|---|---|")
    at_topics = {row.command.namespace: row.command.topic for row in POLICY_FIELDS.values() if row.command is not None}
    for policy in NAMESPACE_POLICIES:
        topic = at_topics[policy.name]
        cell = "–" if not topic else "the same" if topic == policy.name else f"`{topic}`"
        yield f"| `{policy.name}` | {cell} | {policy.about} |"


TABLES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "docs/manifests.md": of_manifests,
    "docs/http.md": of_rest,
    "docs/cli.md": of_commands,
}


def renewed(text: str, table: Callable[[], Iterator[str]]) -> str:
    """Return a guide with the table after its marker rewritten. Raises :class:`ValueError` without a marker."""
    before, marker, after = text.partition(f"{MARKER}\n\n")
    if not marker:
        raise ValueError(f"there is no line {MARKER!r} with an empty line after it")
    return before + marker + "\n".join(table()) + "\n\n" + after.partition("\n\n")[2]


def main(arguments: list[str]) -> int:
    """Write the tables, or check that they are current."""
    stale = 0
    for name, table in TABLES.items():
        path = PROJECT / name
        text = path.read_text("utf-8")
        made = renewed(text, table)
        if made == text:
            continue
        if arguments == ["--check"]:
            print(f"{name} is not current: run scripts/generate-policies", file=sys.stderr)
            stale = 1
        else:
            path.write_text(made, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
