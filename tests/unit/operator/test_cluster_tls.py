"""A BrokerCluster with TLS: its pods, Services and policy, its Secrets, and what the status says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.model import BrokerCluster
from heliograph_operator.act.broker_sessions import BrokerSessions
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.cluster.cluster_certificates import CHECK_S, ClusterCertificates
from heliograph_operator.cluster.cluster_reconciler import ClusterReconciler
from heliograph_operator.decide.authorities import certificates_in
from heliograph_operator.decide.certificate_status import missing_names
from heliograph_operator.decide.cluster_objects import admin_urls, endpoints, manifests
from heliograph_operator.decide.cluster_tls import OpenPorts, ports_of, server_names, verified_names
from heliograph_operator.decide.listeners import advertised, listeners
from heliograph_operator.decide.server_certificate import read_server
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.decide.token_secrets import decoded, encoded
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Key

from tests.support.certificates import Authority, Certificate

from .api_server import ApiServer, resource_of
from .bodies import body
from .cluster_keys import cluster_keys
from .test_authorities import verifies

SITE = Site("image")
CLUSTER = Key("BrokerCluster", "team", "main")
AUTHORITY, SERVER = Key("Secret", "team", "main-tls-authority"), Key("Secret", "team", "main-tls")
PUBLISHED = Key("ConfigMap", "team", "main-ca")
STATEFUL_SET = Key("StatefulSet", "team", "main")
DOMAIN = "team.svc.cluster.local"
NAMES = (f"main.{DOMAIN}", f"main-admin.{DOMAIN}", f"*.main-brokers.{DOMAIN}")


def encrypted(**tls: Any) -> dict[str, Any]:
    return body("BrokerCluster", "main", {"tls": {"enabled": True, **tls}}, finalizers=[FINALIZER])


def made(stateful_set: Any = None, **spec: Any) -> dict[str, Any]:
    """The manifests by kind and name."""
    stated = body("BrokerCluster", "main", spec)
    cluster = BrokerCluster.model_validate(stated)
    given = advertised(cluster, listeners(cluster, stated, SITE, (), stateful_set), stated, SITE)
    everything = manifests(cluster, stated, SITE, advertised=given, found=stateful_set)
    return {f"{each['kind']} {each['metadata']['name']}": each for each in everything}


def container_of(everything: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = everything["StatefulSet main"]["spec"]["template"]["spec"]["containers"][0]
    return found


def config_of(everything: dict[str, Any]) -> BrokerConfig:
    """The settings that the broker's process has."""
    variables = {each["name"]: str(each.get("value", "")) for each in container_of(everything)["env"]}
    given = {**everything["ConfigMap main"]["data"], **variables}
    texts = ("tls_cert", "tls_key", "tls_client_ca", "advertised_listeners", "internal_listener_name", "bind_addresses")
    flags = ("tls_only", "tls_require_client_certificate")
    settings: dict[str, Any] = {name: given.get(f"HELIOGRAPH_{name.upper()}", "") for name in texts}
    settings |= {name: given.get(f"HELIOGRAPH_{name.upper()}") == "true" for name in flags}
    return BrokerConfig(**settings)


def port_names(everything: dict[str, Any]) -> dict[str, list[str]]:
    services = ("main", "main-admin", "main-brokers", "main-metrics")
    return {each: [port["name"] for port in everything[f"Service {each}"]["spec"]["ports"]] for each in services}


def allowed(everything: dict[str, Any]) -> list[int]:
    rules = everything["NetworkPolicy main"]["spec"]["ingress"]
    return [each["port"] for rule in rules for each in rule["ports"]]


def test_without_tls_nothing_of_it_is_there() -> None:
    everything = made()
    assert "tls" not in str(everything["StatefulSet main"]).lower()
    assert allowed(everything) == [6650, 8080, 8081]


