"""The definitions of ``crds/`` on a real API server: it refuses what ``standalone -f`` refuses, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.crds.definitions import DEFINITIONS, GROUP
from heliograph_api.manifests.documents import read_yaml
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse, read_documents
from heliograph_api.resources.model import BROKER_KINDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.api_server import ApiServer, Refusal
from tests.support.cluster import Cluster, ClusterCommandError
from tests.support.manifest_table import Case, cases

_PROJECT = Path(__file__).parents[2]
_CRDS = _PROJECT / "crds"
_EXAMPLES = _PROJECT / "examples"
_TABLE = [case for case in cases() if case.resource is not None]
_SPECS: dict[str, dict[str, Any]] = {
    "Subscription": {"topicRef": {"name": "orders"}},
    "BrokerConnection": {"adminUrl": "http://pulsar:8080"},
    "Topic": {"namespaceRef": {"name": "payments"}},
    "Namespace": {"tenantRef": {"name": "shop"}},
    "Tenant": {},
    "BrokerCluster": {},
}


def _resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**_SPECS[kind], **spec},
    }


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> ApiServer:
    """The API server, which knows all kinds."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(_CRDS))
    names = [f"crd/{definition.plural}.{GROUP}" for definition in DEFINITIONS.values()]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    return ApiServer(cluster.kubeconfig)


@pytest.fixture(scope="module")
def place(cluster: Cluster, api: ApiServer) -> Iterator[str]:
    """A Kubernetes namespace for all tests here: most of them store nothing."""
    name = f"definitions-{time.time_ns():x}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("case", _TABLE, ids=str)
def test_the_api_server_accepts_and_refuses_what_standalone_does(case: Case, api: ApiServer, place: str) -> None:
    assert case.resource is not None
    answer = api.create(place, case.resource)
    if not case.errors:
        assert not isinstance(answer, Refusal), answer
        return
    assert isinstance(answer, Refusal), f"stored, but refused by standalone: {case.errors}"
    assert answer.fields, answer
    for field in answer.fields:
        # An item that is there twice is named by its number.
        assert any(field.lstrip(".").startswith(expected) for expected in case.fields), (answer, case.fields)


_SIZES = st.from_regex(r"\A([0-9]|[1-9][0-9]{1,19})(\.[0-9]{1,10})?[KMGTkmgt]?i?\Z")
_DURATIONS = st.from_regex(r"\A([0-9]|[1-9][0-9]{1,19})(\.[0-9]{1,10})?(ms|s|m|h|d|w|)\Z")
_NUMBERS = st.sampled_from([-2, -1, 0, 1, 2**63 - 1, 2**63, "-1", "infinite", "", 1.5, True])
_NAMES = st.lists(
    st.sampled_from(
        [
            "a",
            "b c",
            "-",
            ".",
            ":",
            "/",
            "://",
            "persistent://a/b/",
            "a/b/",
            "-partition-1",
            " ",
            "\t",
            "\xa0",
            "\u2028",
            "ж",
        ]
    ),
    max_size=6,
).map("".join)
_DRAWN: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"compactionThreshold": _SIZES | _NUMBERS}),
    st.fixed_dictionaries({"messageTTL": _DURATIONS | _NUMBERS}),
    st.fixed_dictionaries({"publishRate": st.fixed_dictionaries({"period": _DURATIONS | _NUMBERS})}),
    st.fixed_dictionaries(
        {
            "retention": st.fixed_dictionaries({"time": _DURATIONS | _NUMBERS, "size": _SIZES | _NUMBERS}),
            "backlogQuota": st.fixed_dictionaries(
                {
                    "destinationStorage": st.fixed_dictionaries({"limit": _SIZES | _NUMBERS}),
                    "messageAge": st.fixed_dictionaries({"limit": _DURATIONS | _NUMBERS}),
                }
            ),
        }
    ),
    st.fixed_dictionaries({"deadLetterTopic": _NAMES, "persistent": st.booleans()}),
    st.fixed_dictionaries({"name": _NAMES}),
    st.fixed_dictionaries({"subscriptions": st.lists(_NAMES, max_size=3)}),
)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(spec=_DRAWN)
def test_they_agree_on_sizes_durations_and_names_nobody_thought_of(
    spec: dict[str, Any], api: ApiServer, place: str
) -> None:
    resource = _resource("Topic", "drawn", spec)
    problems: list[str] = []
    try:
        parse(json.dumps(resource), "drawn.json")
    except ManifestError as error:
        problems = error.problems
    answer = api.create(place, resource)
    assert isinstance(answer, Refusal) == bool(problems), (answer, problems)


