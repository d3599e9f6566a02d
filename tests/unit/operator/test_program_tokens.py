"""Heliograph's own programs on a BrokerCluster with authentication: each has a role and a short-lived token."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_api.admin.admin_client import AdminRefused
from heliograph_api.policies.grants import AuthPolicies, with_namespace_grants, with_stated
from heliograph_api.resources.archive_consent_spec import ArchiveJobsSpec
from heliograph_api.resources.archive_spec import ArchiveSpec
from heliograph_api.resources.backup_spec import BackupSpec
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.archive.archive_identity import ArchiveIdentity
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.archive_access import ArchiveAccess
from heliograph_operator.decide.archive_cron_job import ArchiveSite, Source, cron_job
from heliograph_operator.decide.backup_jobs import BackupPods, push_job
from heliograph_operator.decide.program_tokens import archive_token, backup_token, metrics_token
from heliograph_operator.decide.signed_tokens import Issued
from heliograph_operator.decide.token_secrets import decoded, encoded
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import FINALIZER, Body, Key, Kind
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.operator_settings import Settings
from heliograph_operator.policies.policy_reconciler import PolicyReconciler

from .api_server import resource_of
from .backups import BUCKET, PUSH, backup, main, reconcile
from .bodies import body, namespace, tenant, topic
from .cluster_keys import cluster_reconciler, tokens
from .installation import OneBroker, Server
from .users import Granting, closed

CLUSTER = Key("BrokerCluster", "team", "main")
TOPIC = Key("Topic", "team", "orders")
CRON_JOB = Key("CronJob", "team", "orders-archive")
ORDERS = "persistent://shop/payments/orders"
METRICS, BACKUP = metrics_token("main"), backup_token("main")
ARCHIVE = archive_token("team", "orders", "orders-archive")
FILE = "/etc/heliograph/token/token"
HOUR = timedelta(hours=1)
ON_VOLUME = {"schedule": "@daily", "path": "/archive/shop", "volumeClaimRef": {"name": "files"}}


class Team:
    """An API server, a broker, and an operator that keeps its memory."""

    def __init__(self, *bodies: Body, cluster: Body | None = None) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.server = Server(cluster or closed(), *bodies)
        self.broker = Granting()
        self.tokens = tokens(lambda: self.now)
        self.keys = ClusterKeys(self.tokens, lambda: self.now)

    async def cluster(self) -> Outcome:
        """Reconcile the BrokerCluster."""
        context, before = self.server.context(), self.server.objects[CLUSTER]
        self.tokens.seen(None, before)
        reconciler = cluster_reconciler(OneBroker(self.broker), self.keys)
        outcome = await reconciler.reconcile(context, resource_of(context, CLUSTER))
        status = self.server.objects[CLUSTER].get("status", {})
        # No pod runs here that would have them.
        kept = {name: before["status"][name] for name in ("endpoints", "readyReplicas") if name in before["status"]}
        self.server.objects[CLUSTER] = {**before, "status": {**status, **kept}}
        return outcome

    async def topic(self) -> Resource:
        """Reconcile the Topic, as an operator with archives."""
        sessions = OneBroker(self.broker)
        archives = ArchiveReconciler(ArchiveSite("image"), ArchiveIdentity(sessions, self.tokens, BrokerTrust()))
        for _ in range(2):
            # The first one creates the topic in the broker.
            context = replace(self.server.context(), settings=Settings(archives=True))
            resource = resource_of(context, TOPIC)
            await PolicyReconciler(sessions, archives, UserRoles()).reconcile(context, resource)
        return resource

    def issued(self, secret: str) -> Issued:
        signer = self.tokens.signer(CLUSTER)
        assert signer is not None
        found = signer.read(decoded(self.server.objects[Key("Secret", "team", secret)])["token"])
        assert found is not None
        return found


@pytest.mark.parametrize("program", [METRICS, BACKUP])
async def test_each_program_has_a_token_of_a_day_that_is_renewed_long_before_its_end(program: Any) -> None:
    team = Team()
    await team.cluster()
    first = team.issued(program.secret)
    assert (first.role, first.expires - first.issued) == (program.role, 24 * HOUR)
    made = team.server.objects[Key("Secret", "team", program.secret)]["metadata"]
    assert made["ownerReferences"][0]["uid"] == "BrokerCluster-main"
    team.now += 7 * HOUR
    await team.cluster()
    assert team.issued(program.secret) == first
    team.now += HOUR
    await team.cluster()
    assert team.issued(program.secret).issued == team.now
    team.server.objects.pop(Key("Secret", "team", program.secret))
    await team.cluster()
    assert team.issued(program.secret).role == program.role


async def test_a_token_is_not_valid_for_longer_than_the_brokercluster_allows() -> None:
    team = Team(cluster=closed(authentication={"enabled": True, "maxTokenValidity": "10m"}))
    await team.cluster()
    first = team.issued(METRICS.secret)
    assert first.expires - first.issued == timedelta(minutes=10)
    team.now += timedelta(minutes=2)
    await team.cluster()
    assert team.issued(METRICS.secret) == first


async def test_a_pause_does_not_shut_programs_out() -> None:
    """Their tokens would end a day later; nothing else is changed, and nothing is made that was not there."""
    team = Team()
    await team.cluster()
    team.server.change(CLUSTER, annotations={"heliograph.dev/paused": "true"})
    del team.server.objects[Key("Secret", "team", BACKUP.secret)]
    first, written = team.issued(METRICS.secret), len(team.server.written)
    team.now += 7 * HOUR
    await team.cluster()
    assert team.issued(METRICS.secret) == first
    team.now += HOUR
    # As an operator that has just started.
    team.tokens = tokens(lambda: team.now)
    team.keys = ClusterKeys(team.tokens, lambda: team.now)
    outcome = await team.cluster()
    assert team.issued(METRICS.secret).issued == team.now
    assert team.server.written[written:] == [Key("Secret", "team", METRICS.secret)]
    assert outcome.requeue_s is not None
    assert outcome.requeue_s <= 60
    status = condition(team.server.objects[CLUSTER]["status"], READY)
    assert status["reason"] == "Paused"


async def test_a_program_that_a_pause_would_shut_out_is_named() -> None:
    team = Team()
    await team.cluster()
    team.server.change(CLUSTER, annotations={"heliograph.dev/paused": "true"})
    team.server.forbidden.add(Key("Secret", "team", METRICS.secret))
    await team.cluster()
    status = condition(team.server.objects[CLUSTER]["status"], READY)
    assert status["reason"] == "Paused"
    assert METRICS.secret in status["message"]


async def test_brokers_come_up_also_if_a_secret_of_a_program_may_not_be_written() -> None:
    class Forbidding(Server):
        async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
            if kind.name == "Secret" and name == METRICS.secret:
                raise KubeRefused(403, "Forbidden", "secrets is forbidden")
            return await super().find(kind, namespace, name)

    team = Team()
    team.server = Forbidding(closed())
    context = team.server.context()
    team.tokens.seen(None, team.server.objects[CLUSTER])
    reconciler = cluster_reconciler(OneBroker(team.broker), team.keys)
    await reconciler.reconcile(context, resource_of(context, CLUSTER))
    assert Key("StatefulSet", "team", "main") in team.server.objects
    message = condition(team.server.objects[CLUSTER]["status"], READY)["message"]
    assert METRICS.secret in message
    assert "authentication.namespaces" in message


async def test_a_secret_of_somebody_else_leaves_the_other_programs_theirs() -> None:
    # As that of a User named main-metrics.
    team = Team(body("Secret", METRICS.secret))
    await team.cluster()
    assert METRICS.secret in condition(team.server.objects[CLUSTER]["status"], READY)["message"]
    assert team.issued(BACKUP.secret).role == BACKUP.role


async def test_a_change_that_is_refused_stops_no_token() -> None:
    team = Team()
    await team.cluster()
    encrypted = {"tls": {"enabled": True, "secretName": "missing"}}
    team.server.objects[CLUSTER] = closed(**encrypted)
    team.now += 20 * HOUR
    await team.cluster()
    assert team.issued(METRICS.secret).issued == team.now
    assert team.issued(BACKUP.secret).issued == team.now


async def test_an_operator_that_starts_while_a_change_is_refused_has_its_keys() -> None:
    team = Team()
    await team.cluster()
    team.server.objects[CLUSTER] = closed(tls={"enabled": True, "secretName": "missing"})
    team.tokens = tokens(lambda: team.now)
    team.keys = ClusterKeys(team.tokens, lambda: team.now)
    team.now += 20 * HOUR
    await team.cluster()
    assert team.tokens.signer(CLUSTER) is not None
    assert team.issued(METRICS.secret).issued == team.now


async def test_brokers_without_authentication_have_no_such_secrets() -> None:
    team = Team(cluster=body("BrokerCluster", "main", {}, finalizers=[FINALIZER]) | {"status": {}})
    await team.cluster()
    assert not [key for key in team.server.objects if key.kind == "Secret"]


# -- backups -------------------------------------------------------------------------------------------------------


async def test_the_job_of_a_backup_shows_its_token_and_has_nothing_else_of_the_secret() -> None:
    cluster = main() | {"spec": {"authentication": {"enabled": True}}}
    server = Server(cluster, backup("monday"))
    for _ in range(2):
        await reconcile(server)
    pod = server.objects[PUSH]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "HELIOGRAPH_TOKEN_FILE", "value": FILE} in container["env"]
    assert {"name": "token", "mountPath": "/etc/heliograph/token", "readOnly": True} in container["volumeMounts"]
    secret = {"secretName": "main-backup-token", "items": [{"key": "token", "path": "token"}]}
    assert {"name": "token", "secret": secret} in pod["volumes"]


def test_the_job_of_an_open_broker_has_no_token() -> None:
    stated = backup("monday", BUCKET)
    made = push_job(BackupSpec.model_validate(stated["spec"]), stated, BackupPods("image", True, {}), "http://x", "uid")
    pod = made["spec"]["template"]["spec"]
    assert [each["name"] for each in pod["volumes"]] == ["tmp"]
    assert "HELIOGRAPH_TOKEN_FILE" not in str(pod)


# -- archives ------------------------------------------------------------------------------------------------------


def archived(**authentication: Any) -> tuple[Body, ...]:
    """The BrokerCluster comes first."""
    allowed = {"archives": {"enabled": True, "volumeClaims": ["files"]}}
    cluster = closed(**allowed, **authentication)
    return cluster, tenant(clusterRef={"name": "main"}), namespace(), topic(archive=ON_VOLUME)


async def test_an_archive_may_consume_its_topic_and_nothing_else() -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    granted = team.broker.policies("shop/payments")
    assert granted["destination_auth"] == {ORDERS: {ARCHIVE.role: ["consume"]}}
    assert granted["namespace_auth"] == {}
    assert team.issued(ARCHIVE.secret).role == ARCHIVE.role
    pod = team.server.objects[CRON_JOB]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert f"--option=pulsar.client.authParams=file://{FILE}" in container["args"]
    assert {"name": "token", "mountPath": "/etc/heliograph/token", "readOnly": True} in container["volumeMounts"]
    assert next(each for each in pod["volumes"] if each["name"] == "token")["secret"]["secretName"] == ARCHIVE.secret
    team.broker.granted.clear()
    await team.topic()
    assert team.broker.granted == []


async def test_the_runs_of_an_archive_go_on_while_its_topic_is_paused() -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    team.server.change(TOPIC, annotations={"heliograph.dev/paused": "true"})
    first = team.issued(ARCHIVE.secret)
    team.server.objects[TOPIC]["spec"]["archive"]["schedule"] = "@hourly"
    # The archive's clock is the machine's: a token that was issued long before stands for one.
    signer = team.tokens.signer(CLUSTER)
    assert signer is not None
    old = signer.sign(ARCHIVE.role, 24 * HOUR, team.now - 9 * HOUR)
    secret = Key("Secret", "team", ARCHIVE.secret)
    team.server.objects[secret]["data"] |= encoded({"token": old})
    await team.topic()
    assert team.issued(ARCHIVE.secret).expires >= first.expires
    assert team.server.objects[CRON_JOB]["spec"]["schedule"] == "@daily"
    del team.server.objects[secret]
    await team.topic()
    assert secret not in team.server.objects


@pytest.mark.parametrize("invalid", [True, False])
async def test_the_token_of_an_archive_is_renewed_while_its_topic_is_refused(invalid: bool) -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    assert "archive" in team.server.objects[TOPIC]["status"]
    missing = {"configMapKeyRef": {"name": "schemas", "key": "order.avsc"}}
    changed = {"partitions": -1} if invalid else {"schema": {"type": "AVRO", "definitionFrom": missing}}
    team.server.objects[TOPIC]["spec"] |= changed
    team.server.objects[TOPIC]["metadata"]["generation"] = 2
    first, signer = team.issued(ARCHIVE.secret), team.tokens.signer(CLUSTER)
    assert signer is not None
    secret = Key("Secret", "team", ARCHIVE.secret)
    old = signer.sign(ARCHIVE.role, 24 * HOUR, team.now - 9 * HOUR)
    team.server.objects[secret]["data"] |= encoded({"token": old})
    await team.topic()
    assert condition(team.server.objects[TOPIC]["status"], "Ready")["status"] == "False"
    assert CRON_JOB in team.server.objects
    assert team.issued(ARCHIVE.secret).expires >= first.expires


async def test_the_grant_of_an_archive_that_ends_is_taken_back() -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    team.server.objects[TOPIC]["spec"].pop("archive")
    await team.topic()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}
    assert CRON_JOB not in team.server.objects


@pytest.mark.parametrize("kept", [{"deletionPolicy": "Retain"}, {}])
async def test_the_grant_of_the_archive_of_a_topic_that_outlives_its_resource_is_taken_back(
    kept: dict[str, str],
) -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    team.server.objects[TOPIC]["spec"] |= kept
    annotations = {} if kept else {"heliograph.dev/paused": "true"}
    team.server.change(TOPIC, deletionTimestamp="2026-03-01T00:00:00Z", annotations=annotations)
    await team.topic()
    assert ORDERS in team.broker.topics
    assert team.broker.policies("shop/payments")["destination_auth"] == {}


@pytest.mark.parametrize("interrupted", ["killed", "unreachable", "deleted by hand"])
async def test_the_grant_of_an_archive_is_taken_back_whatever_comes_between(interrupted: str) -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    if interrupted != "unreachable":
        # The operator ended after it had deleted the CronJob, or somebody else did that.
        team.server.objects.pop(CRON_JOB)
    if interrupted == "killed":
        team.server.objects[TOPIC]["status"].pop("archive")
    team.server.objects[TOPIC]["spec"].pop("archive")
    team.broker.unreachable = interrupted == "unreachable"
    await team.topic()
    team.broker.unreachable = False
    await team.topic()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}


async def test_the_grant_of_an_archive_that_is_not_allowed_any_more_is_taken_back_later_too() -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()
    await team.topic()
    team.server.objects[CLUSTER]["spec"].pop("archives")
    team.broker.unreachable = True
    await team.topic()
    assert CRON_JOB not in team.server.objects
    team.broker.unreachable = False
    await team.topic()
    assert team.broker.policies("shop/payments")["destination_auth"] == {}


async def test_a_grant_that_is_refused_is_said_in_the_archives_condition() -> None:
    cluster, *bodies = archived()
    team = Team(*bodies, cluster=cluster)
    await team.cluster()

    async def refuse(role: str, wanted: Any) -> None:
        raise AdminRefused(412, "too many grants")

    team.broker.grant = refuse  # type: ignore[method-assign]
    await team.topic()
    found = condition(team.server.objects[TOPIC]["status"], "Archived")
    assert (found["status"], found["reason"]) == ("False", "Refused")
    assert "too many grants" in found["message"]
    assert CRON_JOB not in team.server.objects


def test_permissions_of_namespaces_and_topics_leave_the_grants_of_programs_alone() -> None:
    found = {ARCHIVE.role: ["consume"], "gone": ["produce"]}
    wanted = {ARCHIVE.role: ["consume"], "shop": ["produce"]}
    assert with_stated(found, {"shop": ["produce"]}, lambda role: False) == wanted
    subscriptions = AuthPolicies(subscription_auth_roles={"archive": [ARCHIVE.role, "gone"]})
    kept = with_namespace_grants(subscriptions, AuthPolicies(), lambda role: False)
    assert kept.subscription_auth_roles == {"archive": [ARCHIVE.role]}


def test_executors_of_an_archive_have_the_token_where_the_driver_has_it() -> None:
    spec = ArchiveSpec.model_validate({**ON_VOLUME, "master": "k8s://https://kubernetes.default.svc"})
    access = ArchiveAccess(ARCHIVE.secret, token=True)
    source = Source(ORDERS, "pulsar://main:6650", "http://main:8080", access)
    made = cron_job(spec, topic(), source, ArchiveSite("image"), ArchiveJobsSpec())
    (container,) = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert "--conf=spark.kubernetes.executor.secrets.orders-archive-token=/etc/heliograph/token" in container["args"]