def test_ports_with_tls_are_beside_those_without() -> None:
    everything = made(tls={"enabled": True})
    both = ["pulsar", "pulsar-ssl"]
    assert port_names(everything) == {
        "main": both,
        "main-admin": ["http", "https"],
        "main-brokers": both,
        "main-metrics": ["metrics"],
    }
    ports = {each["name"]: each["containerPort"] for each in container_of(everything)["ports"]}
    assert ports == {"pulsar": 6650, "http": 8080, "pulsar-ssl": 6651, "https": 8443, "metrics": 8081}
    assert allowed(everything) == [6650, 8080, 6651, 8443, 8081]
    assert "heliograph.dev/scheme" not in everything["Service main-metrics"]["metadata"]["labels"]
    config = config_of(everything)
    assert (config.tls_cert, config.tls_key) == ("/etc/heliograph/tls/tls.crt", "/etc/heliograph/tls/tls.key")
    assert not config.tls_only
    assert container_of(everything)["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}
    pod = everything["StatefulSet main"]["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "tls"]
    items = [{"key": each, "path": each} for each in ("tls.crt", "tls.key")]
    assert volume["secret"] == {"secretName": "main-tls", "items": items}
    assert "main-tls-authority" not in str(pod)


def test_with_only_tls_there_is_no_other_way_in() -> None:
    everything = made(tls={"enabled": True, "only": True})
    assert port_names(everything)["main"] == port_names(everything)["main-brokers"] == ["pulsar-ssl"]
    assert port_names(everything)["main-admin"] == ["https"]
    assert allowed(everything) == [6651, 8443, 8081]
    assert everything["Service main-metrics"]["metadata"]["labels"]["heliograph.dev/scheme"] == "https"
    assert config_of(everything).tls_only
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container_of(everything)[probe]["httpGet"]
        assert (get["port"], get["scheme"]) == ("https", "HTTPS")


def test_ways_to_brokers_that_still_have_a_port_stay_until_they_are_replaced() -> None:
    before = made(tls={"enabled": True})["StatefulSet main"]
    everything = made(before, tls={"enabled": True, "only": True})
    assert port_names(everything)["main"] == ["pulsar", "pulsar-ssl"]
    assert 6650 in allowed(everything)
    after = everything["StatefulSet main"]
    assert ports_of(after) == OpenPorts(plain=False, encrypted=True)
    assert allowed(made(after, tls={"enabled": True, "only": True})) == [6651, 8443, 8081]


def test_listeners_have_tls_and_the_own_address_has_both() -> None:
    outside = {"name": "outside", "type": "ClusterIP", "advertisedHost": "broker.example.com"}
    everything = made(tls={"enabled": True}, listeners=[outside])
    config = config_of(everything)
    own = "$(POD_NAME).main-brokers.team.svc.cluster.local"
    assert config.advertised_listeners == (
        f"internal:pulsar://{own}:6650,internal:pulsar+ssl://{own}:6651,outside:pulsar+ssl://broker.example.com:6650"
    )
    assert config.bind_addresses == "outside:pulsar+ssl://*:6660"
    config = config_of(made(tls={"enabled": True, "only": True}, listeners=[outside]))
    assert "pulsar://" not in config.advertised_listeners + config.bind_addresses


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ({"secretRef": {"name": "people"}}, {"secret": {"secretName": "people"}}),
        ({"configMapRef": {"name": "people", "key": "bundle.pem"}}, {"configMap": {"name": "people"}}),
    ],
)
def test_authorities_of_clients_are_mounted(source: dict[str, Any], volume: dict[str, Any]) -> None:
    everything = made(tls={"enabled": True, "clientCA": source, "requireClientCertificate": True})
    config = config_of(everything)
    assert config.tls_client_ca == "/etc/heliograph/client-ca/ca.crt"
    assert config.tls_require_client_certificate
    volumes = everything["StatefulSet main"]["spec"]["template"]["spec"]["volumes"]
    [found] = [each for each in volumes if each["name"] == "client-ca"]
    kind, [stated] = next(iter(volume)), list(volume.values())
    key = next(iter(source.values())).get("key", "ca.crt")
    assert found[kind] == {**stated, "items": [{"key": key, "path": "ca.crt"}]}


def test_addresses_are_those_of_the_ports_that_are_open() -> None:
    where = {"metadata": {"name": "main", "namespace": "team"}}
    plain = endpoints(where, SITE, OpenPorts())
    assert "brokerTls" not in plain
    both = endpoints(where, SITE, OpenPorts(plain=True, encrypted=True))
    assert both["broker"] == plain["broker"] == f"pulsar://main.{DOMAIN}:6650"
    assert both["brokerTls"] == f"pulsar+ssl://main.{DOMAIN}:6651"
    only = endpoints(where, SITE, OpenPorts(plain=False, encrypted=True))
    assert only["broker"] == only["brokerTls"] == both["brokerTls"]
    assert only["http"] == only["https"] == f"https://main-admin.{DOMAIN}:8443"
    assert (both["metrics"], only["metrics"]) == (
        f"http://main-metrics.{DOMAIN}:8081/metrics",
        f"https://main-metrics.{DOMAIN}:8081/metrics",
    )
    assert admin_urls(where, SITE) == (both["http"], both["https"])


