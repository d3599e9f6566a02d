"""A BrokerCluster with TLS on a real Kubernetes: a Secret that is replaced, and an authority of the operator's own."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from heliograph_operator.decide.authorities import STORED

from tests.support.certificates import Authority, Certificate
from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources

_WITHIN_S: Final = 240.0

#: Prints the certificate that a server shows to a client that verifies it by the authorities of a file.
_SHOWN: Final = """
import socket, ssl, sys
host, port, trusted = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=trusted)
with socket.create_connection((host, port), timeout=20) as plain:
    with context.wrap_socket(plain, server_hostname=host) as connection:
        print(ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True)))
"""
#: Publishes and receives until a file says to stop; then each message has to have come.
_GOES_ON: Final = """
import pathlib, sys, time, pulsar
url, trusted, stop, sign = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
written = sign.with_suffix(".new")
client = pulsar.Client(
    url, tls_trust_certs_file_path=trusted, tls_validate_hostname=True, operation_timeout_seconds=60
)
consumer = client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest)
producer = client.create_producer("orders", send_timeout_millis=120_000)
sent = 0
while not stop.exists():
    producer.send(str(sent).encode())
    sent += 1
    written.write_text(str(sent))
    written.rename(sign)
    time.sleep(0.1)
left = set(range(sent))
while left:
    message = consumer.receive(60_000)
    consumer.acknowledge(message)
    left.discard(int(message.data()))
