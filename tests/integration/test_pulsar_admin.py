"""Pulsar's own pulsar-admin against a running broker: the retention cookbook, and what can be done to topics."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.support.clients import BATCH_WAITS_MS, RunningBroker, fresh_name, publish, receive_many, rest
from tests.support.polling import eventually
from tests.support.pulsar_admin import PulsarAdmin, library_calls, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"pulsar-admin is not tested: {missing()}")

_GIB = 1024**3


@pytest.fixture(scope="module")
def admin(broker: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarAdmin]:
    """The tool, in one JVM for the whole file."""
    with PulsarAdmin(tmp_path_factory.mktemp("pulsar-admin"), broker.http_url, broker.service_url) as running:
        yield running


@pytest.fixture
def namespace(broker: RunningBroker) -> str:
    """A namespace of the test's own, ``tenant/name``."""
    name = f"public/{fresh_name('ns')}"
    rest(broker, "PUT", f"namespaces/{name}", {})
    return name


@pytest.fixture
def full(broker: RunningBroker, client: pulsar.Client, namespace: str) -> str:
    """A topic with ten messages m0..m9, all in the backlog of subscription ``s``; its name is ``tenant/ns/t``."""
    topic = f"{namespace}/t"
    rest(broker, "PUT", f"persistent/{topic}/subscription/s")
    publish(client, topic, named(10), keys=2)
    return topic


def named(count: int, size: int = 0) -> list[bytes]:
    """Return the payloads m0, m1 and so on, padded to ``size`` bytes."""
    return [f"m{at}".encode().ljust(size, b".") for at in range(count)]


def stats(broker: RunningBroker, topic: str) -> Any:
    return rest(broker, "GET", f"persistent/{topic}/stats")


def backlog(broker: RunningBroker, topic: str, subscription: str = "s") -> int:
    return int(stats(broker, topic)["subscriptions"][subscription]["msgBacklog"])


def printed_payloads(out: str) -> list[str]:
    """Return the payloads (of at most 16 bytes) that pulsar-admin printed as hex dumps."""
    return [bytes.fromhex(dump).decode() for dump in re.findall(r"^\|0{8}\| ((?:[0-9a-f]{2} )+)", out, re.MULTILINE)]


# -- the cookbook: retention ---------------------------------------------------------------------------------------

RETENTION = [
    ("--size 10G --time 3h", 180, 10240),
    ("--size 1T --time -1", -1, 1024 * 1024),
    ("--size -1 --time 3h", 180, -1),
    ("--size -1 --time -1", -1, -1),
    ("--size 0 --time 0", 0, 0),
]


@pytest.mark.parametrize("level", ["namespaces", "topicPolicies", "topics"])
def test_retention_is_set_got_and_removed(
    admin: PulsarAdmin, broker: RunningBroker, namespace: str, level: str
) -> None:
    target, path = namespace, f"namespaces/{namespace}/retention"
    if level != "namespaces":
        target, path = f"{namespace}/t", f"persistent/{namespace}/t/retention"
        admin(f"topics create {target}")
    for options, minutes, megabytes in RETENTION:
        admin(f"{level} set-retention {target} {options}")
        expected = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
        assert admin(f"{level} get-retention {target}").json == expected, options
        assert rest(broker, "GET", path) == expected, options
    admin(f"{level} remove-retention {target}")
    assert admin(f"{level} get-retention {target}").out == "null\n"
    assert rest(broker, "GET", path) is None


def test_a_retention_with_one_zero_is_refused_and_changes_nothing(admin: PulsarAdmin, namespace: str) -> None:
    admin(f"namespaces set-retention {namespace} --size 10G --time 3h")
    for options in ("--size 0 --time 3h", "--size 10G --time 0"):
        assert "Invalid retention policy" in admin.refused(f"namespaces set-retention {namespace} {options}")
    assert admin(f"namespaces get-retention {namespace}").json["retentionSizeInMB"] == 10240