def test_a_certificate_names_what_can_be_named() -> None:
    names = server_names("main", "team", "cluster.local", ["broker.example.com", "192.0.2.7", "", "a" * 64 + ".com"])
    assert {*NAMES, "main", "main-admin", "main.team", "main.team.svc", "broker.example.com", "192.0.2.7"} <= {*names}
    assert not any("a" * 64 in each or not each for each in names)


async def test_an_address_in_whatever_form_is_in_one_certificate() -> None:
    outside = {"name": "outside", "type": "ClusterIP", "advertisedHost": "FD00:0::0001"}
    stated = encrypted()
    stated["spec"]["listeners"] = [outside]
    installed = Installed(stated)
    await installed.reconcile()
    made = installed.server.objects[SERVER]
    assert read_server(decoded(made)).is_for("fd00::1")
    await installed.reconcile()
    assert installed.server.objects[SERVER] == made
    assert installed.reason() == ("True", "CertificateValid")


# -- the Secrets ---------------------------------------------------------------------------------------------------


class Installed:
    """An API server with one BrokerCluster, and an operator that has just started."""

    def __init__(self, cluster: dict[str, Any], *secrets: dict[str, Any]) -> None:
        self.server = ApiServer(cluster, *secrets)
        self.now = datetime.now(UTC)
        self.trust = BrokerTrust()
        certificates = ClusterCertificates(SITE, self.trust, lambda: self.now)
        self.reconciler = ClusterReconciler(SITE, BrokerSessions(0.0), cluster_keys(), certificates)
        self._memories = ResourceMemories()

    async def reconcile(self) -> float | None:
        context = replace(self.server.context(), memories=self._memories)
        return (await self.reconciler.reconcile(context, resource_of(context, CLUSTER))).requeue_s

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.objects[CLUSTER]["status"]
        return found

    def reason(self, kind: str = "TLSReady") -> tuple[str, str]:
        found = condition(self.status, kind)
        return found.get("status", ""), found.get("reason", "")


def secret(name: str, certificate: Certificate, authority: Authority | None, **other: str) -> dict[str, Any]:
    entries = {"tls.crt": certificate.certificate.decode(), "tls.key": certificate.key.decode()}
    entries |= {"ca.crt": authority.pem.decode()} if authority is not None else {}
    return body("Secret", name, {}) | {"data": encoded({**entries, **other}), "type": "kubernetes.io/tls"}


async def test_the_operator_makes_an_authority_and_publishes_nothing_of_its_key() -> None:
    installed = Installed(encrypted())
    again_s = await installed.reconcile()
    assert again_s is not None
    assert again_s <= CHECK_S
    server = installed.server
    assert server.written == [AUTHORITY, SERVER]
    for key in (AUTHORITY, SERVER, PUBLISHED):
        assert server.objects[key]["metadata"]["ownerReferences"][0]["uid"] == "BrokerCluster-main"
    # Clients find an authority before brokers have a certificate of it.
    assert server.applied.index(PUBLISHED) < server.applied.index(STATEFUL_SET)
    bundle = server.objects[PUBLISHED]["data"]["ca.crt"]
    assert "PRIVATE" not in bundle
    mounted = decoded(server.objects[SERVER])
    assert mounted["ca.crt"] == bundle
    assert server.objects[SERVER]["type"] == "kubernetes.io/tls"
    assert all(read_server(mounted).is_for(each) for each in (f"main.{DOMAIN}", f"main-0.main-brokers.{DOMAIN}"))
    assert installed.reason() == ("True", "CertificateValid")
    assert installed.status["tls"]["authorities"] == "main-ca"
    assert installed.trust.trusted(f"https://main-admin.{DOMAIN}:8443") == bundle
    before = dict(server.objects)
    await installed.reconcile()
    assert [server.objects[each] for each in (AUTHORITY, SERVER, PUBLISHED)] == [
        before[each] for each in (AUTHORITY, SERVER, PUBLISHED)
    ]


async def test_brokers_are_not_restarted_for_another_certificate() -> None:
    installed = Installed(encrypted())
    await installed.reconcile()
    before, template = decoded(installed.server.objects[SERVER]), installed.server.objects[STATEFUL_SET]["spec"]
    installed.now += timedelta(days=61)
    await installed.reconcile()
    assert decoded(installed.server.objects[SERVER])["tls.crt"] != before["tls.crt"]
    assert installed.server.objects[STATEFUL_SET]["spec"] == template
    assert "CertificateIssued" in [reason for reason, _ in installed.server.events]


