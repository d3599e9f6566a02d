"""A BrokerCluster with TLS on a real Kubernetes: a Secret that is replaced, and an authority of the operator's own."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from heliograph_operator.decide.authorities import STORED
from heliograph_operator.decide.token_keys import KEYS, PUBLIC

from tests.support.certificates import Authority, Certificate
from tests.support.cluster import Cluster
from tests.support.cluster_fixtures import Images
from tests.support.tokens import Signer

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources

_WITHIN_S: Final = 240.0
CLOSED: Final = {"authentication": {"enabled": True}}
SIGNING_KEY, PUBLISHED = "main-token-signing-key", "main-token-keys"
_LONG_AGO: Final = "2026-01-01T00:00:00Z"
_PUBLISH_AND_CONSUME: Final = ({"namespace": "public/default", "actions": ["produce", "consume"]},)

#: Prints the certificate that a server shows to a client that verifies it by the authorities of a file.
_SHOWN: Final = """
import socket, ssl, sys
host, port, trusted = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.create_default_context(cafile=trusted)
with socket.create_connection((host, port), timeout=20) as plain:
    with context.wrap_socket(plain, server_hostname=host) as connection:
        print(ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True)))
"""
#: Publishes at least one message and goes on until a file says to stop; then each one has to have come, in order. Where
#: the brokers are, what to trust and the token are in a directory, as the Secret of a User is mounted.
_CLIENT: Final = """
import pathlib, sys, time, pulsar
mounted, stop, sign = map(pathlib.Path, sys.argv[1:])
written = sign.with_suffix(".new")
client = pulsar.Client(
    (mounted / "uri").read_text(),
    authentication=pulsar.AuthenticationToken(lambda: (mounted / "token").read_text()),
    tls_trust_certs_file_path=str(mounted / "ca.crt"),
    tls_validate_hostname=True,
    operation_timeout_seconds=60,
)
consumer = client.subscribe("orders", "s", initial_position=pulsar.InitialPosition.Earliest)
producer = client.create_producer("orders", send_timeout_millis=120_000)
sent = 0
while not sent or not stop.exists():
    producer.send(str(sent).encode())
    sent += 1
    written.write_text(str(sent))
    written.rename(sign)
    time.sleep(0.1)
received = {}
while len(received) < sent:
    message = consumer.receive(60_000)
    consumer.acknowledge(message)
    # A message may come twice when a pod was replaced, and keeps its place.
    received[int(message.data())] = True
assert list(received) == list(range(sent)), list(received)
print("received", sent)
client.close()
"""

#: Consumes as many messages as are named, as the run of an archive does that is given these URLs and mounts the Secret.
_RUN: Final = """
import pathlib, sys, pulsar
url, mounted, topic, count = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
client = pulsar.Client(
    url,
    authentication=pulsar.AuthenticationToken((mounted / "token").read_text()),
    tls_trust_certs_file_path=str(mounted / "ca.crt"),
    tls_validate_hostname=True,
    operation_timeout_seconds=60,
)
consumer = client.subscribe(topic, "heliograph-archive")
print("received", ",".join(consumer.receive(60_000).data().decode() for _ in range(count)))
client.close()
"""
_PRODUCE: Final = """
import pathlib, sys, pulsar
mounted = pathlib.Path(sys.argv[1])
client = pulsar.Client(
    (mounted / "uri").read_text(),
    authentication=pulsar.AuthenticationToken((mounted / "token").read_text()),
    tls_trust_certs_file_path=str(mounted / "ca.crt"),
    tls_validate_hostname=True,
    operation_timeout_seconds=60,
)
producer = client.create_producer(sys.argv[2])
for message in sys.argv[3:]:
    producer.send(message.encode())
