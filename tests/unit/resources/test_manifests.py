"""Files and folders, and the way from a manifest to policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import load, manifest_files, parse, read_documents
from heliograph_api.manifests.plan import plan
from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.resources.model import BrokerCluster, Namespace, Tenant, Topic

EXAMPLES = Path(__file__).parents[3] / "examples"
GIB = 1024**3
HOUR_MS = 3_600_000


def tenant(name: str) -> str:
    return f"{{apiVersion: heliograph.dev/v1alpha1, kind: Tenant, metadata: {{name: {name}}}}}\n"


def test_folders_are_read_recursively_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.yml").write_text(tenant("two"))
    (tmp_path / "a.yaml").write_text(f"{tenant('one')}---\n{tenant('uno')}")
    (tmp_path / "c.json").write_text(
        json.dumps(
            {"apiVersion": "heliograph.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "three"}}, indent="\t"
        )
    )
    (tmp_path / "README.md").write_text("not: [a manifest")
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "again.yaml").write_text(tenant("one"))
    found = load([tmp_path])
    assert [resource.metadata.name for resource in found] == ["one", "uno", "two", "three"]
    assert found[1].source == f"{tmp_path / 'a.yaml'}: document 2 (Tenant uno)"
    assert manifest_files(tmp_path) == [tmp_path / "a.yaml", tmp_path / "b" / "two.yml", tmp_path / "c.json"]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(tenant("one"))
    assert len(load([tmp_path, tmp_path / "a.yaml", str(tmp_path / "a.yaml")])) == 1


def test_errors_of_all_files_come_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.yaml").write_text("a: [")
    (tmp_path / "b.yaml").write_text(tenant("B"))
    (tmp_path / "c.yaml").write_bytes(b"a: \xff")
    (tmp_path / "d.yaml").write_text(tenant("fine"))
    with pytest.raises(ManifestError) as caught:
        load([tmp_path, tmp_path / "empty", tmp_path / "missing.yaml"])
    problems = caught.value.problems
    assert len(problems) == 5
    assert str(caught.value) == "\n".join(problems)
    for part in (
        "a.yaml: not YAML: line 1",
        "c.yaml: not UTF-8 (byte 3)",
        "empty: there are no manifests in this folder",
    ):
        assert sum(part in problem for problem in problems) == 1
    assert any(problem.endswith("missing.yaml: there is no such file or folder") for problem in problems)
    assert any("b.yaml: document 1 (Tenant B): metadata.name" in problem for problem in problems)


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + tenant("one").encode())
    assert len(load([tmp_path])) == 1


def test_what_is_read_for_sending_is_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(tenant("one"))
    (tmp_path / "b.json").write_text(
        tenant("two")
        .replace("{", '{"')
        .replace(": ", '": "')
        .replace(", ", '", "')
        .replace('"{', "{")
        .replace("}", '"}')
        .replace('}"}', "}}")
    )
    sent = parse(read_documents([tmp_path]))
    assert [resource.model_dump() for resource in sent] == [resource.model_dump() for resource in load([tmp_path])]


def test_errors_in_the_whole_set_are_of_the_set(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(tenant("one"))
    (tmp_path / "b.yaml").write_text(tenant("one"))
    with pytest.raises(
        ManifestError, match=r"b\.yaml: document 1 \(Tenant one\): .* there already: .*a\.yaml: document 1"
    ):
        load([tmp_path])


def test_parents_come_first() -> None:
    found = parse(
        "{apiVersion: heliograph.dev/v1alpha1, kind: Topic, metadata: {name: c}, spec: {namespaceRef: {name: b}}}\n"
        "---\n"
        "{apiVersion: heliograph.dev/v1alpha1, kind: Namespace, metadata: {name: b}, spec: {tenantRef: {name: a}}}\n"
        "---\n"
        "{apiVersion: heliograph.dev/v1alpha1, kind: BrokerCluster, metadata: {name: z}}\n"
        "---\n" + tenant("a")
    )
    assert [type(resource) for resource in found] == [Topic, Namespace, BrokerCluster, Tenant]
    assert [type(step.resource) for step in plan(found)] == [BrokerCluster, Tenant, Namespace, Topic]


def test_the_orders_example_says_what_it_says() -> None:
    orders = next(r for r in load([EXAMPLES / "orders.yaml"]) if isinstance(r, Topic) and r.local_name == "orders")
    assert orders.spec.policies() == Policies(
        retention=Retention(72 * HOUR_MS, 10 * GIB),
        backlog_quota_size=BacklogQuota(8 * GIB, "producer_exception"),
        backlog_quota_age=BacklogQuota(12 * HOUR_MS, "consumer_backlog_eviction"),
        message_ttl_ms=2 * HOUR_MS,
        dead_letter_topic="persistent://shop/payments/orders-expired",
        expires_ms=720 * HOUR_MS,
        deduplication=True,
    )
    assert orders.spec.partitions == 4
    assert orders.spec.subscriptions == ["billing", "warehouse"]


@pytest.mark.parametrize("file", [str(file.relative_to(EXAMPLES)) for file in manifest_files(EXAMPLES)])
def test_each_example_can_be_applied_to_an_empty_broker(file: str) -> None:
    assert plan(load([EXAMPLES / file]))


def test_the_examples_are_where_kubectl_looks_and_leave_the_kubernetes_namespace_to_it() -> None:
    assert [file.name for file in sorted(EXAMPLES.glob("*.yaml"))] == ["aviation.yaml", "orders.yaml"]
    for resource in load([EXAMPLES]):
        assert resource.metadata.namespace == "default", resource.source


def test_the_examples_can_be_applied_together() -> None:
    names = [step.name for step in plan(load([EXAMPLES]))]
    assert "persistent://aviation/nyc/departures" in names
    assert "persistent://shop/payments/orders-expired" in names