async def test_a_secret_that_is_missing_or_wrong_stops_the_change_and_says_why() -> None:
    authority, other = Authority(), Authority()
    good, wrong = authority.issue(hosts=NAMES), other.issue(hosts=NAMES)
    installed = Installed(encrypted(secretName="brokers"))
    await installed.reconcile()
    assert installed.reason() == ("False", "CertificateMissing")
    assert installed.reason("Ready") == ("False", "CertificateMissing")
    assert STATEFUL_SET not in installed.server.objects
    key = Key("Secret", "team", "brokers")
    for entries, word in (
        ({"tls.key": ""}, "tls.key"),
        ({"tls.crt": "nothing"}, "tls.crt"),
        ({"tls.key": wrong.key.decode()}, "tls.key"),
        ({"ca.crt": "nothing"}, "ca.crt"),
    ):
        installed.server.objects[key] = secret("brokers", good, authority, **entries)
        await installed.reconcile()
        assert installed.reason() == ("False", "CertificateUnusable")
        assert word in condition(installed.status, "Ready")["message"]
        assert STATEFUL_SET not in installed.server.objects
    installed.server.objects[key] = secret("brokers", good, authority)
    await installed.reconcile()
    assert installed.reason() == ("True", "CertificateValid")
    assert certificates_in(installed.server.objects[PUBLISHED]["data"]["ca.crt"]) == certificates_in(
        authority.pem.decode()
    )
    # It is not the operator's.
    assert key not in installed.server.written
    # Nobody had deleted what was not made before.
    assert "DriftRepaired" not in [reason for reason, _ in installed.server.events]
    del installed.server.objects[PUBLISHED]
    await installed.reconcile()
    assert "DriftRepaired" in [reason for reason, _ in installed.server.events]


async def test_a_certificate_for_other_names_is_told_and_refused_if_the_operator_needs_it() -> None:
    authority = Authority()
    lacking = secret("brokers", authority.issue(hosts=[f"main.{DOMAIN}"]), authority)
    installed = Installed(encrypted(secretName="brokers"), lacking)
    await installed.reconcile()
    assert installed.reason() == ("False", "CertificateNamesMissing")
    assert f"main-0.main-brokers.{DOMAIN}" in condition(installed.status, "TLSReady")["message"]
    assert STATEFUL_SET in installed.server.objects
    installed = Installed(encrypted(secretName="brokers", only=True), lacking)
    await installed.reconcile()
    assert installed.reason("Ready") == ("False", "CertificateNamesMissing")
    assert STATEFUL_SET not in installed.server.objects


async def test_a_certificate_that_nobody_replaces_is_told_before_it_expires() -> None:
    authority, now = Authority(), datetime.now(UTC)
    for left, reason in ((timedelta(days=2), "CertificateExpiring"), (-timedelta(hours=1), "CertificateExpired")):
        ends = now + left
        old = authority.issue(hosts=NAMES, starts=now - timedelta(days=88), ends=ends)
        installed = Installed(encrypted(secretName="brokers"), secret("brokers", old, authority))
        await installed.reconcile()
        assert installed.reason() == ("False", reason)
        assert reason in [each for each, _ in installed.server.events]


async def test_nothing_but_certificates_of_a_secret_is_published() -> None:
    authority = Authority()
    issued = authority.issue(hosts=NAMES)
    entry = f"# the authority\n{issued.key.decode()}{authority.pem.decode()}"
    installed = Installed(encrypted(secretName="brokers"), secret("brokers", issued, None, **{"ca.crt": entry}))
    await installed.reconcile()
    assert installed.reason() == ("True", "CertificateValid")
    assert installed.server.objects[PUBLISHED]["data"]["ca.crt"] == authority.pem.decode()


async def test_a_certificate_is_renewed_also_while_a_secret_of_keys_is_somebody_elses() -> None:
    made = encrypted()
    made["spec"]["authentication"] = {"enabled": True}
    installed = Installed(made, body("Secret", "main-token-signing-key"))
    await installed.reconcile()
    assert installed.reason("Ready") == ("False", "Conflict")
    assert SERVER in installed.server.objects
    assert STATEFUL_SET not in installed.server.objects


