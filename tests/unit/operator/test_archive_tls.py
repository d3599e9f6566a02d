"""The runs of archives reach brokers by TLS, and trust the authorities that are published at the time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.archive.archive_identity import ArchiveIdentity
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.archive_cron_job import ArchiveSite
from heliograph_operator.decide.authorities import certificates_in
from heliograph_operator.decide.cluster_objects import endpoints
from heliograph_operator.decide.cluster_tls import OpenPorts
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.decide.token_secrets import decoded, encoded
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Key
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.operator_settings import Settings
from heliograph_operator.policies.policy_reconciler import PolicyReconciler

from tests.support.certificates import Authority

from .api_server import resource_of
from .bodies import body, namespace, tenant, topic
from .cluster_keys import cluster_reconciler, tokens
from .installation import OneBroker, Server
from .users import Granting

CLUSTER, TOPIC = Key("BrokerCluster", "team", "main"), Key("Topic", "team", "orders")
CRON_JOB = Key("CronJob", "team", "orders-archive")
TOKEN, AUTHORITIES = Key("Secret", "team", "orders-archive-token"), Key("Secret", "team", "orders-archive-ca")
PUBLISHED = Key("ConfigMap", "team", "main-ca")
DOMAIN = "team.svc.cluster.local"
NAMES = (f"main.{DOMAIN}", f"main-admin.{DOMAIN}", f"*.main-brokers.{DOMAIN}")
ARCHIVE = {"schedule": "@daily", "path": "/archive/shop", "volumeClaimRef": {"name": "files"}}
TLS: dict[str, Any] = {"enabled": True, "only": True}
CLOSED: dict[str, Any] = {"enabled": True}
DIRECTORY = "/etc/heliograph/token"
SERVICE_URL, ADMIN_URL = f"pulsar+ssl://main.{DOMAIN}:6651", f"https://main-admin.{DOMAIN}:8443"
PLAIN_URL, PLAIN_ADMIN_URL = f"pulsar://main.{DOMAIN}:6650", f"http://main-admin.{DOMAIN}:8080"
EXECUTORS = "k8s://https://kubernetes.default.svc"


class Team:
    """An API server, a broker and an operator, which :meth:`restart` replaces."""

    def __init__(self, *secrets: dict[str, Any], tls: dict[str, Any] | None = None, closed: bool = True) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        spec = {"archives": {"enabled": True, "volumeClaims": ["files"], "masters": [EXECUTORS]}}
        spec |= {"authentication": CLOSED} if closed else {}
        cluster = body("BrokerCluster", "main", spec, finalizers=[FINALIZER])
        own = tenant(clusterRef={"name": "main"}), namespace(), topic(archive=ARCHIVE)
        self.server = Server(cluster, *own, *secrets)
        self.broker = Granting()
        self.restart()
        self.stated(TLS if tls is None else tls)

    def restart(self) -> None:
        self.trust, self.memories = BrokerTrust(), ResourceMemories()
        self.tokens = tokens(lambda: self.now)
        self._keys = ClusterKeys(self.tokens, lambda: self.now)

    async def goes_on_after_a_restart(self) -> None:
        """Restart the operator, and see that it keeps the runs as they are before it has read what is published."""
        manifest = self.server.objects[CRON_JOB]
        self.restart()
        await self.cluster()
        self.trust = BrokerTrust()
        await self.topic()
        assert self.archived() == ("Unknown", "ArchivePending")
        assert self.server.objects[CRON_JOB] == manifest

    def stated(self, tls: dict[str, Any], *, served: bool = True) -> None:
        """Change ``spec.tls``; with ``served``, the brokers have its ports by now."""
        before = self.server.objects[CLUSTER]
        generation = before["metadata"]["generation"] + 1
        changed = {**before, "metadata": {**before["metadata"], "generation": generation}}
        changed["spec"] = {**before["spec"], "tls": tls}
        if served:
            ports = OpenPorts(plain=not tls.get("only"), encrypted=tls.get("enabled", False))
            urls = endpoints(before, Site("image"), ports)
            changed["status"] = {**before.get("status", {}), "endpoints": urls, "readyReplicas": 1}
        self.server.objects[CLUSTER] = changed

    async def cluster(self) -> list[Key]:
        """Reconcile the BrokerCluster; return what it enqueued."""
        context, before = self.server.context(), self.server.objects[CLUSTER]
        self.tokens.seen(None, before)
        reconciler = cluster_reconciler(OneBroker(self.broker), self._keys, trust=self.trust, now=lambda: self.now)
        await reconciler.reconcile(context, resource_of(context, CLUSTER))
        status = self.server.objects[CLUSTER].get("status", {})
        # No pod runs here that would have them.
        kept = {name: before["status"][name] for name in ("endpoints", "readyReplicas") if name in before["status"]}
        self.server.objects[CLUSTER] = {**self.server.objects[CLUSTER], "status": {**status, **kept}}
        return [await context.queue.take() for _ in range(len(context.queue))]

    async def topic(self, **archive: Any) -> None:
        """Reconcile the Topic, as an operator with archives."""
        if archive:
            self.server.objects[TOPIC]["spec"]["archive"] = {**ARCHIVE, **archive}
        sessions = OneBroker(self.broker)
        identity = ArchiveIdentity(sessions, self.tokens, self.trust)
        policies = PolicyReconciler(sessions, ArchiveReconciler(ArchiveSite("image"), identity), UserRoles())
        for _ in range(2):
            # The first one creates the topic in the broker.
            context = replace(self.server.context(), settings=Settings(archives=True), memories=self.memories)
            await policies.reconcile(context, resource_of(context, TOPIC))

    async def both(self) -> None:
        await self.cluster()
        await self.topic()

    @property
    def published(self) -> str:
        found: str = self.server.objects[PUBLISHED]["data"]["ca.crt"]
        return found

    def entry(self, secret: Key, name: str = "ca.crt") -> str | None:
        return decoded(self.server.objects.get(secret)).get(name)

    @property
    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = self.server.objects[CRON_JOB]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        return found

    @property
    def arguments(self) -> list[str]:
        found: list[str] = self.pod["containers"][0]["args"]
        return found

    def urls(self) -> tuple[str, str]:
        given = dict(each.split("=", 1) for each in self.arguments[1:] if each.startswith("--"))
        return given["--service-url"], given["--admin-url"]

    def trusted(self) -> str:
        """The file whose authorities the data source trusts; empty: those of the system."""
        option = "--option=pulsar.client.tlsTrustCertsFilePath="
        return "".join(each.removeprefix(option) for each in self.arguments if each.startswith(option))

    def mounted(self) -> dict[str, dict[str, Any]]:
        """The Secret of each directory of the driver's container."""
        volumes = {each["name"]: each["secret"] for each in self.pod["volumes"] if "secret" in each}
        mounts = self.pod["containers"][0]["volumeMounts"]
        return {each["mountPath"]: volumes[each["name"]] for each in mounts if each["name"] in volumes}

    def archived(self) -> tuple[str, str]:
        found = condition(self.server.objects[TOPIC]["status"], "Archived")
        return found["status"], found["reason"]


