"""The operator's certificates in a broker: an official client goes on while certificate and authority are replaced."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pulsar
import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.cluster.cluster_certificates import ClusterCertificates
from heliograph_operator.decide.authorities import STORED
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.decide.token_secrets import decoded, encoded
from heliograph_operator.objects.kinds import FINALIZER, Key

from tests.support.certificates import LOCAL, Certificate
from tests.support.clients import DEADLINE_MS, fresh_name
from tests.support.polling import DEADLINE_S, eventually
from tests.support.tls_broker import TlsBroker
from tests.unit.operator.api_server import ApiServer, resource_of
from tests.unit.operator.bodies import body

_CLUSTER: Final = Key("BrokerCluster", "team", "main")
_AUTHORITY: Final = Key("Secret", "team", "main-tls-authority")
_SERVER: Final = Key("Secret", "team", "main-tls")
_PUBLISHED: Final = Key("ConfigMap", "team", "main-ca")


class Cluster:
    """The Secrets of a BrokerCluster, mounted into a broker, and the authorities that its clients copy."""

    def __init__(self, directory: Path) -> None:
        self.server = ApiServer(body("BrokerCluster", "main", {"tls": {"enabled": True}}, finalizers=[FINALIZER]))
        self._certificates = ClusterCertificates(Site("image"), BrokerTrust())
        self.broker = TlsBroker(directory)

    def reconcile(self, hosts: Sequence[str] = LOCAL) -> None:
        """Let the operator do its work, and the kubelet its own."""
        context = self.server.context()
        resource = resource_of(context, _CLUSTER)
        assert isinstance(resource.model, BrokerCluster)
        asyncio.run(self._certificates.reconcile(context, resource, resource.model, hosts))
        mounted = decoded(self.server.objects[_SERVER])
        self.broker.replace(Certificate(mounted["tls.crt"].encode(), mounted["tls.key"].encode()))
        self.broker.trusted.write_text(self.bundle)

    @property
    def bundle(self) -> str:
        found: str = self.server.objects[_PUBLISHED]["data"]["ca.crt"]
        return found

    def settle(self) -> None:
        """Let the time pass that clients have to learn of authorities."""
        stored = self.server.objects[_AUTHORITY]
        listed = json.loads(decoded(stored)[STORED])
        entries = {STORED: json.dumps([{**each, "settled": "2026-01-01T00:00:00Z"} for each in listed])}
        self.server.objects[_AUTHORITY] = {**stored, "data": encoded(entries)}

    def shown(self) -> bytes:
        """The certificate that a client is shown, which verifies it by what it copied last."""
        url = urlsplit(self.broker.process.service_tls_url)
        assert url.hostname is not None
        with (
            socket.create_connection((url.hostname, url.port or 0), DEADLINE_S) as plain,
            self.broker.context().wrap_socket(plain, server_hostname=url.hostname) as connection,
        ):
            return connection.getpeercert(binary_form=True) or b""


def exchange(producer: pulsar.Producer, consumer: pulsar.Consumer, text: str) -> None:
    producer.send(text.encode())
    message = consumer.receive(DEADLINE_MS)
    consumer.acknowledge(message)
    assert message.data().decode() == text


def test_a_client_goes_on_while_certificate_and_authority_are_replaced(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.reconcile()
    first = cluster.bundle
    with cluster.broker as broker:
        client, topic = broker.connect(), fresh_name()
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic, send_timeout_millis=60_000)
        exchange(producer, consumer, "by the first")
        # Another name: another certificate of the same authority.
        before = cluster.shown()
        cluster.reconcile([*LOCAL, "broker.example.com"])
        eventually(lambda: cluster.shown() != before, what="the broker has the certificate with another name")
        assert cluster.bundle == first
        # The authority's key is lost. The next one is published, and does not issue before clients know it.
        named = cluster.shown()
        del cluster.server.objects[_AUTHORITY]
        cluster.reconcile([*LOCAL, "broker.example.com"])
        assert cluster.bundle.startswith(first)
        assert cluster.bundle != first
        assert decoded(cluster.server.objects[_SERVER])["ca.crt"] == cluster.bundle
        assert cluster.shown() == named
        cluster.settle()
        cluster.reconcile([*LOCAL, "another.example.com"])
        eventually(lambda: cluster.shown() != named, what="the broker has a certificate of the next authority")
        # Only those who took over what was published can verify it.
        broker.trusted.write_text(first)
        with pytest.raises(ssl.SSLCertVerificationError):
            cluster.shown()
        broker.trusted.write_text(cluster.bundle)
        broker.process.kill9()
        broker.process.start()
        exchange(producer, consumer, "by the second")
        client.close()