async def test_a_certificate_that_is_not_valid_yet_is_told() -> None:
    authority, now = Authority(), datetime.now(UTC)
    early = authority.issue(hosts=NAMES, starts=now + timedelta(days=1), ends=now + timedelta(days=90))
    installed = Installed(encrypted(secretName="brokers"), secret("brokers", early, authority))
    await installed.reconcile()
    assert installed.reason() == ("False", "CertificateUnusable")


async def test_without_authorities_in_the_secret_those_of_the_system_are_trusted() -> None:
    installed = Installed(
        encrypted(secretName="brokers", only=True), secret("brokers", Authority().issue(hosts=NAMES), None)
    )
    await installed.reconcile()
    assert PUBLISHED not in installed.server.objects
    assert installed.trust.trusted(f"https://main-admin.{DOMAIN}:8443") == ""


async def test_what_was_published_goes_when_tls_is_switched_off() -> None:
    installed = Installed(encrypted())
    await installed.reconcile()
    off = {**installed.server.objects[CLUSTER], "spec": {}}
    off["metadata"] = {**off["metadata"], "generation": 2}
    installed.server.objects[CLUSTER] = off
    await installed.reconcile()
    assert PUBLISHED not in installed.server.objects
    assert installed.reason() == ("", "")
    assert "tls" not in installed.status
    with pytest.raises(AdminUnreachable, match="authorities"):
        installed.trust.trusted(f"https://main-admin.{DOMAIN}:8443")


async def test_an_operator_that_starts_beside_a_paused_cluster_trusts_what_is_published() -> None:
    installed = Installed(encrypted())
    await installed.reconcile()
    paused = dict(installed.server.objects[CLUSTER])
    paused["metadata"] = {**paused["metadata"], "annotations": {"heliograph.dev/paused": "true"}}
    again = Installed(paused, installed.server.objects[PUBLISHED])
    await again.reconcile()
    assert again.server.written == []
    assert again.trust.bundle(CLUSTER) == installed.trust.bundle(CLUSTER) != ""


async def test_an_operator_that_starts_beside_a_paused_cluster_trusts_the_system_if_nothing_was_published() -> None:
    stated, url = encrypted(secretName="brokers", only=True), f"https://main-admin.{DOMAIN}:8443"
    public = secret("brokers", Authority().issue(hosts=NAMES), None)
    installed = Installed(stated, public)
    await installed.reconcile()
    paused = dict(installed.server.objects[CLUSTER])
    paused["metadata"] = {**paused["metadata"], "annotations": {"heliograph.dev/paused": "true"}}
    again = Installed(paused, public)
    await again.reconcile()
    assert again.trust.trusted(url) == ""
    # Authorities that were published and are gone are not those of the system.
    paused["status"] = {**paused["status"], "tls": {**paused["status"]["tls"], "authorities": "main-ca"}}
    again = Installed(paused, public)
    await again.reconcile()
    with pytest.raises(AdminUnreachable, match="does not know yet"):
        again.trust.trusted(url)


async def test_an_authority_made_while_the_clock_was_ahead_is_replaced_once_it_is_right() -> None:
    installed = Installed(encrypted())
    right, server = installed.now, installed.server
    installed.now += timedelta(days=400)
    await installed.reconcile()
    early = certificates_in(server.objects[PUBLISHED]["data"]["ca.crt"])
    installed.now = right
    await installed.reconcile()
    assert installed.reason() == ("False", "CertificateUnusable")
    # The API server is asked, too: the operator's clock may be the one that is behind.
    server.server_time = right + timedelta(days=400)
    await installed.reconcile()
    assert installed.reason() == ("False", "CertificateUnusable")
    server.server_time = right + timedelta(minutes=1)
    await installed.reconcile()
    assert installed.reason() == ("True", "CertificateValid")
    published = server.objects[PUBLISHED]["data"]["ca.crt"]
    assert verifies(published, read_server(decoded(server.objects[SERVER])), right)
    assert set(certificates_in(published)) > set(early)
    assert [reason for reason, _ in server.events].count("AuthorityMade") == 2


PAUSED = {"heliograph.dev/paused": "true"}