# (what, kind, spec, what becomes of it, the field that is refused if one is)
_CHANGES: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("name", "Topic", {"name": "a"}, {"name": "b"}, "spec.name"),
    ("name taken away", "Topic", {"name": "a"}, {"name": None}, "spec.name"),
    ("name given", "Topic", {}, {"name": "b"}, "spec.name"),
    ("name given as it was", "Topic", {}, {"name": "changed"}, ""),
    ("namespace", "Topic", {}, {"namespaceRef": {"name": "bills"}}, "spec.namespaceRef"),
    ("made non-persistent", "Topic", {}, {"persistent": False}, "spec.persistent"),
    ("made persistent", "Topic", {"persistent": False}, {"persistent": None}, "spec.persistent"),
    ("more partitions", "Topic", {"partitions": 2}, {"partitions": 3}, ""),
    ("fewer partitions", "Topic", {"partitions": 2}, {"partitions": 1}, "spec.partitions"),
    ("partitions left out", "Topic", {"partitions": 2}, {"partitions": None}, "spec.partitions"),
    ("made partitioned", "Topic", {}, {"partitions": 1}, "spec.partitions"),
    ("policies", "Topic", {"messageTTL": "1h"}, {"messageTTL": None, "maxProducers": 3}, ""),
    ("tenant", "Namespace", {}, {"tenantRef": {"name": "bank"}}, "spec.tenantRef"),
    ("namespace's name", "Namespace", {"name": "a"}, {"name": "b"}, "spec.name"),
    ("tenant's name", "Tenant", {"name": "a"}, {"name": "b"}, "spec.name"),
    ("cluster", "Tenant", {"clusterRef": {"name": "a"}}, {"clusterRef": {"name": "b"}}, "spec.clusterRef"),
    ("cluster taken away", "Tenant", {"clusterRef": {"name": "a"}}, {"clusterRef": None}, "spec.clusterRef"),
    ("cluster given", "Tenant", {}, {"clusterRef": {"name": "a"}}, ""),
    ("larger volume", "BrokerCluster", {"storage": {"size": "1.5Gi"}}, {"storage": {"size": "1536M"}}, ""),
    (
        "smaller volume",
        "BrokerCluster",
        {"storage": {"size": "2G"}},
        {"storage": {"size": 2**31 - 1}},
        "spec.storage.size",
    ),
    (
        "volume by default smaller",
        "BrokerCluster",
        {"storage": {"size": "20G"}},
        {"storage": None},
        "spec.storage.size",
    ),
    (
        "class",
        "BrokerCluster",
        {"storage": {"size": "1G", "storageClassName": "a"}},
        {"storage": {"storageClassName": "b"}},
        "spec.storage.storageClassName",
    ),
    ("class given", "BrokerCluster", {}, {"storage": {"storageClassName": "b"}}, "spec.storage.storageClassName"),
    ("stopped", "BrokerCluster", {}, {"replicas": 0}, ""),
    ("more brokers", "BrokerCluster", {}, {"replicas": 2}, "spec.replicas"),
]