client.close()
"""


#: Prints the status of the answer to a request with a token.
_ANSWER: Final = """
import ssl, sys, urllib.error, urllib.request
url, trusted, token = sys.argv[1:]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
try:
    print(urllib.request.urlopen(request, context=ssl.create_default_context(cafile=trusted), timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
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

    def answer(self, token: str) -> int:
        """The status of the answer to a client with this token that may consume."""
        url = f"https://{self.host('main-admin')}:8443/admin/v2/persistent/public/default/orders/subscriptions"
        return int(self._cluster.run_in_netns(sys.executable, "-c", _ANSWER, url, str(self.trusted), token))

    def secret(self, name: str) -> dict[str, str]:
        data = self.brokers.get("secret", name)["data"]
        return {entry: base64.b64decode(text).decode() for entry, text in data.items()}

    def user(
        self, name: str, validity: str = "30d", permissions: Sequence[Mapping[str, Any]] = _PUBLISH_AND_CONSUME
    ) -> Path:
        """Apply a User, that may publish and consume; return the directory with its Secret, when that is there."""
        proof = [{"token": {"validity": validity}}]
        spec = {"clusterRef": {"name": "main"}, "authentication": proof, "permissions": list(permissions)}
        self.brokers.resources.apply("User", name, spec)
        self.brokers.resources.wait_ready("User", name)
        return self.mount(f"{name}-token")

    def mount(self, name: str) -> Path:
        """Copy the entries of a Secret to files of these names, each at once, as the kubelet does."""
        directory = self.trusted.parent / name
        directory.mkdir(exist_ok=True)
        for entry, content in self.secret(name).items():
            written = directory / f"{entry}.new"
            written.write_text(content)
            written.rename(directory / entry)
        return directory

    def keys(self, name: str) -> list[dict[str, Any]]:
        """The keys of tokens in one of the two Secrets, the newest last."""
        found: list[dict[str, Any]] = json.loads(self.secret(name)[KEYS])
        return found

    def put_keys(self, name: str, keys: list[dict[str, Any]]) -> None:
        public = {PUBLIC: "".join(each["public"] for each in keys)} if name == PUBLISHED else {}
        self.put(name, {KEYS: json.dumps(keys), **public}, "Opaque")

    def only_the_newest_key(self) -> bool:
        """Let the others have expired; return whether the operator has left it at that."""
        newest = self.keys(PUBLISHED)[-1]["id"]
        for name in (SIGNING_KEY, PUBLISHED):
            self.put_keys(name, [each for each in self.keys(name) if each["id"] == newest])
        return len(self.keys(PUBLISHED)) == 1

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

    def wait_for_secrets(self, what: str, check: Callable[[], Any]) -> None:
        """Wait for what follows from Secrets. Operator and kubelet read them once a minute, and when others change."""

        def read_again() -> Any:
            annotation = f"tests/read={time.monotonic_ns()}"
            for which in ("bcl/main", "pod/main-0"):
                self.brokers.kubectl("annotate", "--overwrite", which, annotation)
            return check()

        self.wait(what, read_again)


@contextmanager
def operator(cluster: Cluster, images: Images, namespace: str, directory: Path, *arguments: str) -> Iterator[Served]:
    image = ("--broker-image", images["broker"], "--operator-namespace", namespace, "--lease", "operator")
    process = OperatorInNetwork(directory / "operator.log", cluster, namespace, *image, *arguments)
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
        brokers.resources.apply("BrokerCluster", "main", {**SPEC, **CLOSED, "tls": tls})
        served.wait("the Secret is missed", lambda: served.condition("TLSReady").get("reason") == "CertificateMissing")
        assert "secretName" in served.condition("Ready")["message"]
        first = authority.issue(hosts=hosts)
        served.put("brokers", as_secret(first, authority))
        brokers.resources.wait_ready("BrokerCluster", "main", within_s=_WITHIN_S)
        assert brokers.resources.events("main", "DriftRepaired") == []
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
        # The Secret of a User has all that a client needs; a token of another signer opens nothing.
        mounted, stop = served.user("billing"), tmp_path / "stop"
        assert (mounted / "uri").read_text() == found["brokerTls"]
        assert (mounted / "ca.crt").read_bytes() == authority.pem
        stop.touch()
        client = (sys.executable, "-c", _CLIENT, str(mounted), str(stop), str(tmp_path / "sign"))
        assert "received 1\n" in cluster.run_in_netns(*client)
        assert served.answer((mounted / "token").read_text()) == 200
        assert served.answer(Signer(tmp_path / "other.key").token("billing")) == 401
        pod = brokers.pod_uid()
        second = authority.issue(hosts=hosts)
        served.put("brokers", as_secret(second, authority))
        served.wait_for_secrets("the brokers have the new certificate", lambda: served.shown() == second.parsed)
        assert brokers.pod_uid() == pod
        brokers.resources.apply("Tenant", "later", {})
        brokers.resources.wait_ready("Tenant", "later")


def test_a_client_goes_on_while_the_operators_authority_is_replaced(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    with operator(cluster, images, kube_namespace, tmp_path) as served:
        brokers, stop, sign = served.brokers, tmp_path / "stop", tmp_path / "sign"
        brokers.resources.apply("BrokerCluster", "main", {**SPEC, **CLOSED, "tls": {"enabled": True}})
        brokers.resources.wait_ready("BrokerCluster", "main", within_s=_WITHIN_S)
        first = served.copy_authorities()
        before = served.shown()
        # Brokers have nothing of the authority's key.
        assert "main-tls-authority" not in json.dumps(brokers.get("pod", "main-0"))
        mounted = served.user("billing")
        token = (mounted / "token").read_text()
        command = (sys.executable, "-c", _CLIENT, str(mounted), str(stop), str(sign))
        log = tmp_path / "client.log"
        with log.open("w") as output:
            client = cluster.popen_in_netns(*command, output=output)
        try:
            served.wait("the client has published", sign.exists)
            # Both keys are lost: the next ones are published at once, and do not sign yet.
            brokers.kubectl("delete", "secret", "main-tls-authority", SIGNING_KEY)
            served.wait_for_secrets("two authorities are published", lambda: served.copy_authorities() != first)
            assert first in served.copy_authorities()
            assert served.shown() == before
            served.wait_for_secrets("two keys of tokens are published", lambda: len(served.keys(PUBLISHED)) == 2)
            # Later, they do.
            authorities = json.loads(served.secret("main-tls-authority")[STORED])
            assert [bool(each.get("private")) for each in authorities] == [False, True]
            for each in authorities:
                each["settled"] = _LONG_AGO
            served.put("main-tls-authority", {STORED: json.dumps(authorities)}, "Opaque")
            brokers.kubectl("delete", "secret", "main-tls")
            served.put_keys(PUBLISHED, [{**each, "settled": _LONG_AGO} for each in served.keys(PUBLISHED)])
            served.wait_for_secrets("the brokers have a certificate of the next one", lambda: served.shown() != before)
            served.wait_for_secrets("the next key signs", lambda: "since" in served.keys(SIGNING_KEY)[-1])
            served.user("billing", validity="20d")
            served.wait("the User has another token", lambda: served.secret("billing-token")["token"] != token)
            served.mount("billing-token")
            # In the end, the last token by the first key has expired.
            served.wait("one key is trusted", served.only_the_newest_key)
            assert (mounted / "ca.crt").read_text() == served.copy_authorities()
            # A client that connects again verifies the new certificate, and shows the new token.
            pod = brokers.pod_uid()
            brokers.kubectl("delete", "pod", "main-0", "--wait=false")
            served.wait("another pod serves", lambda: brokers.pod_is_ready(not_uid=pod))
            had = int(sign.read_text())
            served.wait("the client has published more", lambda: int(sign.read_text()) > had + 10)
            stop.touch()
            assert client.wait(timeout=120) == 0, log.read_text()
            assert int(log.read_text().rpartition("received ")[2].split()[0]) > had
            assert served.answer(token) == 401
            assert served.answer((mounted / "token").read_text()) == 200
        finally:
            client.kill()
            client.wait()


def test_the_runs_of_an_archive_come_in_where_there_is_no_port_without_tls(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> None:
    with operator(cluster, images, kube_namespace, tmp_path, "--archives") as served:
        brokers, resources, topic = served.brokers, served.brokers.resources, "persistent://shop/payments/orders"
        archives = {"archives": {"enabled": True, "volumeClaims": ["files"]}}
        resources.apply("BrokerCluster", "main", {**SPEC, **CLOSED, **archives, "tls": {"enabled": True, "only": True}})
        resources.wait_ready("BrokerCluster", "main", within_s=_WITHIN_S)
        resources.family(
            archive={"schedule": "0 3 1 1 *", "path": "/archive/shop", "volumeClaimRef": {"name": "files"}}
        )
        client = served.user("billing", permissions=[{"namespace": "shop/payments", "actions": ["produce"]}])
        cluster.run_in_netns(sys.executable, "-c", _PRODUCE, str(client), topic, "1", "2")
        served.wait("the CronJob is there", lambda: brokers.get("cronjob", "orders-archive"))
        pod = brokers.get("cronjob", "orders-archive")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        given = dict(each.split("=", 1) for each in pod["containers"][0]["args"] if "=" in each)
        assert given["--admin-url"] == f"https://{served.host('main-admin')}:8443"
        assert {"secretName": "orders-archive-token"}.items() <= pod["volumes"][-1]["secret"].items()
        run = (sys.executable, "-c", _RUN, given["--service-url"], str(served.mount("orders-archive-token")), topic)
        assert "received 1,2" in cluster.run_in_netns(*run, "2").splitlines()
        # The next authority is in the Secret of the runs as soon as it is published.
        first = served.copy_authorities()
        brokers.kubectl("delete", "secret", "main-tls-authority")
        served.wait_for_secrets("two authorities are published", lambda: served.copy_authorities() != first)
        served.wait(
            "the runs have both", lambda: served.secret("orders-archive-token")["ca.crt"] == served.copy_authorities()
        )
        assert first in served.copy_authorities()
        served.mount("orders-archive-token")
        assert "received 1,2" in cluster.run_in_netns(*run, "2").splitlines()
