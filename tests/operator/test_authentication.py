"""A BrokerCluster with authentication on a real Kubernetes: its keys, who is let in, and their rotation."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources

PRIVATE, PUBLISHED = "main-token-signing-key", "main-token-keys"


@pytest.fixture
def brokers(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> Iterator[Brokers]:
    image = ("--broker-image", images["broker"], "--operator-namespace", kube_namespace, "--lease", "operator")
    process = OperatorInNetwork(tmp_path / "operator.log", cluster, kube_namespace, *image)
    resources = Resources(cluster, kube_namespace)
    process.launch()
    try:
        resources.apply("BrokerCluster", "main", {**SPEC, "authentication": {"enabled": True}})
        found = Brokers(resources)
        found.wait_observed()
        resources.wait_ready("BrokerCluster", "main", within_s=180)
        yield found
    finally:
        process.close()
        resources.remove_finalizers()
    log = process.log_tail(100_000)
    assert "Traceback" not in log, process.log_tail(120)
    assert "PRIVATE KEY" not in log


def published(brokers: Brokers) -> list[str]:
    """Return the ids of the keys that the brokers get."""
    data = json.loads(brokers.kubectl("get", "secret", PUBLISHED, "-o", "json"))["data"]
    assert b"PRIVATE" not in b"".join(base64.b64decode(each) for each in data.values())
    return [each["id"] for each in json.loads(base64.b64decode(data["keys.json"]))]


def token(brokers: Brokers, secret: str) -> str:
    """Return the token in a Secret, once it is there."""

    def found() -> str:
        data = json.loads(brokers.kubectl("get", "secret", secret, "-o", "json"))["data"]
        return base64.b64decode(data["token"]).decode()

    cluster, namespace = brokers.resources.cluster, brokers.resources.namespace
    return cluster.wait_for(f"Secret {secret} has a token", found, namespace=namespace)


def answer(brokers: Brokers, path: str, shown: str = "", *, port: int = 8080) -> str:
    """Return the status of an answer of the broker to a client that shows this token, from within its pod."""
    headers = {"Authorization": f"Bearer {shown}"} if shown else {}
    code = (
        "import urllib.request, urllib.error\n"
        f"request = urllib.request.Request('http://127.0.0.1:{port}{path}', headers={headers})\n"
        "try: print(urllib.request.urlopen(request).status)\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    resources = brokers.resources
    command = ("exec", "main-0", "-c", "broker", "-n", resources.namespace, "--", "python", "-c", code)
    return resources.cluster.kubectl(*command).strip()


def test_a_closed_cluster_serves_the_operator_and_nobody_without_credentials(brokers: Brokers) -> None:
    brokers.resources.family()
    assert answer(brokers, "/health/ready") == "200"
    assert answer(brokers, "/admin/v2/tenants") == "401"
    assert len(published(brokers)) == 1
    pod = brokers.kubectl("get", "pod", "main-0", "-o", "json")
    assert PUBLISHED in pod
    assert PRIVATE not in pod


def test_prometheus_and_backups_have_tokens_that_allow_what_they_do_and_nothing_else(brokers: Brokers) -> None:
    metrics, backups = token(brokers, "main-metrics-token"), token(brokers, "main-backup-token")
    for port in (8080, 8081):
        assert answer(brokers, "/metrics", port=port) == "401"
        assert answer(brokers, "/metrics", metrics, port=port) == "200"
        assert answer(brokers, "/metrics", backups, port=port) == "403"
    assert answer(brokers, "/heliograph/v1/backup", backups) == "200"
    assert answer(brokers, "/heliograph/v1/backup", metrics) == "403"
    for shown in (metrics, backups):
        assert answer(brokers, "/admin/v2/tenants", shown) == "403"
        assert answer(brokers, "/admin/v2/persistent/public/default", shown) == "403"


def test_a_signing_key_that_was_deleted_is_replaced_without_a_restart(brokers: Brokers) -> None:
    [before], pod = published(brokers), brokers.pod_uid()
    brokers.kubectl("delete", "secret", PRIVATE)
    # The operator reads the Secrets once a minute.
    brokers.wait("a new key is published", lambda: len(published(brokers)) == 2, within_s=150)
    assert before in published(brokers)
    # It manages the brokers by the new key when they have it.
    brokers.resources.family()
    assert brokers.pod_uid() == pod


def test_the_secrets_go_with_the_brokercluster(brokers: Brokers) -> None:
    brokers.resources.delete("BrokerCluster", "main")
    brokers.resources.wait_gone("BrokerCluster", "main")
    programs = ("main-metrics-token", "main-backup-token")
    names = ("get", "secret", PRIVATE, PUBLISHED, *programs, "--ignore-not-found", "-o", "name")
    brokers.wait("its Secrets are gone", lambda: not brokers.kubectl(*names))
