"""The reference of resources: each field is described for the place where it stands."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "resources.md"


def test_only_objects_of_a_broker_may_be_named_without_a_resource() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if "an existing object of the broker" in line]
    assert {row.split("`")[1] for row in rows} == {
        "clusterRef.name",
        "tenantRef.name",
        "namespaceRef.name",
        "topicRef.name",
    }