@pytest.mark.parametrize(("what", "kind", "before", "change", "field"), _CHANGES, ids=[each[0] for each in _CHANGES])
def test_what_cannot_be_changed_is_not(
    what: str,
    kind: str,
    before: dict[str, Any],
    change: dict[str, Any],
    field: str,
    api: ApiServer,
    cluster: Cluster,
    place: str,
) -> None:
    del what
    resource = _resource(kind, "changed", before)
    assert not isinstance(stored := api.create(place, resource, dry=False), Refusal), stored
    try:
        answer = api.update(place, {**resource, "spec": change})
        if field:
            assert isinstance(answer, Refusal), answer
            assert answer.fields == [field], answer
        else:
            assert not isinstance(answer, Refusal), answer
    finally:
        cluster.kubectl("delete", f"{DEFINITIONS[kind].plural}.{GROUP}", "changed", "-n", place)


def test_defaults_are_there_to_be_seen(api: ApiServer, place: str) -> None:
    made = api.create(place, {**_resource("BrokerCluster", "main", {}), "spec": None})
    assert not isinstance(made, Refusal)
    assert made["spec"] == {
        "replicas": 1,
        "storage": {"size": "10Gi", "retainOnDelete": True},
        "terminationGracePeriodSeconds": 60,
        "serviceType": "ClusterIP",
        "adminServiceType": "ClusterIP",
        "deletionPolicy": "Delete",
        "preflight": True,
    }
    made = api.create(place, _resource("Topic", "orders", {"publishRate": {"messages": 5}}))
    assert not isinstance(made, Refusal)
    assert made["spec"] == {
        "namespaceRef": {"name": "payments"},
        "persistent": True,
        "partitions": 0,
        "adoptionPolicy": "Review",
        "deletionWhenUnreachable": "Wait",
        "publishRate": {"messages": 5, "bytes": "0", "period": "1s"},
    }


def test_kubectl_names_a_field_there_is_not_and_without_validation_it_is_pruned(
    api: ApiServer, cluster: Cluster, kube_namespace: str
) -> None:
    manifest = json.dumps(_resource("Topic", "orders", {"retentions": {"time": "1d"}}))
    with pytest.raises(ClusterCommandError, match=r'unknown field "spec\.retentions"'):
        cluster.kubectl("apply", "-n", kube_namespace, "-f", "-", input=manifest)
    with pytest.raises(ClusterCommandError, match=r"spec\.retentions"):
        cluster.kubectl("apply", "--server-side", "-n", kube_namespace, "-f", "-", input=manifest)
    cluster.kubectl("apply", "--validate=false", "-n", kube_namespace, "-f", "-", input=manifest)
    stored = cluster.kubectl_json("get", "htopic", "orders", "-n", kube_namespace)
    assert "retentions" not in stored["spec"]


def test_kubectl_says_in_words_what_is_wrong(api: ApiServer, cluster: Cluster, kube_namespace: str) -> None:
    spec = {"retention": {"time": "3d", "size": "5Gi"}, "backlogQuota": {"destinationStorage": {"limit": "8Gi"}}}
    with pytest.raises(ClusterCommandError) as caught:
        cluster.apply(_resource("Topic", "orders", {**spec, "messageTTL": "3H"}), namespace=kube_namespace)
    output = str(caught.value)
    assert "spec.retention.size: " in output
    assert "the retention is below backlogQuota.destinationStorage.limit" in output
    assert "spec.messageTTL: " in output
    assert "not a duration; valid: 500ms, 90s" in output


@pytest.mark.parametrize(
    ("field", "output"),
    [
        ("topics.spec.retention", "whichever comes first"),
        ("namespaces.spec.bundles", "ranges of topic-name hashes"),
        ("tenants.spec.limits", "the lower value wins"),
        ("brokerclusters.spec.config.ledger_max_entries", "Default: 50000"),
        ("brokerclusters.status.endpoints", "URL for clients"),
    ],
)
def test_kubectl_explains_fields(field: str, output: str, api: ApiServer, cluster: Cluster) -> None:
    explained = cluster.kubectl("explain", field, f"--api-version={GROUP}/v1alpha1")
    assert output in " ".join(explained.split())
    assert "<no description>" not in explained