print("received", sent)
client.close()
"""


class Served:
    """BrokerCluster main with TLS, and clients in the network of pods."""

    def __init__(self, brokers: Brokers, cluster: Cluster, directory: Path) -> None:
        self.brokers = brokers
        self._cluster = cluster
        self.namespace = brokers.resources.namespace
        #: The file with the authorities that clients trust, as copied last.
        self.trusted = directory / "trusted.crt"

    def host(self, service: str = "main") -> str:
        return f"{service}.{self.namespace}.svc.cluster.local"

    def copy_authorities(self) -> str:
        """Copy what is published for clients to where they read it."""
        bundle: str = self.brokers.get("configmap", "main-ca")["data"]["ca.crt"]
        self.trusted.write_text(bundle)
        return bundle

    def shown(self, port: int = 6651, service: str = "main") -> x509.Certificate:
        """The certificate that a client is shown; it verifies it."""
        command = (sys.executable, "-c", _SHOWN, self.host(service), str(port), str(self.trusted))
        return x509.load_pem_x509_certificate(self._cluster.run_in_netns(*command).encode())

    def secret(self, name: str) -> dict[str, str]:
        data = self.brokers.get("secret", name)["data"]
        return {entry: base64.b64decode(text).decode() for entry, text in data.items()}

    def put(self, name: str, entries: dict[str, str], kind: str = "kubernetes.io/tls") -> None:
        """Create a Secret, or replace the entries of one."""
        metadata = {"name": name, "namespace": self.namespace}
        manifest = {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "stringData": entries}
        self._cluster.apply(manifest)

    def condition(self, kind: str) -> dict[str, Any]:
        found = self.brokers.get("bcl").get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def wait(self, what: str, check: Callable[[], Any]) -> None:
        self.brokers.wait(what, check, _WITHIN_S)


@contextmanager
def operator(cluster: Cluster, images: Images, namespace: str, directory: Path) -> Iterator[Served]:
    image = ("--broker-image", images["broker"], "--operator-namespace", namespace, "--lease", "operator")
    process = OperatorInNetwork(directory / "operator.log", cluster, namespace, *image)
    resources = Resources(cluster, namespace)
    process.launch()
    try:
        yield Served(Brokers(resources), cluster, directory)
    finally:
        process.close()
        resources.remove_finalizers()
    log = process.log_tail(100_000)
    assert "Traceback" not in log, process.log_tail(120)
    assert "PRIVATE KEY" not in log


def as_secret(certificate: Certificate, authority: Authority) -> dict[str, str]:
    entries = {"tls.crt": certificate.certificate, "tls.key": certificate.key, "ca.crt": authority.pem}
    return {name: content.decode() for name, content in entries.items()}


def test_a_secret_as_cert_manager_makes_it_is_used_and_replaced_without_a_restart(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    with operator(cluster, images, kube_namespace, tmp_path) as served:
        brokers, authority = served.brokers, Authority()
        pods = f"*.main-brokers.{kube_namespace}.svc.cluster.local"
        hosts = (served.host(), served.host("main-admin"), pods)
        tls = {"enabled": True, "secretName": "brokers", "only": True}
        brokers.resources.apply("BrokerCluster", "main", {**SPEC, "tls": tls})
        served.wait("the Secret is missed", lambda: served.condition("TLSReady").get("reason") == "CertificateMissing")
        assert "secretName" in served.condition("Ready")["message"]
        first = authority.issue(hosts=hosts)
        served.put("brokers", as_secret(first, authority))
        brokers.resources.wait_ready("BrokerCluster", "main", within_s=_WITHIN_S)
        # There is no other way in, and the operator uses it, too.
        found = brokers.get("bcl")["status"]["endpoints"]
        assert found["broker"] == found["brokerTls"] == f"pulsar+ssl://{served.host()}:6651"
        assert found["http"] == found["https"] == f"https://{served.host('main-admin')}:8443"
        ports = [
            each["port"] for name in ("main", "main-admin") for each in brokers.get("service", name)["spec"]["ports"]
        ]
        assert ports == [6651, 8443]
        brokers.resources.family()
        served.copy_authorities()
        assert served.shown() == served.shown(8443, "main-admin") == first.parsed
        assert served.condition("TLSReady")["reason"] == "CertificateValid"
        pod = brokers.pod_uid()
        second = authority.issue(hosts=hosts)
        served.put("brokers", as_secret(second, authority))
        served.wait("the brokers have the new certificate", lambda: served.shown() == second.parsed)
        assert brokers.pod_uid() == pod
        brokers.resources.apply("Tenant", "later", {})
        brokers.resources.wait_ready("Tenant", "later")


def test_a_client_goes_on_while_the_operators_authority_is_replaced(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    with operator(cluster, images, kube_namespace, tmp_path) as served:
        brokers, stop, sign = served.brokers, tmp_path / "stop", tmp_path / "sign"
        brokers.resources.apply("BrokerCluster", "main", {**SPEC, "tls": {"enabled": True}})
        brokers.resources.wait_ready("BrokerCluster", "main", within_s=_WITHIN_S)
        first = served.copy_authorities()
        before = served.shown()
        # Brokers have nothing of the authority's key.
        assert "main-tls-authority" not in json.dumps(brokers.get("pod", "main-0"))
        url = f"pulsar+ssl://{served.host()}:6651"
        command = (sys.executable, "-c", _GOES_ON, url, str(served.trusted), str(stop), str(sign))
        log = tmp_path / "client.log"
        with log.open("w") as output:
            client = cluster.popen_in_netns(*command, output=output)
        try:
            served.wait("the client has published", sign.exists)
            # Its key is lost: the next authority is published at once, and does not issue yet.
            brokers.kubectl("delete", "secret", "main-tls-authority")
            served.wait("two authorities are published", lambda: served.copy_authorities() != first)
            assert first in served.copy_authorities()
            assert served.shown() == before
            # Thirty days later, it does.
            authorities = json.loads(served.secret("main-tls-authority")[STORED])
            assert [bool(each.get("private")) for each in authorities] == [False, True]
            for each in authorities:
                each["settled"] = "2026-01-01T00:00:00Z"
            served.put("main-tls-authority", {STORED: json.dumps(authorities)}, "Opaque")
            brokers.kubectl("delete", "secret", "main-tls")
            served.wait("the brokers have a certificate of the next one", lambda: served.shown() != before)
            # A client that connects again verifies the new one.
            pod = brokers.pod_uid()
            brokers.kubectl("delete", "pod", "main-0", "--wait=false")
            served.wait("another pod serves", lambda: brokers.pod_is_ready(not_uid=pod))
            had = int(sign.read_text())
            served.wait("the client has published more", lambda: int(sign.read_text()) > had + 10)
            stop.touch()
            assert client.wait(timeout=120) == 0, log.read_text()
            assert int(log.read_text().rpartition("received ")[2].split()[0]) > had
        finally:
            client.kill()
            client.wait()