def secret_of(authority: Authority | None, issuer: Authority | None = None) -> dict[str, Any]:
    """A Secret as cert-manager makes it; ``issuer`` is for one whose authority clients know anyway."""
    made = (authority or issuer or Authority()).issue(hosts=NAMES)
    entries = {"tls.crt": made.certificate.decode(), "tls.key": made.key.decode()}
    entries |= {"ca.crt": authority.pem.decode()} if authority is not None else {}
    return body("Secret", "brokers", {}) | {"data": encoded(entries), "type": "kubernetes.io/tls"}


GIVEN: dict[str, Any] = {**TLS, "secretName": "brokers"}


@pytest.mark.parametrize("tls", [TLS, {"enabled": True}])
async def test_runs_use_tls_if_brokers_have_it_and_trust_the_authorities_in_the_secret_with_their_token(
    tls: dict[str, Any],
) -> None:
    team = Team(tls=tls)
    await team.both()
    assert team.urls() == (SERVICE_URL, ADMIN_URL)
    assert team.trusted() == f"{DIRECTORY}/ca.crt"
    # An entry that is gone one day must not keep a pod from its start.
    assert team.mounted() == {DIRECTORY: {"secretName": TOKEN.name}}
    assert team.entry(TOKEN) == team.published
    assert team.entry(TOKEN, "token")
    assert f"--option=pulsar.client.authParams=file://{DIRECTORY}/token" in team.arguments
    assert AUTHORITIES not in team.server.objects
    assert team.archived() == ("Unknown", "ArchivePending")


