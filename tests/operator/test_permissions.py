"""The table of permissions is what the operator uses on a cluster that grants these: nothing more, nothing less."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from heliograph_operator import operator_metrics
from heliograph_operator.act.controller import Context
from heliograph_operator.act.finalizers import note_retained
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.act.status_report import report
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.decide.owned_objects import watched
from heliograph_operator.kube.client import Kube
from heliograph_operator.kube.events import Events
from heliograph_operator.kube.permissions import (
    ARCHIVE_PERMISSIONS,
    AUTHENTICATION_PERMISSIONS,
    CONNECTION_PERMISSIONS,
    LEADER_PERMISSIONS,
    PERMISSIONS,
    TLS_PERMISSIONS,
    Permission,
)
from heliograph_operator.objects.kinds import KINDS, Key, key_of
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.operator_settings import Settings
from prometheus_client import generate_latest

from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import FAMILY, Resources

Uses = set[tuple[str, str, str]]
#: The Secret that the operator may read.
TOKEN = "broker-token"

#: Permissions that no request of the operator's own shows: kopf lists and watches, and some clusters ask for the last
#: on every owned object.
WITHOUT_REQUEST: Uses = {
    *(
        ("watch", kind.api_version.rpartition("/")[0], kind.plural)
        for kind in (*KINDS.values(), *watched(archives=True))
    ),
    ("list", "batch", "cronjobs"),
    ("update", "heliograph.dev", "brokerclusters/finalizers"),
}


def _granted(permissions: Iterable[Permission]) -> Uses:
    return {(verb, each.group, each.resource) for each in permissions for verb in each.verbs}


def _account(cluster: Cluster, namespace: str, directory: Path) -> dict[str, str]:
    """Make an account that may do what the table says, there; return the environment of clients that use it."""
    rules = [
        {"apiGroups": [each.group], "resources": [each.resource], "verbs": sorted(each.verbs)}
        for each in (*PERMISSIONS, *ARCHIVE_PERMISSIONS, *LEADER_PERMISSIONS)
    ]
    # As the chart does for the names in its values: one that may read its own Secrets only, and one that is named.
    secrets = ("token-signing-key", "token-keys", "metrics-token", "backup-token")
    names = {"resourceNames": [f"closed-{each}" for each in secrets]}
    rules += [
        {"apiGroups": [each.group], "resources": [each.resource], "verbs": sorted(each.verbs)}
        | ({} if "create" in each.verbs else names)
        for each in AUTHENTICATION_PERMISSIONS
    ]
    rules += [
        {"apiGroups": [each.group], "resources": [each.resource], "resourceNames": [TOKEN], "verbs": sorted(each.verbs)}
        for each in CONNECTION_PERMISSIONS
    ]
    metadata = {"name": "restricted", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "restricted"},
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        },
    )
    config: dict[str, Any] = cluster.kubectl_json("config", "view", "--raw", "--minify", "--flatten")
    token = cluster.kubectl("create", "token", "restricted", "-n", namespace).strip()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return {**cluster.environment, "KUBECONFIG": str(path)}


def _used(listed: str) -> Uses:
    """Return what a page of metrics says was asked of the API server."""
    found: Uses = set()
    for line in listed.splitlines():
        if line.startswith("heliograph_operator_kubernetes_requests_total{"):
            labels = dict(pair.split("=") for pair in line.partition("{")[2].partition("}")[0].split(","))
            found.add(tuple(labels[name].strip('"') for name in ("verb", "group", "resource")))  # type: ignore[arg-type]
    return found


async def _meet_another_writer(resources: Resources) -> None:
    """Change a resource of each kind after another writer, so that the operator has to read it again."""
    async with Kube() as kube:
        queue: WorkQueue[Key] = WorkQueue()
        cache = ResourceCache()
        context = Context(Settings(), kube, cache, ResourceMemories(), queue, Events(kube, "test"))
        of_brokers = ("Tenant", "Namespace", "Topic", "Subscription")
        away = (("BrokerCluster", "away"), ("BrokerConnection", "external"), *((kind, "lost") for kind in of_brokers))
        for kind, name in (*away, ("Backup", "waits"), ("User", "nobody")):
            stale = resources.get(kind, name)
            cache.put(stale)
            resources.annotate(kind, name, "example.org/touched=yes")
            resource = context.resource(key_of(stale))
            assert resource is not None
            await note_retained(context, resource)
            assert resources.get(kind, name)["metadata"]["annotations"]["heliograph.dev/holds-retained"] == "true"
        stale = resources.get("ScheduledBackup", "often")
        cache.put(stale)
        resources.annotate("ScheduledBackup", "often", "example.org/touched=yes")
        resource = context.resource(key_of(stale))
        assert resource is not None
        await report(context, resource, [], {"lastBackup": "as-it-was"})


def _backups(resources: Resources) -> None:
    """Let a schedule create a Backup that ends, and delete what is stored; and leave one that waits."""
    destination = {"volume": {"claimRef": {"name": "disk"}, "directory": "main"}}
    template = {"clusterRef": {"name": "main"}, "destination": destination, "activeDeadlineSeconds": 60}
    resources.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "disk", "namespace": resources.namespace},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    schedule = {"schedule": "* * * * *", "keep": 1, "template": template}
    resources.apply("ScheduledBackup", "often", schedule)

    def kept() -> bool:
        assert resources.status("ScheduledBackup", "often").get("lastSuccess")
        return bool(resources.events("often", "BackupExpired"))

    resources.wait("a Backup that is not kept any longer was deleted", kept, within_s=300)
    resources.apply("ScheduledBackup", "often", {**schedule, "suspend": True})
    resources.apply("Backup", "waits", {**template, "clusterRef": {"name": "nobody"}})
    resources.wait_reason("Backup", "waits", "ParentMissing")
    # A Job whose Backup is deleted while it runs is deleted, too.
    resources.apply("Backup", "now", template)
    resources.wait("its Job was created", lambda: resources.status("Backup", "now").get("startTime"))
    resources.delete("Backup", "now")
    resources.wait_gone("Backup", "now")


def _keys(resources: Resources) -> None:
    """Let a BrokerCluster without a pod have keys, and change what is recorded of them."""
    spec = {**SPEC, "replicas": 0, "authentication": {"enabled": True}}
    resources.apply("BrokerCluster", "closed", spec)
    resources.wait_reason("BrokerCluster", "closed", "Stopped")
    resources.apply(
        "BrokerCluster", "closed", {**spec, "authentication": {"enabled": True, "maxTokenValidity": "120d"}}
    )

    def recorded() -> bool:
        found = resources.cluster.kubectl_json("get", "secret", "closed-token-keys", "-n", resources.namespace)
        return '"longestSeconds": 10368000' in base64.b64decode(found["data"]["keys.json"]).decode()

    resources.wait("the longer validity is recorded", recorded)
    resources.delete("BrokerCluster", "closed")
    resources.wait_gone("BrokerCluster", "closed")


async def test_every_permission_is_used_and_none_is_missing(
    cluster: Cluster,
    images: Images,
    resources: Resources,
    kube_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = _account(cluster, kube_namespace, tmp_path)
    arguments = (
        "--broker-image",
        images["broker"],
        "--operator-namespace",
        kube_namespace,
        "--lease",
        "operator",
        "--archives",
    )
    operator = OperatorInNetwork(tmp_path / "log", cluster, kube_namespace, *arguments, environment=environment)
    operator.start()
    try:
        archives = {"enabled": True, "paths": ["s3a://bucket"]}
        resources.apply("BrokerCluster", "main", {**SPEC, "archives": archives})
        brokers = Brokers(resources)
        brokers.wait_observed()
        brokers.patch({"image": "localhost/not-there:1"})
        resources.wait_reason("BrokerCluster", "main", "PreflightFailed")
        brokers.patch({"image": None})
        brokers.wait_observed()
        # It is a broker that answers until resources are held for it.
        resources.cluster_at("away", brokers.get("bcl")["status"]["endpoints"]["http"])
        secret = {"apiVersion": "v1", "kind": "Secret", "stringData": {"token": "t0ken"}}
        for name in (TOKEN, "another"):
            cluster.apply({**secret, "metadata": {"name": name, "namespace": kube_namespace}})
        http_url = brokers.get("bcl")["status"]["endpoints"]["http"]
        resources.connection_to("unreadable", http_url, auth={"secretRef": {"name": "another"}})
        message = resources.wait_reason("BrokerConnection", "unreadable", "CredentialsMissing")
        assert "the operator may not read Secret another" in message
        resources.delete("BrokerConnection", "unreadable")
        resources.connection_to("external", http_url, auth={"secretRef": {"name": TOKEN}})
        resources.wait_ready("BrokerConnection", "external")
        _keys(resources)
        resources.apply("User", "nobody", {"clusterRef": {"name": "nothing"}})
        resources.wait_reason("User", "nobody", "ParentMissing")
        resources.tenant(clusterRef={"name": "main"})
        resources.hns()
        # At no time does it run.
        resources.topic(archive={"schedule": "0 0 29 2 *", "path": "s3a://bucket/orders", "suspend": True})
        resources.wait_ready("Topic", "orders")
        resources.wait_reason("Topic", "orders", "ArchiveSuspended", "Archived")
        if not cluster.is_kind:
            brokers.patch({"storage": {"size": "2Gi"}})
            brokers.wait_observed()
        resources.tenant("lost", clusterRef={"name": "away"})
        resources.hns("lost", "lost")
        resources.topic("lost", "lost")
        resources.subscription("lost", "lost")
        resources.wait_ready("Subscription", "lost")
        resources.endpoints("away", "http://127.0.0.1:1")
        for kind in ("Subscription", "Topic", "Namespace", "Tenant"):
            resources.wait_reason(kind, "lost", "BrokerUnreachable")
        _backups(resources)
        monkeypatch.setenv("KUBECONFIG", environment["KUBECONFIG"])
        await _meet_another_writer(resources)
        resources.delete("Subscription", "lost")
        reads = ("get", "", "namespaces")
        resources.wait("the operator reads the Kubernetes namespace", lambda: reads in _used(operator.get("/metrics")))
        for kind, name in FAMILY:
            resources.delete(kind, name)
        resources.wait_gone("Tenant", "shop")
        # The volumes of a broker that is stopped are nobody's but the operator's to delete.
        brokers.patch({"replicas": 0})
        resources.wait_reason("BrokerCluster", "main", "Stopped")
        # Those of Backups that have ended stay for a day.
        of_brokers = ("get", "pods", "-l", "app.kubernetes.io/component=broker", "-o", "name")
        brokers.wait("its pod is gone", lambda: not brokers.kubectl(*of_brokers))
        brokers.patch({"storage": {"retainOnDelete": False}})
        resources.delete("BrokerCluster", "main")
        resources.wait_gone("BrokerCluster", "main", within_s=100)
        used = _used(operator.get("/metrics")) | _used(generate_latest(operator_metrics.REGISTRY).decode())
    finally:
        operator.close()
    assert "orbidden" not in operator.log_tail(100_000), operator.log_tail(100)
    of_secrets = (*CONNECTION_PERMISSIONS, *AUTHENTICATION_PERMISSIONS, *TLS_PERMISSIONS)
    granted = _granted((*PERMISSIONS, *ARCHIVE_PERMISSIONS, *of_secrets, *LEADER_PERMISSIONS))
    unused = granted - used - WITHOUT_REQUEST
    if cluster.is_kind:
        # kind's volumes cannot grow.
        unused -= {("patch", "", "persistentvolumeclaims")}
    assert unused == set()
    assert used - granted == set()
