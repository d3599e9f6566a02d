"""The broker's image in a pod: what it is allowed is enough, clients find it by name, and its volume outlives it."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster, ClusterCommandError
from tests.support.cluster_fixtures import Images

from .client_pod import ClientPod
from .waiting import uid, wait_replaced

BROKER = """
apiVersion: v1
kind: Service
metadata: {name: brokers}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {app: broker}
  ports: [{name: pulsar, port: 6650}, {name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: broker}
spec:
  selector: {app: broker}
  ports: [{name: pulsar, port: 6650}, {name: http, port: 8080}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: broker}
spec:
  serviceName: brokers
  selector: {matchLabels: {app: broker}}
  template:
    metadata: {labels: {app: broker}}
    spec:
      enableServiceLinks: false
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30
      securityContext:
        runAsNonRoot: true
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: broker
          image: IMAGE
          imagePullPolicy: Never
          env:
            - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: HELIOGRAPH_ADVERTISED_HOST, value: $(POD).brokers.$(NAMESPACE).svc.cluster.local}
            - {name: HELIOGRAPH_INSECURE, value: "true"}
          ports: [{name: pulsar, containerPort: 6650}, {name: http, containerPort: 8080}]
          securityContext:
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
          readinessProbe: {httpGet: {path: /health/ready, port: http}, periodSeconds: 1}
          livenessProbe: {httpGet: {path: /health/live, port: http}, periodSeconds: 10, failureThreshold: 6}
          volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 1Gi}}
"""

TOPIC, SUBSCRIPTION = "orders", "billing"


@pytest.fixture
def client_pod(cluster: Cluster, images: Images, kube_namespace: str) -> ClientPod:
    cluster.apply(BROKER.replace("IMAGE", images["broker"]), namespace=kube_namespace)
    cluster.wait_until_ready(kube_namespace, "broker-0")
    pod = ClientPod(cluster, kube_namespace, "pulsar://broker:6650")
    pod.start(images["client"])
    pod.subscribe(TOPIC, SUBSCRIPTION)
    return pod


def test_what_a_client_in_another_pod_was_promised_outlives_the_broker_pod(
    cluster: Cluster, kube_namespace: str, client_pod: ClientPod
) -> None:
    messages = [f"order {number}" for number in range(20)]
    client_pod.publish(TOPIC, messages)
    assert client_pod.consume(TOPIC, SUBSCRIPTION, 5, acknowledge=True) == messages[:5]

    before = uid(cluster, kube_namespace, "pod/broker-0")
    cluster.kubectl("delete", "pod", "broker-0", "-n", kube_namespace, "--grace-period=0", "--force")
    wait_replaced(cluster, kube_namespace, "broker-0", before)
    assert client_pod.consume(TOPIC, SUBSCRIPTION, 15, acknowledge=False) == messages[5:]


def test_the_broker_runs_as_nobody_and_writes_to_its_volume_only(
    cluster: Cluster, kube_namespace: str, client_pod: ClientPod
) -> None:
    def in_broker(*command: str) -> str:
        return cluster.kubectl("exec", "-n", kube_namespace, "broker-0", "--", *command)

    assert in_broker("id", "-u").strip() == "10001"
    with pytest.raises(ClusterCommandError, match="Read-only file system"):
        in_broker("touch", "/tmp/x")
    in_broker("touch", "/data/x")
    effective = next(line for line in in_broker("cat", "/proc/1/status").splitlines() if line.startswith("CapEff"))
    assert int(effective.split()[1], 16) == 0


def test_a_broker_pod_that_is_told_to_end_drains_and_ends_well(
    cluster: Cluster, kube_namespace: str, client_pod: ClientPod
) -> None:
    client_pod.publish(TOPIC, ["last words"])
    # The process gets the signal, not the pod: the pod stays, and says how its container ended.
    cluster.kubectl("exec", "-n", kube_namespace, "broker-0", "--", "python", "-c", "import os; os.kill(1, 15)")

    def ended() -> dict[str, object] | None:
        pod = cluster.kubectl_json("get", "pod", "broker-0", "-n", kube_namespace)
        last: dict[str, dict[str, object]] = pod["status"]["containerStatuses"][0]["lastState"]
        return last.get("terminated")

    terminated = cluster.wait_for("the broker's container has ended", ended, namespace=kube_namespace)
    assert terminated is not None
    assert terminated["exitCode"] == 0
    cluster.wait_until_ready(kube_namespace, "broker-0")
    assert client_pod.consume(TOPIC, SUBSCRIPTION, 1, acknowledge=True) == ["last words"]