async def test_runs_without_a_token_have_the_authorities_in_a_secret_of_their_own() -> None:
    team = Team(closed=False)
    await team.both()
    assert (team.urls(), team.trusted()) == ((SERVICE_URL, ADMIN_URL), f"{DIRECTORY}/ca.crt")
    assert team.mounted() == {DIRECTORY: {"secretName": AUTHORITIES.name}}
    assert decoded(team.server.objects[AUTHORITIES]) == {"ca.crt": team.published}
    assert team.server.objects[AUTHORITIES]["metadata"]["ownerReferences"][0]["uid"] == "Topic-orders"
    assert "authParams" not in str(team.arguments)
    assert TOKEN not in team.server.objects


@pytest.mark.parametrize(("closed", "secret"), [(True, TOKEN), (False, AUTHORITIES)])
async def test_executors_have_the_authorities_where_the_driver_has_them(closed: bool, secret: Key) -> None:
    team = Team(closed=closed)
    await team.cluster()
    await team.topic(master=EXECUTORS)
    assert f"--conf=spark.kubernetes.executor.secrets.{secret.name}={DIRECTORY}" in team.arguments
    assert team.mounted() == {DIRECTORY: {"secretName": secret.name}}


@pytest.mark.parametrize(("closed", "secret"), [(True, TOKEN), (False, AUTHORITIES)])
async def test_both_authorities_are_trusted_while_they_overlap_and_no_longer_than_that(
    closed: bool, secret: Key
) -> None:
    team = Team(closed=closed)
    await team.both()
    (first,) = certificates_in(team.published)
    manifest = team.server.objects[CRON_JOB]
    team.now += timedelta(days=336)
    # The archive does not wait for its next check.
    assert TOPIC in await team.cluster()
    await team.topic()
    both = certificates_in(team.entry(secret) or "")
    assert len(both) == 2
    assert both[0] == first
    assert team.entry(secret) == team.published
    # A rotation is no change of the CronJob.
    assert team.server.objects[CRON_JOB] == manifest
    # Nothing new is published, so nothing is enqueued.
    assert TOPIC not in await team.cluster()
    for _ in range(5):
        team.now += timedelta(days=30)
        enqueued = await team.cluster()
        if TOPIC in enqueued:
            await team.topic()
        assert team.entry(secret) == team.published
    assert certificates_in(team.entry(secret) or "") == both[1:]


@pytest.mark.parametrize(("closed", "secret"), [(True, TOKEN), (False, AUTHORITIES)])
async def test_the_authorities_of_a_paused_topic_are_renewed_too(closed: bool, secret: Key) -> None:
    team = Team(closed=closed)
    await team.both()
    team.server.change(TOPIC, annotations={"heliograph.dev/paused": "true"})
    team.now += timedelta(days=336)
    await team.both()
    assert team.entry(secret) == team.published
    assert len(certificates_in(team.published)) == 2
    # An operator that has just started keeps what it stored.
    team.restart()
    await team.topic()
    assert team.entry(secret) == team.published
    del team.server.objects[secret]
    await team.both()
    assert secret not in team.server.objects


async def test_archives_go_from_plain_to_tls_and_back_as_brokers_do() -> None:
    team = Team(tls={})
    await team.both()
    plain = team.server.objects[CRON_JOB]
    assert (team.urls(), team.trusted()) == ((PLAIN_URL, PLAIN_ADMIN_URL), "")
    # Until brokers have the ports, runs use those that they have.
    team.stated(TLS, served=False)
    await team.both()
    assert team.urls() == (PLAIN_URL, PLAIN_ADMIN_URL)
    team.stated(TLS)
    await team.both()
    assert (team.urls(), team.trusted()) == ((SERVICE_URL, ADMIN_URL), f"{DIRECTORY}/ca.crt")
    assert team.entry(TOKEN) == team.published
    # Brokers still have them after TLS was switched off.
    team.stated({}, served=False)
    await team.both()
    assert (team.urls(), team.trusted()) == ((SERVICE_URL, ADMIN_URL), f"{DIRECTORY}/ca.crt")
    assert team.entry(TOKEN)
    team.stated({})
    await team.both()
    assert (team.urls(), team.trusted()) == ((PLAIN_URL, PLAIN_ADMIN_URL), "")
    assert team.entry(TOKEN) is None
    assert team.server.objects[CRON_JOB]["spec"] == plain["spec"]
    assert "DriftRepaired" not in [reason for reason, _ in team.server.events]