async def test_a_pause_does_not_let_certificates_expire() -> None:
    installed = Installed(encrypted())
    await installed.reconcile()
    server = installed.server
    server.change(CLUSTER, annotations=PAUSED)
    # A change by hand stays until something has to be renewed.
    server.objects[PUBLISHED]["data"]["more"] = "by hand"
    written = len(server.written)
    names = read_server(decoded(server.objects[SERVER])).names
    server.objects[CLUSTER]["spec"]["listeners"] = [{"name": "outside", "type": "NodePort", "host": "b.example.com"}]
    for _ in range(3):
        again_s = await installed.reconcile()
        assert again_s is not None
        assert again_s <= CHECK_S
    assert len(server.written) == written
    assert server.objects[PUBLISHED]["data"]["more"] == "by hand"
    assert installed.reason() == ("True", "CertificateValid")
    copied = ""
    for _ in range(2 * 365 // 20):
        installed.now += timedelta(days=20)
        await installed.reconcile()
        mounted = read_server(decoded(server.objects[SERVER]))
        assert mounted.expires > installed.now + timedelta(days=5)
        assert mounted.names == names, "no change of the spec is applied"
        # Clients copy the authorities once in the thirty days that they have.
        assert verifies(copied or server.objects[PUBLISHED]["data"]["ca.crt"], mounted, installed.now)
        copied = server.objects[PUBLISHED]["data"]["ca.crt"]
        assert installed.trust.bundle(CLUSTER) == copied
        assert installed.reason() == ("True", "CertificateValid")
        assert installed.reason("Ready") == ("Unknown", "Paused")
    assert server.applied.count(STATEFUL_SET) == 1


async def test_a_pause_makes_no_certificate_where_there_was_none() -> None:
    paused = encrypted()
    paused["metadata"] = {**paused["metadata"], "annotations": PAUSED}
    installed = Installed(paused)
    await installed.reconcile()
    assert installed.server.written == installed.server.applied == []


async def test_a_pause_publishes_the_authorities_of_a_persons_certificate_that_is_replaced() -> None:
    first, second, url = Authority(), Authority(), f"https://main-admin.{DOMAIN}:8443"
    installed = Installed(encrypted(secretName="brokers"), secret("brokers", first.issue(hosts=NAMES), first))
    await installed.reconcile()
    server = installed.server
    server.change(CLUSTER, annotations=PAUSED)
    applied = len(server.applied)
    await installed.reconcile()
    assert len(server.applied) == applied
    replaced = secret("brokers", second.issue(hosts=NAMES), second)
    server.objects[Key("Secret", "team", "brokers")] = replaced
    await installed.reconcile()
    assert server.objects[PUBLISHED]["data"]["ca.crt"] == second.pem.decode() == installed.trust.trusted(url)
    assert server.applied[applied:] == [PUBLISHED]
    # One that cannot be used changes nothing.
    replaced["data"] = encoded({"ca.crt": first.pem.decode()})
    await installed.reconcile()
    assert server.objects[PUBLISHED]["data"]["ca.crt"] == second.pem.decode()


async def test_a_certificate_that_cannot_be_renewed_in_a_pause_is_named() -> None:
    installed = Installed(encrypted())
    await installed.reconcile()
    installed.server.change(CLUSTER, annotations=PAUSED)
    installed.server.forbidden.add(AUTHORITY)
    installed.now += timedelta(days=61)
    await installed.reconcile()
    assert "Secret main-tls-authority" in condition(installed.status, "Ready")["message"]


@pytest.mark.parametrize(
    ("tls", "field"),
    [
        ({"requireClientCertificate": True}, "requireClientCertificate"),
        (
            {"requireClientCertificate": True, "clientCA": {"secretRef": {"name": "people"}}, "only": True},
            "only",
        ),
        ({"clientCA": {}}, "clientCA"),
    ],
)
def test_a_spec_that_would_lock_out_everybody_is_refused(tls: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        BrokerCluster.model_validate(body("BrokerCluster", "main", {"tls": {"enabled": True, **tls}}))


def test_the_examples_have_the_names_that_clients_verify() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security-kubernetes.md").read_text("utf-8")
    section = page.partition("## TLS of brokers\n")[2].partition("\n## ")[0]
    own, given = (list(yaml.safe_load_all(each)) for each in re.findall("```yaml\n(.*?)```", section, re.DOTALL))
    assert BrokerCluster.model_validate(own[0]).spec.tls.enabled
    certificate, cluster = given
    assert BrokerCluster.model_validate(cluster).spec.tls.secret_name == certificate["spec"]["secretName"]
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    issued = Authority().issue(hosts=certificate["spec"]["dnsNames"])
    server = read_server({"tls.crt": issued.certificate.decode(), "tls.key": issued.key.decode()})
    assert missing_names(server, verified_names(name, namespace, "cluster.local", ())) == ()
    assert all(server.is_for(f"{each}.{namespace}.svc.cluster.local") for each in (f"{name}-admin", f"{name}-metrics"))
