"""Deletion of a namespace ends everything in it."""

from __future__ import annotations

from pathlib import Path

from heliograph_broker.messaging.base.records import NamespaceRecord, SchemaRecord

from tests.support.core import Core

TOPIC = "persistent://public/x/t"


def test_a_namespace_takes_schemas_that_have_no_topic_with_it(tmp_path: Path) -> None:
    core = Core(tmp_path / "d")
    core.broker.namespaces.create("public/x", NamespaceRecord())
    core.broker.schemas.add(TOPIC, SchemaRecord("t", 1, b"of the first namespace"))
    core.broker.schemas.add("persistent://public/default/t", SchemaRecord("t", 1, b"of another"))
    core.commit()
    core.broker.namespaces.delete("public/x", force=True)
    core.broker.namespaces.create("public/x", NamespaceRecord())
    assert core.broker.schemas.latest(TOPIC) is None
    core.commit()
    core.restart()
    assert core.broker.schemas.latest(TOPIC) is None
    assert core.broker.schemas.latest("persistent://public/default/t") is not None
    core.close()