def test_what_kubectl_gets_can_be_given_to_standalone(api: ApiServer, cluster: Cluster, kube_namespace: str) -> None:
    for kind in BROKER_KINDS:
        cluster.apply(
            _resource(kind, "same", {"limits": {"publishRate": {}}} if kind == "Tenant" else {}),
            namespace=kube_namespace,
        )
    text = cluster.kubectl("get", "bcl/same", "-n", kube_namespace, "-o", "yaml", "--show-managed-fields")
    for kind in ("hconnection", "htenant", "hns", "htopic", "hsub"):
        text += "---\n" + cluster.kubectl("get", f"{kind}/same", "-n", kube_namespace, "-o", "yaml")
    assert [resource.kind for resource in parse(text)] == list(BROKER_KINDS)


def test_kubectl_get_shows_what_the_operator_reports(api: ApiServer, cluster: Cluster, kube_namespace: str) -> None:
    cluster.apply(_resource("Topic", "orders", {"partitions": 4}), namespace=kube_namespace)
    condition = {"status": "True", "message": "as it is to be", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    # kubectl counts from the time, so that the age it shows is never old itself.
    published = (datetime.now(UTC) - timedelta(hours=3, minutes=5, seconds=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {
        "observedGeneration": 1,
        "conditions": [
            {"type": "Ready", "reason": "Reconciled", **condition},
            {"type": "QuotaExceeded", "reason": "SizeQuotaExceeded", **condition},
        ],
        "name": "persistent://shop/payments/orders",
        "backlog": {"messages": 5_000_000_000, "bytes": "1.2Mi", "oldestAge": "42s", "oldestTime": published},
        "storage": {"bytes": "3Mi"},
        "quotaUsed": "15%",
        "quotaUsedPercent": 15,
        "partitions": 4,
        "subscriptions": 2,
    }
    patch = json.dumps({"status": status})
    cluster.kubectl(
        "patch", "htopic", "orders", "-n", kube_namespace, "--subresource=status", "--type=merge", "-p", patch
    )
    assert cluster.kubectl_json("get", "htopic", "orders", "-n", kube_namespace)["status"] == status
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "htopic/orders", "-n", kube_namespace)
    header, line = cluster.kubectl("get", "htopic", "-n", kube_namespace).splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "BACKLOG", "OLDEST", "QUOTA", "AGE"]
    assert line.split()[:-1] == ["orders", "True", "Reconciled", "5000000000", "3h5m", "15%"]
    wide = cluster.kubectl("get", "heliograph", "-n", kube_namespace, "-o", "wide")
    for shown in ("1.2Mi", "3Mi", "persistent://shop/payments/orders", "as it is to be"):
        assert shown in wide


def test_a_cluster_is_scaled_by_kubectl_and_not_too_far(api: ApiServer, cluster: Cluster, kube_namespace: str) -> None:
    cluster.apply(_resource("BrokerCluster", "main", {}), namespace=kube_namespace)
    cluster.kubectl("scale", "bcl/main", "--replicas=0", "-n", kube_namespace)
    assert cluster.kubectl_json("get", "bcl", "main", "-n", kube_namespace)["spec"]["replicas"] == 0
    with pytest.raises(ClusterCommandError, match="more than one broker is not supported yet"):
        cluster.kubectl("scale", "bcl/main", "--replicas=2", "-n", kube_namespace)


def test_the_examples_are_accepted(api: ApiServer, place: str) -> None:
    documents = read_yaml(read_documents([_EXAMPLES]))
    assert documents
    for document in documents:
        assert isinstance(document, dict)
        answer = api.create(place, document)
        assert not isinstance(answer, Refusal), answer
