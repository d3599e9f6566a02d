"""A pod with Pulsar's official client, and what it does for a test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.cluster import Cluster

LOAD_PROGRAM = (Path(__file__).parent / "load_program.py").read_text(encoding="utf-8")
#: Time (s) that clients have to go on after their broker has gone and come back.
GOES_ON_WITHIN_S = 180.0

POD = """
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  enableServiceLinks: false
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: client
      image: IMAGE
      imagePullPolicy: Never
      command: [sleep, infinity]
      securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""
#: The user of a closed BrokerCluster whose token the pod shows.
USER: Final = "client"
_TOKEN_PATH: Final = "/etc/heliograph/token"

#: A pod is Ready some time before its Service leads to it. A connection that begins in between may lead nowhere for as
#: long as it lasts, so the client gets its own when another one has been answered.
CONNECT = """
import os, socket, sys, time, urllib.parse, pulsar
def wait_for(url, within_s=60):
    service, deadline = urllib.parse.urlsplit(url), time.monotonic() + within_s
    while True:
        try:
            return socket.create_connection((service.hostname, service.port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
def connect(url):
    wait_for(url)
    file = os.environ.get("HELIOGRAPH_TOKEN_FILE")
    shown = {"authentication": pulsar.AuthenticationToken(lambda: open(file).read().strip())} if file else {}
    if url.startswith("pulsar+ssl:"):
        trusted = os.path.join(os.path.dirname(file), "ca.crt")
        shown |= {"tls_trust_certs_file_path": trusted, "tls_validate_hostname": True}
    return pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr"), **shown)
"""

PUBLISH = f"""{CONNECT}
url, topic, *messages = sys.argv[1:]
client = connect(url)
producer = client.create_producer(topic)
for message in messages:
    producer.send(message.encode())
client.close()
"""

CONSUME = f"""{CONNECT}
import json
url, topic, subscription, count, then = sys.argv[1:]
client = connect(url)
consumer = client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
received = []
for _ in range(int(count)):
    message = consumer.receive(90_000)
    received.append(message.data().decode())
    if then == "acknowledge":
        consumer.acknowledge(message)
client.close()
print(json.dumps(received))
"""

FILL = f"""{CONNECT}
url, topic = sys.argv[1:]
client = connect(url)
producer = client.create_producer(topic, batching_enabled=False)
for sent in range(100_000):
    try:
        producer.send(b"." * 10_000)
    except pulsar.ProducerBlockedQuotaExceededException:
        print(sent)
        break
client.close()
"""


GET = """
import os, sys, urllib.request
file = os.environ.get("HELIOGRAPH_TOKEN_FILE")
headers = {"Authorization": f"Bearer {open(file).read().strip()}"} if file else {}
request = urllib.request.Request(sys.argv[1], headers=headers)
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


class ClientPod:
    """The pod ``client``; what it does, it does in one topic of the broker at a Service's name.

    It shows the token of the User ``client`` if it is started with one.
    """

    def __init__(self, cluster: Cluster, namespace: str, url: str, http_url: str = "") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self.url = url
        self._http_url = http_url

    def start(self, image: str, *, shows_token: bool = False) -> None:
        """Start the pod, in place of one that there is."""
        pod = yaml.safe_load(POD.replace("IMAGE", image))
        self._cluster.kubectl("delete", "pod", "client", "-n", self._namespace, "--ignore-not-found")
        if shows_token:
            [container] = pod["spec"]["containers"]
            container["env"] = [{"name": "HELIOGRAPH_TOKEN_FILE", "value": f"{_TOKEN_PATH}/token"}]
            container["volumeMounts"] = [{"name": "token", "mountPath": _TOKEN_PATH}]
            pod["spec"]["volumes"] = [{"name": "token", "secret": {"secretName": f"{USER}-token"}}]
        self._cluster.apply(pod, namespace=self._namespace)
        self._cluster.wait_until_ready(self._namespace, "client")

    def at(self, url: str) -> ClientPod:
        """Return the same pod, for another URL. One with TLS needs a token's Secret, which has the authorities, too."""
        return ClientPod(self._cluster, self._namespace, url)

    def _exec(self, *command: str, timeout_s: float = 300) -> str:
        return self._cluster.kubectl("exec", "-n", self._namespace, "client", "--", *command, timeout_s=timeout_s)

    def heliograph(self, *arguments: str) -> str:
        """Return the output of ``heliograph ARGUMENTS``, asked by HTTP."""
        return self._exec("env", f"HELIOGRAPH_HTTP_URL={self._http_url}", "heliograph", *arguments)

    def metrics(self) -> str:
        """The broker's metrics."""
        return self._exec("python", "-c", GET, f"{self._http_url}/metrics")

    def subscribe(self, topic: str, subscription: str) -> None:
        """Messages without a subscription are not kept."""
        self.consume(topic, subscription, 0, acknowledge=False)

    def publish(self, topic: str, messages: Iterable[str]) -> None:
        self._exec("python", "-c", PUBLISH, self.url, topic, *messages)

    def fill(self, topic: str) -> int:
        """Return the number of messages of 10,000 bytes that the topic takes until its quota is exceeded."""
        return int(self._exec("python", "-c", FILL, self.url, topic))

    def consume(self, topic: str, subscription: str, count: int, *, acknowledge: bool) -> list[str]:
        then = "acknowledge" if acknowledge else "leave"
        received = self._exec("python", "-c", CONSUME, self.url, topic, subscription, str(count), then)
        messages: list[str] = json.loads(received)
        return messages

    @contextmanager
    def load(self, topic: str, subscription: str, *, rate: float = 200.0) -> Iterator[Load]:
        """Clients that publish and consume until the block ends."""
        command = ["kubectl", "exec", "-i", "-n", self._namespace, "client", "--", "python", "-c", LOAD_PROGRAM]
        with subprocess.Popen(
            [*command, self.url, topic, subscription, str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._cluster.environment,
        ) as process:
            try:
                load = Load(process)
                load.goes_on()
                yield load
            finally:
                process.kill()


class Load:
    """A producer and a consumer at work in the pod."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def _ask(self, what: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the clients' program has ended; what it complained of is in the captured output"
        output: dict[str, Any] = json.loads(line)
        return output

    def goes_on(self) -> None:
        """Wait until messages sent from now on are receipted and received."""
        before = self._ask("status")
        deadline = time.monotonic() + GOES_ON_WITHIN_S
        while True:
            now = self._ask("status")
            if min(now["receipted"], now["received"]) > before["sent"]:
                return
            assert time.monotonic() < deadline, f"clients do not go on; before: {before}, now: {now}"
            time.sleep(0.1)

    def stop(self) -> dict[str, Any]:
        """End it; the result says what became of the messages (``load_program.Load.status``)."""
        return self._ask("stop")

    def assert_nothing_lost(self) -> None:
        """End it; everything receipted was received, and nothing that was sent was refused."""
        result = self.stop()
        assert (result["lost"], result["refused"]) == ([], []), result
        assert result["received"] >= result["receipted"] == result["sent"] > 0, result
