"""The broker's image in a pod: what it is allowed is enough, clients find it by name, and its volume outlives it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from tests.support.cluster import Cluster, ClusterCommandError
from tests.support.cluster_fixtures import Images

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

CLIENT = """
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  enableServiceLinks: false
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true}
  containers:
    - name: client
      image: IMAGE
      imagePullPolicy: Never
      command: [sleep, infinity]
      securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""

PUBLISH = """
import sys, pulsar
client = pulsar.Client("pulsar://broker:6650", logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"))
producer = client.create_producer("orders")
for message in sys.argv[1:]:
    producer.send(message.encode())
client.close()
"""

CONSUME = """
import json, sys, pulsar
client = pulsar.Client("pulsar://broker:6650", logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"))
consumer = client.subscribe("orders", "billing", initial_position=pulsar.InitialPosition.Earliest)
received = []
for _ in range(int(sys.argv[1])):
    message = consumer.receive(30_000)
    received.append(message.data().decode())
    if sys.argv[2] == "acknowledge":
        consumer.acknowledge(message)
client.close()
print(json.dumps(received))
"""


class ClientPod:
    """A pod with Pulsar's official client, which knows the broker by its Service's name only."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def _python(self, script: str, *arguments: str) -> str:
        return self._cluster.kubectl(
            "exec", "-n", self._namespace, "client", "--", "python", "-c", script, *arguments, timeout_s=150
        )

    def subscribe(self) -> None:
        """What nobody has subscribed to is not kept."""
        self.consume(0, acknowledge=False)

    def publish(self, messages: Iterable[str]) -> None:
        self._python(PUBLISH, *messages)

    def consume(self, count: int, *, acknowledge: bool) -> list[str]:
        received: list[str] = json.loads(self._python(CONSUME, str(count), "acknowledge" if acknowledge else "leave"))
        return received


@pytest.fixture
def client_pod(cluster: Cluster, images: Images, kube_namespace: str) -> ClientPod:
    cluster.apply(BROKER.replace("IMAGE", images["broker"]), namespace=kube_namespace)
    cluster.apply(CLIENT.replace("IMAGE", images["client"]), namespace=kube_namespace)
    cluster.wait_until_ready(kube_namespace, "broker-0")
    cluster.wait_until_ready(kube_namespace, "client")
    pod = ClientPod(cluster, kube_namespace)
    pod.subscribe()
    return pod


def test_what_a_client_in_another_pod_was_promised_outlives_the_broker_pod(
    cluster: Cluster, kube_namespace: str, client_pod: ClientPod
) -> None:
    messages = [f"order {number}" for number in range(20)]
    client_pod.publish(messages)
    assert client_pod.consume(5, acknowledge=True) == messages[:5]

    before = cluster.kubectl_json("get", "pod", "broker-0", "-n", kube_namespace)["metadata"]["uid"]
    cluster.kubectl("delete", "pod", "broker-0", "-n", kube_namespace, "--grace-period=0", "--force")

    def replaced() -> bool:
        pod = cluster.kubectl_json("get", "pod", "broker-0", "-n", kube_namespace)
        return bool(pod["metadata"]["uid"] != before)

    cluster.wait_for("the broker's pod is a new one", replaced, namespace=kube_namespace)
    cluster.wait_until_ready(kube_namespace, "broker-0")
    assert client_pod.consume(15, acknowledge=False) == messages[5:]


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
    client_pod.publish(["last words"])
    # The process is told, not the pod: the pod stays, and says how its container ended.
    cluster.kubectl("exec", "-n", kube_namespace, "broker-0", "--", "python", "-c", "import os; os.kill(1, 15)")

    def ended() -> dict[str, object] | None:
        pod = cluster.kubectl_json("get", "pod", "broker-0", "-n", kube_namespace)
        last: dict[str, dict[str, object]] = pod["status"]["containerStatuses"][0]["lastState"]
        return last.get("terminated")

    terminated = cluster.wait_for("the broker's container has ended", ended, namespace=kube_namespace)
    assert terminated is not None
    assert terminated["exitCode"] == 0
    cluster.wait_until_ready(kube_namespace, "broker-0")
    assert client_pod.consume(1, acknowledge=True) == ["last words"]