@pytest.mark.parametrize("closed", [True, False])
async def test_without_an_authority_in_the_secret_of_the_brokers_those_of_the_system_are_trusted(closed: bool) -> None:
    team = Team(secret_of(None), tls=GIVEN, closed=closed)
    await team.both()
    assert (team.urls(), team.trusted()) == ((SERVICE_URL, ADMIN_URL), "")
    assert team.entry(TOKEN) is None
    assert AUTHORITIES not in team.server.objects
    assert team.mounted() == ({DIRECTORY: {"secretName": TOKEN.name}} if closed else {})
    # An operator that has just started takes that from the status.
    await team.goes_on_after_a_restart()


async def test_another_authority_in_the_secret_of_the_brokers_is_taken_over() -> None:
    first, second = Authority(), Authority()
    team = Team(secret_of(first), tls=GIVEN)
    await team.both()
    assert certificates_in(team.entry(TOKEN) or "") == certificates_in(first.pem.decode())
    team.server.objects[Key("Secret", "team", "brokers")] = secret_of(second)
    assert TOPIC in await team.cluster()
    await team.topic()
    assert certificates_in(team.entry(TOKEN) or "") == certificates_in(second.pem.decode())
    team.server.objects[Key("Secret", "team", "brokers")] = secret_of(None, second)
    assert TOPIC in await team.cluster()
    await team.topic()
    assert (team.entry(TOKEN), team.trusted()) == (None, "")


async def test_brokers_that_ask_for_certificates_of_clients_are_reached_without_tls() -> None:
    asks = {"enabled": True, "clientCA": {"secretRef": {"name": "people"}}, "requireClientCertificate": True}
    team = Team(tls=asks)
    await team.both()
    assert (team.urls(), team.trusted()) == ((PLAIN_URL, PLAIN_ADMIN_URL), "")


async def test_there_is_no_cron_job_before_the_brokers_have_an_address() -> None:
    team = Team()
    del team.server.objects[CLUSTER]["status"]
    await team.topic()
    assert CRON_JOB not in team.server.objects
    assert TOKEN not in team.server.objects
    assert condition(team.server.objects[TOPIC]["status"], "Ready")["reason"] == "ClusterNotReady"


@pytest.mark.parametrize(("closed", "secret"), [(True, TOKEN), (False, AUTHORITIES)])
async def test_until_it_knows_what_to_trust_the_operator_makes_no_run_that_trusts_everybody(
    closed: bool, secret: Key
) -> None:
    team = Team(closed=closed)
    await team.topic()
    assert team.archived() == ("False", "ClusterNotReady")
    assert CRON_JOB not in team.server.objects
    assert TOPIC in await team.cluster()
    await team.topic()
    assert team.archived() == ("Unknown", "ArchivePending")
    assert team.entry(secret) == team.published
    assert "DriftRepaired" not in [reason for reason, _ in team.server.events]
    # Another operator goes on with what is stored.
    await team.goes_on_after_a_restart()
    assert team.entry(secret) == team.published


async def test_a_secret_that_may_not_be_written_is_named() -> None:
    team = Team(closed=False)
    await team.cluster()
    team.server.forbidden.add(AUTHORITIES)
    await team.topic()
    found = condition(team.server.objects[TOPIC]["status"], "Archived")
    assert (found["status"], found["reason"]) == ("False", "Forbidden")
    assert "orders-archive-ca" in found["message"]
    assert "tls.enabled" in found["message"]
    assert CRON_JOB not in team.server.objects


async def test_a_certificate_that_programs_cannot_verify_is_told() -> None:
    authority = Authority()
    lacking = secret_of(authority)
    made = authority.issue(hosts=[NAMES[0], NAMES[2]])
    lacking["data"] |= encoded({"tls.crt": made.certificate.decode(), "tls.key": made.key.decode()})
    team = Team(lacking, tls={"enabled": True, "secretName": "brokers"})
    await team.cluster()
    found = condition(team.server.objects[CLUSTER]["status"], "TLSReady")
    assert (found["status"], found["reason"]) == ("False", "CertificateNamesMissing")
    assert NAMES[1] in found["message"]