def test_retention_keeps_messages_and_lets_them_go_at_once_when_it_ends(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    publish(client, f"{namespace}/t", named(10), keys=2)
    assert admin(f"topicPolicies get-retention {namespace}/t -ap").out == "null\n"
    admin(f"namespaces set-retention {namespace} --size -1 --time -1")
    admin(f"topics create {namespace}/other")
    assert admin(f"topics stats-internal {namespace}/t").json["numberOfEntries"] == 10
    assert admin(f"topicPolicies get-retention {namespace}/t -ap").json["retentionSizeInMB"] == -1
    admin(f"topicPolicies set-retention {namespace}/t --size 0 --time 0")
    eventually(lambda: stats(broker, f"{namespace}/t")["storageSize"] == 0, what="the topic's own retention of nothing")


# -- the cookbook: backlog quotas ----------------------------------------------------------------------------------


def quota(limit: int, seconds: int, policy: str) -> dict[str, Any]:
    return {"limit": limit, "limitSize": limit, "limitTime": seconds, "policy": policy}


@pytest.mark.parametrize("level", ["namespaces", "topicPolicies", "topics"])
def test_backlog_quotas_are_set_got_and_removed(
    admin: PulsarAdmin, broker: RunningBroker, namespace: str, level: str
) -> None:
    target, path = namespace, f"namespaces/{namespace}/backlogQuotaMap"
    if level != "namespaces":
        target, path = f"{namespace}/t", f"persistent/{namespace}/t/backlogQuotaMap"
        admin(f"topics create {target}")
    for policy in ("producer_exception", "consumer_backlog_eviction", "producer_request_hold"):
        admin(f"{level} set-backlog-quota {target} --limit 2G --policy {policy}")
        assert rest(broker, "GET", path) == {"destination_storage": quota(2 * _GIB, -1, policy)}
    admin(f"{level} set-backlog-quota {target} --limitTime 3600 --policy producer_request_hold --type message_age")
    both = rest(broker, "GET", path)
    assert both["destination_storage"] == quota(2 * _GIB, -1, "producer_request_hold")
    assert (both["message_age"]["limitTime"], both["message_age"]["policy"]) == (3600, "producer_request_hold")
    shown = admin(f"{level} {'get-backlog-quota' if level == 'topicPolicies' else 'get-backlog-quotas'} {target}").out
    assert re.search(r"^destination_storage\b.*limitSize=2147483648.*policy=producer_request_hold", shown, re.MULTILINE)
    assert re.search(r"^message_age\b.*limitTime=3600.*policy=producer_request_hold", shown, re.MULTILINE)
    admin(f"{level} remove-backlog-quota {target}")
    assert set(rest(broker, "GET", path)) == {"message_age"}
    admin(f"{level} remove-backlog-quota {target} --type message_age")
    assert rest(broker, "GET", path) == {}


def test_a_quota_of_a_topic_is_refused_where_a_namespace_is_asked_for(admin: PulsarAdmin, namespace: str) -> None:
    """The guide's example of an age quota names a topic; the tool then asks for a path that Pulsar has not either."""
    command = "set-backlog-quota {} --limitTime 3600 --policy producer_request_hold --type message_age"
    assert admin.refused(f"namespaces {command.format(f'{namespace}/my-topic')}")
    assert "policy" in admin.refused(f"namespaces set-backlog-quota {namespace} --limit 2G --policy nonsense").lower()


def test_a_size_quota_refuses_producers_until_the_backlog_is_cleared(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    topic = f"{namespace}/t"
    admin(f"topics create {topic}")
    admin(f"topics create-subscription {topic} -s s")
    admin(f"namespaces set-backlog-quota {namespace} --limit 10K --policy producer_exception")
    with pytest.raises(pulsar.PulsarException, match="Quota"):
        publish(client, topic, named(20, size=1024), keys=2)
    shown = admin(f"topics stats {topic}").json
    assert shown["backlogQuotaLimitSize"] == 10 * 1024
    assert 8 * 1024 < shown["backlogSize"] <= 10 * 1024
    admin(f"namespaces clear-backlog {namespace} --force")
    assert backlog(broker, topic) == 0
    publish(client, topic, named(1), keys=2)
    assert backlog(broker, topic) == 1


def test_an_age_quota_evicts(admin: PulsarAdmin, broker: RunningBroker, full: str) -> None:
    assert backlog(broker, full) == 10
    admin(f"topicPolicies set-backlog-quota {full} -lt 1 -p consumer_backlog_eviction -t message_age")
    eventually(lambda: backlog(broker, full) == 0, what="eviction of what is older than a second")


# -- the cookbook: clear-backlog and TTL -------------------------------------------------------------------------


def test_clear_backlog_takes_all_subscriptions_or_one(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    for topic in ("a", "b"):
        for subscription in ("s", "other"):
            rest(broker, "PUT", f"persistent/{namespace}/{topic}/subscription/{subscription}")
        publish(client, f"{namespace}/{topic}", named(3), keys=2)
    admin(f"namespaces clear-backlog {namespace} -s s --force")
    assert [backlog(broker, f"{namespace}/{topic}") for topic in "ab"] == [0, 0]
    assert [backlog(broker, f"{namespace}/{topic}", "other") for topic in "ab"] == [3, 3]
    ranges = {topic: admin(f"topics bundle-range {namespace}/{topic}").out.strip() for topic in "ab"}
    admin(f"namespaces clear-backlog {namespace} -b {ranges['a']} --force")
    assert backlog(broker, f"{namespace}/a", "other") == 0
    assert backlog(broker, f"{namespace}/b", "other") == (0 if ranges["a"] == ranges["b"] else 3)
    admin(f"namespaces clear-backlog {namespace} --force")
    assert backlog(broker, f"{namespace}/b", "other") == 0


def test_clear_backlog_asks_first_and_a_process_ends_with_the_code(
    admin: PulsarAdmin, broker: RunningBroker, full: str
) -> None:
    namespace = full.removesuffix("/t")
    done = admin.run_alone(f"namespaces clear-backlog {namespace}", "y\n")
    assert (done.code, done.err) == (0, "")
    assert "Are you sure" in done.out
    assert backlog(broker, full) == 0
    refused = admin.run_alone(f"namespaces get-retention {namespace}-missing")
    assert (refused.code, refused.out) == (1, "")
    assert "Namespace does not exist" in refused.err


@pytest.mark.parametrize(("level", "option"), [("namespaces", "--messageTTL"), ("topicPolicies", "--ttl")])
def test_ttl_is_set_got_kept_and_removed(
    admin: PulsarAdmin, broker: RunningBroker, full: str, level: str, option: str
) -> None:
    target, path = full, f"persistent/{full}/messageTTL"
    if level == "namespaces":
        target = full.removesuffix("/t")
        path = f"namespaces/{target}/messageTTL"
    admin(f"{level} set-message-ttl {target} {option} 120")
    assert admin(f"{level} get-message-ttl {target}").out == "120\n"
    assert rest(broker, "GET", path) == 120
    admin(f"{level} set-message-ttl {target} {option} 2h")
    assert admin(f"{level} get-message-ttl {target}").out == "7200\n"
    assert backlog(broker, full) == 10
    admin(f"{level} set-message-ttl {target} {option} 1")
    eventually(lambda: backlog(broker, full) == 0, what="expiry after a second")
    assert admin(f"topics stats {full}").json["subscriptions"]["s"]["totalMsgExpired"] == 10
    admin(f"{level} remove-message-ttl {target}")
    assert admin(f"{level} get-message-ttl {target}").out == "null\n"
    assert rest(broker, "GET", path) is None


# -- tenants, namespaces, clusters, the broker -------------------------------------------------------------------


def test_tenants_and_namespaces_live_and_end(admin: PulsarAdmin, broker: RunningBroker) -> None:
    tenant = fresh_name("tenant")
    admin(f"tenants create {tenant} --admin-roles admin --allowed-clusters standalone")
    assert tenant in admin("tenants list").out.split()
    admin(f"tenants update {tenant} --admin-roles bob,eve --allowed-clusters standalone")
    assert sorted(admin(f"tenants get {tenant}").json["adminRoles"]) == ["bob", "eve"]
    assert "Tenant already exist" in admin.refused(f"tenants create {tenant} --allowed-clusters standalone")
    assert "Clusters do not exist" in admin.refused(f"tenants create {tenant}2 --allowed-clusters nowhere")
    admin(f"namespaces create {tenant}/ns --bundles 8")
    assert admin(f"namespaces list {tenant}").out == f"{tenant}/ns\n"
    assert admin(f"namespaces bundles {tenant}/ns").json["numBundles"] == 8
    assert admin(f"namespaces policies {tenant}/ns").json["bundles"]["numBundles"] == 8
    assert "active namespaces" in admin.refused(f"tenants delete {tenant}")
    admin(f"topics create {tenant}/ns/t")
    assert admin(f"namespaces topics {tenant}/ns").out == f"persistent://{tenant}/ns/t\n"
    assert "non empty" in admin.refused(f"namespaces delete {tenant}/ns")
    admin(f"topics delete {tenant}/ns/t")
    admin(f"namespaces delete {tenant}/ns")
    admin(f"tenants delete {tenant}")
    assert "Tenant does not exist" in admin.refused(f"tenants get {tenant}")
    assert tenant not in rest(broker, "GET", "tenants")


def test_the_broker_shows_itself(admin: PulsarAdmin, broker: RunningBroker) -> None:
    address = broker.http_url.partition("://")[2]
    assert admin("clusters list").out == "standalone\n"
    assert admin("clusters get standalone").json["brokerServiceUrl"] == broker.service_url
    assert "cannot be added" in admin.refused("clusters create other --url http://localhost:1")
    assert admin("brokers list standalone").out == f"{address}\n"
    assert admin("brokers leader-broker").json["brokerId"] == address
    assert admin("brokers healthcheck").out == "ok\n"
    assert admin("brokers version").out.strip() != ""
    assert "cluster_name    standalone" in admin("brokers get-runtime-config").out
    assert "clusterName    standalone" in admin("brokers get-runtime-config").out
    assert "maxPublishRatePerTopicInMessages" in admin("brokers list-dynamic-config").out
    assert "non-dynamic" in admin.refused("brokers update-dynamic-config --config a --value b")
    for value in ("5", "a/b", '{"a": "b/c"}'):
        admin(f"brokers update-dynamic-config --config superUserRoles --value {shlex.quote(value)}")
        assert admin("brokers get-all-dynamic-config").out.split(maxsplit=1) == ["superUserRoles", f"{value}\n"]
    admin("brokers delete-dynamic-config --config superUserRoles")
    assert admin("brokers get-all-dynamic-config").out == ""
    assert "public/default/0x00000000_0x40000000" in admin(f"brokers namespaces standalone --url {address}").out
    assert admin("broker-stats load-report").json["pulsarServiceUrl"] == broker.service_url
    assert "/metrics" in admin.refused("broker-stats monitoring-metrics")
    assert "no bookies" in admin.refused("bookies racks-placement")


# -- topics --------------------------------------------------------------------------------------------------------


def test_topics_are_created_listed_and_deleted(admin: PulsarAdmin, namespace: str) -> None:
    admin(f"topics create {namespace}/t -m owner=me")
    assert admin(f"topics get-properties {namespace}/t").out.split() == ["owner", "me"]
    admin(f"topics update-properties {namespace}/t -p team=pay")
    admin(f"topics remove-properties {namespace}/t -k owner")
    assert admin(f"topics get-properties {namespace}/t").out.split() == ["team", "pay"]
    admin(f"topics create-partitioned-topic {namespace}/p --partitions 2")
    admin(f"topics update-partitioned-topic {namespace}/p --partitions 3")
    assert admin(f"topics get-partitioned-topic-metadata {namespace}/p").json["partitions"] == 3
    assert "can't be less than" in admin.refused(f"topics update-partitioned-topic {namespace}/p -p 1")
    assert admin(f"topics list-partitioned-topics {namespace}").out == f"persistent://{namespace}/p\n"
    names = [f"persistent://{namespace}/{local}" for local in ("p-partition-0", "p-partition-1", "p-partition-2", "t")]
    assert sorted(admin(f"topics list {namespace}").out.split()) == names
    bundle = admin(f"topics bundle-range {namespace}/t").out.strip()
    assert names[3] in admin(f"topics list {namespace} --bundle {bundle}").out
    assert admin(f"topics lookup {namespace}/t").out.startswith("pulsar://")
    admin(f"topics delete {namespace}/p-partition-1 --force")
    admin(f"topics create-missed-partitions {namespace}/p")
    assert sorted(admin(f"topics list {namespace}").out.split()) == names
    assert admin(f"topics partitioned-stats {namespace}/p").json["metadata"]["partitions"] == 3
    admin(f"topics delete-partitioned-topic {namespace}/p")
    admin(f"topics delete {namespace}/t")
    assert admin(f"topics list {namespace}").out == ""
    assert "not found" in admin.refused(f"topics stats {namespace}/t")


def test_messages_are_peeked_examined_and_got(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, full: str
) -> None:
    peeked = admin(f"topics peek-messages {full} -s s -n 3").out
    assert printed_payloads(peeked) == ["m0", "m1", "m2"]
    assert re.findall(r"^at +(\d)", peeked, re.MULTILINE) == ["0", "1", "2"]
    assert backlog(broker, full) == 10
    assert printed_payloads(admin(f"topics examine-messages {full} -i earliest -m 2").out) == ["m1"]
    assert printed_payloads(admin(f"topics examine-messages {full}").out) == ["m9"]
    last = admin(f"topics last-message-id {full}").json
    ledger = last["ledgerId"]
    assert last["entryId"] == 9
    assert printed_payloads(admin(f"topics get-message-by-id {full} -l {ledger} -e 4").out) == ["m4"]
    assert "not found" in admin.refused(f"topics get-message-by-id {full} -l {ledger} -e 99")
    first = admin(f"topics get-message-id {full} -d 2020-01-01T00:00:00Z").json
    assert (first["ledgerId"], first["entryId"]) == (ledger, 0)
    whole = int(admin(f"topics get-backlog-size {full}").out)
    assert whole == stats(broker, full)["backlogSize"]
    assert int(admin(f"topics get-backlog-size {full} -m {ledger}:9").out) == 0
    batches = client.create_producer(
        f"{full}-batch",
        batching_enabled=True,
        batching_max_publish_delay_ms=BATCH_WAITS_MS,
        compression_type=pulsar.CompressionType.LZ4,
    )
    rest(broker, "PUT", f"persistent/{full}-batch/subscription/s")
    for at in range(4):
        batches.send_async(f"b{at}".encode(), lambda *_: None)
    batches.flush()
    assert printed_payloads(admin(f"topics peek-messages {full}-batch -s s -n 3").out) == ["b0", "b1", "b2"]
    assert admin(f"topics last-message-id {full}-batch").json["batchIndex"] == 3
    batches.close()


def test_subscriptions_are_created_moved_and_deleted(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, full: str
) -> None:
    ledger = admin(f"topics last-message-id {full}").json["ledgerId"]
    admin(f"topics create-subscription {full} -s early -m earliest -p owner=me")
    admin(f"topics create-subscription {full} -s mid -m {ledger}:6")
    assert sorted(admin(f"topics subscriptions {full}").out.split()) == ["early", "mid", "s"]
    assert (backlog(broker, full, "early"), backlog(broker, full, "mid")) == (10, 4)
    assert "already exists" in admin.refused(f"topics create-subscription {full} -s mid")
    assert admin(f"topics get-subscription-properties {full} -s early").json == {"owner": "me"}
    admin(f"topics update-subscription-properties {full} -s early -p owner=you")
    assert admin(f"topics get-subscription-properties {full} -s early").json == {"owner": "you"}
    admin(f"topics skip {full} -s s -n 3")
    assert backlog(broker, full) == 7
    assert admin(f"topics analyze-backlog {full} -s s").json["messages"] == 7
    admin(f"topics expire-messages {full} -s s -p {ledger}:4")
    assert backlog(broker, full) == 5
    assert admin(f"topics stats {full}").json["subscriptions"]["s"]["totalMsgExpired"] == 2
    admin(f"topics expire-messages {full} -s s -t 1h")
    admin(f"topics expire-messages-all-subscriptions {full} -t 1h")
    assert backlog(broker, full) == 5
    assert "not found" in admin.refused(f"topics expire-messages {full} -s missing -t 1h")
    for position, left in ((f"{ledger}:8", 2), ("earliest", 10), (f"{ledger}:8 -e", 1), ("latest", 0)):
        admin(f"topics reset-cursor {full} -s s -m {position}")
        assert backlog(broker, full) == left, position
    admin(f"topics reset-cursor {full} -s s -t 1h")
    consumer = client.subscribe(full, "s")
    assert receive_many(consumer, 10)[0].data() == b"m0"
    consumer.close()
    admin(f"topics clear-backlog {full} -s early")
    assert backlog(broker, full, "early") == 0
    eventually(lambda: not stats(broker, full)["subscriptions"]["s"]["consumers"], what="the consumer is gone")
    admin(f"topics unsubscribe {full} -s mid")
    admin(f"namespaces unsubscribe {full.removesuffix('/t')} -s early")
    assert admin(f"topics subscriptions {full}").out == "s\n"
    assert "cannot be replicated" in admin.refused(f"topics set-replicated-subscription-status {full} -s s -e")


def test_topics_are_unloaded_compacted_truncated_and_terminated(
    admin: PulsarAdmin, broker: RunningBroker, client: pulsar.Client, full: str
) -> None:
    namespace = full.removesuffix("/t")
    consumer = client.subscribe(full, "s")
    receive_many(consumer, 4)
    eventually(lambda: backlog(broker, full) == 6, what="the acknowledgements")
    admin(f"topics unload {full}")
    admin(f"namespaces unload {namespace}")
    eventually(lambda: stats(broker, full)["subscriptions"]["s"]["consumers"], what="the consumer came back")
    receive_many(consumer, 6)
    eventually(lambda: backlog(broker, full) == 0, what="the acknowledgements")
    assert "requested" in admin(f"topics compact {full}").out
    assert "success" in admin(f"topics compaction-status {full} --wait-complete").out
    reader = client.create_reader(full, pulsar.MessageId.earliest, is_read_compacted=True)
    compacted = []
    while reader.has_message_available():
        compacted.append(bytes(reader.read_next(5000).data()))
    assert compacted == [b"m8", b"m9"]
    reader.close()
    assert admin(f"topics info-internal {full}").json["cursors"]["s"]["markDelete"]["entryId"] == 9
    publish(client, full, named(2), keys=2)
    admin(f"topics trim-topic {full}")
    admin(f"topics truncate {full}")
    eventually(lambda: stats(broker, full)["storageSize"] == 0, what="everything gone")
    assert "total message is zero" in admin.refused(f"topics examine-messages {full}")
    assert "terminated at" in admin(f"topics terminate {full}").out
    with pytest.raises(pulsar.PulsarException, match="Terminated"):
        publish(client, full, named(1), keys=2)
    consumer.close()
    admin(f"topics create-partitioned-topic {namespace}/p --partitions 2")
    assert admin(f"topics partitioned-terminate {namespace}/p").out.count("successfully terminated") == 2
    assert "not allowed" in admin.refused(f"topics terminate {namespace}/p")
    assert admin(f"topics stats-internal {full}").json["state"] == "Terminated"


# -- the library of a newer release ------------------------------------------------------------------------------


def test_the_admin_library_sends_and_reads_what_the_broker_does(broker: RunningBroker, full: str) -> None:
    came_to = library_calls(broker.http_url, full)
    failed = {name: outcome for name, outcome in came_to.items() if outcome.startswith("failed")}
    assert failed == {}
    returned = {name: outcome for name, outcome in came_to.items() if outcome != "done"}
    assert returned == {
        "get retention": "-1",
        "get quotas": "2",
        "get ttl": "3600",
        "get policies": "3600",
        "get topic ttl": "1800",
        "get topic retention": "4096",
        "get topic quota": "2",
        "last": "9",
        "peek": "m0 m1 m2",
        "by id": "m4",
        "examine": "m1",
        "by time": "true",
        "size": "0",
        "properties": "{a=b}",
        "subscriptions": "3",
        "backlog of mid": "4",
        "analyze": "3",
        "analyze from": "2",
        "expired": "2",
        "quota used": str(1 << 20),
        "backlog": "0",
        "compact": "true",
        "internal stats": "true",
        "internal info": "true",
        "get partitions": "3",
        "partitioned stats": "3",
        "terminate partitions": "3",
        "terminate": "true",
        "get tenant": "[ops]",
        "leader": broker.http_url.partition("://")[2],
        "cluster": broker.service_url,
    }
