"""A Topic has only the archive that its BrokerCluster allows, and no CronJob otherwise, whatever came before."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.resources.archive_consent_spec import ArchivesSpec
from heliograph_api.resources.archive_spec import ArchiveSpec
from heliograph_operator.decide.archive_consent import consent_of, refusal
from heliograph_operator.decide.archive_cron_job import LABELS
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.conditions import ARCHIVED, condition
from heliograph_operator.objects.kinds import Key

from .bodies import body, cluster, namespace, tenant, topic
from .installation import Installation

ON_VOLUME = {"schedule": "@daily", "path": "/archive/shop", "volumeClaimRef": {"name": "files"}}
IN_BUCKET = {"schedule": "@daily", "path": "s3a://shop/a", "secretRef": {"name": "bucket"}}
FULL = {
    "enabled": True,
    "images": ["spark:2"],
    "serviceAccounts": ["archiver"],
    "secrets": ["bucket"],
    "volumeClaims": ["files"],
    "paths": ["/archive", "s3a://shop/"],
    "masters": ["k8s://https://kubernetes"],
    "conf": ["spark.hadoop.fs.s3a.*", "spark.app.name"],
}
ORDERS = Key("Topic", "team", "orders")
MAIN = Key("BrokerCluster", "team", "main")
CRON_JOB = Key("CronJob", "team", "orders-archive")


def refused(archive: dict[str, Any], consent: dict[str, Any]) -> str:
    return refusal(ArchiveSpec.model_validate(archive), ArchivesSpec.model_validate(consent), "main")


@pytest.mark.parametrize(
    "archive",
    [
        ON_VOLUME,
        IN_BUCKET,
        {**IN_BUCKET, "path": "s3a://shop"},
        {**ON_VOLUME, "image": "spark:2", "serviceAccountName": "archiver", "master": "k8s://https://kubernetes"},
        {**ON_VOLUME, "master": "local[4]"},
        {
            **ON_VOLUME,
            "conf": {"spark.driver.memory": "1g", "spark.hadoop.fs.s3a.endpoint": "http://s3", "spark.app.name": "a b"},
        },
    ],
)
def test_what_a_cluster_allows_is_allowed(archive: dict[str, Any]) -> None:
    assert refused(archive, FULL) == ""


ADD = "leave it out, or add it to spec.archives.volumeClaims of the BrokerCluster"
CONF = "'spark.hadoop.fs.s3a.*', 'spark.app.name', settings of memory and cores"


@pytest.mark.parametrize(
    ("archive", "field", "value", "names", "valid"),
    [
        ({"image": "evil:1"}, "image", "evil:1", "images", "'spark:2', leave it out"),
        ({"serviceAccountName": "root"}, "serviceAccountName", "root", "serviceAccounts", "'archiver', leave it out"),
        ({"secretRef": {"name": "tls"}}, "secretRef.name", "tls", "secrets", "'bucket', leave it out"),
        ({"volumeClaimRef": {"name": "data"}}, "volumeClaimRef.name", "data", "volumeClaims", "'files'"),
        ({"path": "s3a://shopping/a"}, "path", "s3a://shopping/a", "paths", "'/archive/…', 's3a://shop/…'"),
        ({"master": "k8s://http://x"}, "master", "k8s://http://x", "masters", "'k8s://https://kubernetes', local[*]"),
        ({"conf": {"spark.jars": "http://x"}}, "conf.spark.jars", "http://x", "conf", CONF),
        ({"conf": {"spark.hadoop.fs.s3ax": "1"}}, "conf.spark.hadoop.fs.s3ax", "1", "conf", CONF),
        ({"conf": {"spark.driver.memory": "1g -x"}}, "conf.spark.driver.memory", "1g -x", "conf", "one word"),
        ({"conf": {"spark.driver.cores": "$(T)"}}, "conf.spark.driver.cores", "$(T)", "conf", "one word"),
    ],
)
def test_what_it_does_not_allow_is_named_with_what_it_does(
    archive: dict[str, Any], field: str, value: str, names: str, valid: str
) -> None:
    found = refused({**ON_VOLUME, **archive}, FULL)
    rule = f"BrokerCluster main does not allow '{value}' (spec.archives.{names})"
    assert found == f"spec.archive.{field}: {rule}; valid: {valid}"


def test_one_that_says_nothing_allows_nothing() -> None:
    for consent in ({}, {"enabled": False, **{name: value for name, value in FULL.items() if name != "enabled"}}):
        assert refused(ON_VOLUME, consent) == (
            "BrokerCluster main allows no archives; valid: spec.archives.enabled: true there, with what they may use"
        )
    # Without lists, only what the operator itself chose may run, and only on a volume that is named.
    assert refused(IN_BUCKET, {"enabled": True}).count("does not allow") == 2
    assert refused(ON_VOLUME, {"enabled": True}).endswith(f"(spec.archives.volumeClaims); valid: {ADD}")


def test_every_field_that_is_not_allowed_is_named() -> None:
    everything = {**IN_BUCKET, "image": "x", "serviceAccountName": "y", "master": "k8s://http://z", "conf": {"a": "b"}}
    assert refused(everything, {"enabled": True}).count("does not allow") == 6


@pytest.mark.parametrize("given", [None, {}, {"spec": {"archives": {"enabled": "yes"}}}, {"spec": {"archives": None}}])
def test_a_consent_that_cannot_be_read_is_none(given: Any) -> None:
    assert not consent_of(given).enabled


def installation(archives: dict[str, Any] | None = None, **archive: Any) -> Installation:
    own = cluster()
    own["spec"] = {"archives": {"enabled": True, "volumeClaims": ["files"]} if archives is None else archives}
    return Installation(own, tenant(), namespace(), topic(archive={**ON_VOLUME, **archive}))


def archived(world: Installation, key: Key = ORDERS) -> tuple[str, str]:
    found = condition(world.body(key).get("status", {}), ARCHIVED)
    return found.get("status", ""), found.get("reason", "")


def allow(world: Installation, archives: dict[str, Any]) -> None:
    generation = world.body(MAIN)["metadata"]["generation"] + 1
    world.server.change(MAIN, generation=generation)
    world.body(MAIN)["spec"] = {"archives": archives}


async def test_without_consent_there_is_no_cron_job_and_the_topic_says_why() -> None:
    world = installation({})
    operator = world.started(archives=True)
    await operator.settle()
    assert CRON_JOB not in world.server.objects
    assert archived(world) == ("False", "ArchiveNotAllowed")
    assert world.ready(ORDERS)[0] == "Reconciled"
    assert [reason for reason, _ in world.server.events].count("ArchiveNotAllowed") == 1
    # Nothing is written again while nothing changes.
    await operator.resync()
    written = len(world.server.patches)
    await operator.resync()
    await world.started(archives=True).resync()
    assert len(world.server.patches) == written
    allow(world, {"enabled": True, "volumeClaims": ["files"]})
    await operator.settle()
    assert CRON_JOB in world.server.objects
    assert archived(world) == ("Unknown", "ArchivePending")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "withdrawn", [{}, {"enabled": False, "volumeClaims": ["files"]}, {"enabled": True, "volumeClaims": ["others"]}]
)
async def test_a_cron_job_goes_with_the_consent(withdrawn: dict[str, Any], restarted: bool) -> None:
    world = installation()
    operator = world.started(archives=True)
    await operator.settle()
    assert CRON_JOB in world.server.objects
    allow(world, withdrawn)
    if restarted:
        operator = world.started(archives=True)
    await operator.settle()
    assert world.server.deleted == [CRON_JOB]
    assert archived(world) == ("False", "ArchiveNotAllowed")
    [ended] = [message for reason, message in world.server.events if reason == "ArchiveEnded"]
    assert ended.startswith("CronJob orders-archive was deleted with its runs: ")
    allow(world, {"enabled": True, "volumeClaims": ["files"]})
    await operator.settle()
    assert CRON_JOB in world.server.objects
    # It was nobody else who deleted it.
    assert "DriftRepaired" not in [reason for reason, _ in world.server.events]


@pytest.mark.parametrize("held_up", ["paused", "broker", "cluster"])
async def test_consent_that_is_withdrawn_counts_whatever_else_holds_the_topic_up(held_up: str) -> None:
    world = installation()
    operator = world.started(archives=True)
    await operator.settle()
    if held_up == "paused":
        world.annotate(ORDERS, paused="true")
    elif held_up == "broker":
        world.broker.unreachable = True
    if held_up == "cluster":
        world.delete(MAIN)
    else:
        allow(world, {})
    await operator.settle()
    assert CRON_JOB not in world.server.objects
    assert archived(world) == ("False", "ArchiveNotAllowed")


@pytest.mark.parametrize("way", ["conflict", "unmanaged"])
async def test_an_archive_ends_with_the_ownership_of_its_topic(way: str) -> None:
    world = installation()
    operator = world.started(archives=True)
    await operator.settle()
    if way == "conflict":
        # Another one gets the topic while this one is not held, as after a restore of manifests.
        name = world.body(ORDERS)["metadata"]["annotations"]["heliograph.dev/broker-object"]
        notes = {"heliograph.dev/cluster": "main", "heliograph.dev/broker-object": name}
        finalizers = world.body(ORDERS)["metadata"]["finalizers"]
        world.server.change(ORDERS, finalizers=[])
        spec = {"namespaceRef": {"name": "payments"}, "name": "orders"}
        world.apply(body("Topic", "again", spec, finalizers=finalizers, annotations=notes))
        operator = world.started(archives=True)
    else:
        world.annotate(ORDERS, managed="false")
    await operator.settle()
    assert CRON_JOB not in world.server.objects
    assert archived(world) == (("False", "Conflict") if way == "conflict" else ("Unknown", "Unmanaged"))


async def test_an_operator_without_archives_asks_for_no_cron_job_and_says_what_may_be_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = installation()
    await world.started(archives=True).settle()

    async def forbidden(*_: Any, **__: Any) -> Any:
        raise KubeRefused(403, "Forbidden", "cronjobs is forbidden")

    before = world.server.find

    async def find(kind: Any, namespace: str, name: str) -> Any:
        return await (forbidden() if kind.name == "CronJob" else before(kind, namespace, name))

    monkeypatch.setattr(world.server, "find", find)
    monkeypatch.setattr(world.server, "list", forbidden)
    operator = world.started()
    await operator.resync()
    message = condition(world.body(ORDERS)["status"], ARCHIVED)["message"]
    assert message == (
        "this operator runs no archives; valid: archive.enabled: true in its chart (--archives); CronJob orders-archive"
        " may still be there from before, and runs until somebody deletes it"
    )
    world.delete(ORDERS)
    await operator.settle()
    assert ORDERS not in world.server.objects


async def test_a_topic_that_is_deleted_ends_its_archive_first_though_it_is_retained() -> None:
    world = installation()
    world.apply(topic(archive=ON_VOLUME, deletionPolicy="Retain"))
    operator = world.started(archives=True)
    await operator.settle()
    assert world.body(CRON_JOB)["metadata"]["labels"].items() >= LABELS.items()
    world.delete(ORDERS)
    await operator.settle()
    assert world.server.deleted == [CRON_JOB]


async def test_names_that_a_cluster_allows_are_those_of_its_own_kubernetes_namespace() -> None:
    own = cluster()
    consents = [{"kubernetesNamespaces": ["apps"], "tenants": ["shop"]}]
    own["spec"] = {"archives": {"enabled": True, "volumeClaims": ["files"]}, "consents": consents}
    reference = {"name": "payments", "namespace": "team"}
    away = body("Topic", "orders", {"namespaceRef": reference, "archive": ON_VOLUME}, namespace="apps")
    world = Installation(own, tenant(), namespace(), away)
    await world.started(archives=True).settle()
    key = ORDERS._replace(namespace="apps")
    assert world.ready(key)[0] == "Reconciled"
    assert archived(world, key) == ("False", "ArchiveNotAllowed")
    assert world.server.applied == []
