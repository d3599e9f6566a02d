"""Statistics after real traffic by the official client: Pulsar's field names, true counts, HTTP look-up."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, fresh_name, publish
from tests.support.polling import eventually
from tests.support.rest import call, keep_nothing, metrics


def _fields(text: str) -> set[str]:
    return set(text.split())


_TOPIC_FIELDS = _fields(
    """msgRateIn msgThroughputIn msgRateOut msgThroughputOut bytesInCounter msgInCounter systemTopicBytesInCounter
    bytesOutCounter msgOutCounter bytesOutInternalCounter averageMsgSize msgChunkPublished storageSize backlogSize
    backlogQuotaLimitSize backlogQuotaLimitTime oldestBacklogMessageAgeSeconds publishRateLimitedTimes
    earliestMsgPublishTimeInBacklogs offloadedStorageSize lastOffloadLedgerId lastOffloadSuccessTimeStamp
    lastOffloadFailureTimeStamp ongoingTxnCount abortedTxnCount committedTxnCount publishers waitingPublishers
    subscriptions replication deduplicationStatus nonContiguousDeletedMessagesRanges
    nonContiguousDeletedMessagesRangesSerializedSize delayedMessageIndexSizeInBytes compaction ownerBroker
    topicCreationTimeStamp lastPublishTimeStamp oldestBacklogMessageSubscriptionName"""
) | {"keptByLedgerMessages", "keptByLedgerSize", "damagedEntries", "suspended"}
_SUBSCRIPTION_FIELDS = _fields(
    """msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate chunkedMessageRate
    msgBacklog backlogSize earliestMsgPublishTimeInBacklog msgBacklogNoDelayed blockedSubscriptionOnUnackedMsgs
    msgDelayed msgInReplay unackedMessages type msgRateExpired msgExpired totalMsgExpired lastExpireTimestamp
    lastConsumedFlowTimestamp lastConsumedTimestamp lastAckedTimestamp lastMarkDeleteAdvancedTimestamp consumers
    isDurable isReplicated allowOutOfOrderDelivery keySharedMode consumersAfterMarkDeletePosition
    drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages
    nonContiguousDeletedMessagesRanges nonContiguousDeletedMessagesRangesSerializedSize
    delayedMessageIndexSizeInBytes subscriptionProperties filterProcessedMsgCount filterAcceptedMsgCount
    filterRejectedMsgCount filterRescheduledMsgCount dispatchThrottledMsgEventsBySubscriptionLimit
    dispatchThrottledBytesEventsBySubscriptionLimit dispatchThrottledMsgEventsByTopicLimit
    dispatchThrottledBytesEventsByTopicLimit dispatchThrottledMsgEventsByBrokerLimit
    dispatchThrottledBytesEventsByBrokerLimit durable replicated skippedEntries skippedMessages
    idleReason idleSinceTimestamp"""
)
_CONSUMER_FIELDS = _fields(
    """msgRateOut msgThroughputOut bytesOutCounter msgOutCounter msgRateRedeliver messageAckRate chunkedMessageRate
    consumerName availablePermits unackedMessages avgMessagesPerEntry blockedConsumerOnUnackedMsgs
    drainingHashesCount drainingHashesClearedTotal drainingHashesUnackedMessages drainingHashes address
    connectedSince clientVersion lastAckedTimestamp lastConsumedTimestamp firstMessagesSentTimestamp
    lastConsumedFlowTimestamp firstConsumedFlowTimestamp keyHashRangeArrays metadata lastAckedTime
    lastConsumedTime"""
)
_PRODUCER_FIELDS = _fields(
    """accessMode msgRateIn msgThroughputIn averageMsgSize chunkedMessageRate producerId supportsPartialProducer
    producerName address connectedSince clientVersion metadata"""
)
_INTERNAL_FIELDS = _fields(
    """entriesAddedCounter numberOfEntries totalSize currentLedgerEntries currentLedgerSize
    lastLedgerCreatedTimestamp waitingCursorsCount pendingAddEntriesCount lastConfirmedEntry state ledgers cursors
    properties schemaLedgers compactedLedger"""
)
_OF_LEDGERS = _fields(
    "lastLedgerCreatedTimestamp lastConfirmedEntry state ledgers properties schemaLedgers compactedLedger"
)
_CURSOR_FIELDS = _fields(
    """markDeletePosition readPosition waitingReadOp pendingReadOps messagesConsumedCounter cursorLedger
    cursorLedgerLastEntry individuallyDeletedMessages lastLedgerSwitchTimestamp state active
    numberOfEntriesSinceFirstNotAckedMessage totalNonContiguousDeletedMessagesRange subscriptionHavePendingRead
    subscriptionHavePendingReplayRead properties"""
)


def _send(broker: BrokerProcess, method: str, path: str, body: str = "") -> None:
    request = urllib.request.Request(f"{broker.http_url}{path}", data=body.encode(), method=method)
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 204


def test_topic_and_internal_stats_after_traffic(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "ks", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name="cons-a", properties={"app": "demo"}
    )
    path = f"/admin/v2/persistent/public/default/{topic}"
    _send(broker, "PUT", f"{path}/subscription/idle")
    producer = client.create_producer(topic, producer_name=f"prod-{topic}", batching_enabled=False)
    for index in range(20):
        producer.send(b"x" * 100, partition_key=str(index))
    received = [consumer.receive(DEADLINE_MS) for _ in range(20)]
    for message in received[:5]:
        consumer.acknowledge(message)
    consumer.acknowledge(received[10])
    # The client groups acknowledgments: closing sends what is left.
    before = call(f"{broker.http_url}{path}/stats")
    consumer.close()
    producer.flush()
    stats = call(f"{broker.http_url}{path}/stats")
    assert set(before) == _TOPIC_FIELDS
    assert set(before["subscriptions"]["ks"]) == _SUBSCRIPTION_FIELDS
    assert set(before["subscriptions"]["ks"]["consumers"][0]) == _CONSUMER_FIELDS
    assert set(before["publishers"][0]) == _PRODUCER_FIELDS
    assert before["publishers"][0]["producerName"] == f"prod-{topic}"
    assert before["publishers"][0]["accessMode"] == "Shared"
    assert before["subscriptions"]["ks"]["type"] == "Key_Shared"
    assert before["subscriptions"]["ks"]["consumers"][0]["metadata"] == {"app": "demo"}
    assert before["msgRateIn"] > 0
    assert stats["msgInCounter"] == 20
    assert stats["subscriptions"]["ks"]["msgBacklog"] == 14
    idle = stats["subscriptions"]["idle"]
    assert idle["msgBacklog"] == 20
    assert idle["backlogSize"] == stats["storageSize"] == stats["backlogSize"] == stats["bytesInCounter"]
    internal = call(f"{broker.http_url}{path}/internalStats")
    assert set(internal) == _INTERNAL_FIELDS
    assert set(internal["cursors"]["ks"]) == _CURSOR_FIELDS
    ledger = internal["ledgers"][0]["ledgerId"]
    assert internal["lastConfirmedEntry"] == f"{ledger}:19"
    assert internal["cursors"]["ks"]["markDeletePosition"] == f"{ledger}:4"
    assert internal["cursors"]["ks"]["individuallyDeletedMessages"] == f"[({ledger}:9..{ledger}:10]]"
    assert internal["cursors"]["idle"]["markDeletePosition"] == f"{ledger}:-1"
    assert internal["ledgers"][0]["size"] == internal["totalSize"] == stats["storageSize"]
    text = metrics(broker.http_url)
    labels = f'cluster="standalone",namespace="public/default",topic="persistent://public/default/{topic}"'
    assert f"pulsar_msg_backlog{{{labels}}} 34\n" in text
    assert f'pulsar_subscription_back_log{{{labels},subscription="ks"}} 14\n' in text
    assert f"pulsar_in_messages_total{{{labels}}} 20\n" in text


def test_latencies_sizes_and_lookups_are_measured(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    labels = f'cluster="standalone",namespace="public/default",topic="persistent://public/default/{topic}"'

    def value(name: str, more: str = labels) -> float:
        lines = metrics(broker.http_url).splitlines()
        (found,) = [line for line in lines if line.startswith(f"{name}{{{more}}} ")]
        return float(found.rpartition(" ")[2])

    own = 'cluster="standalone"'
    lookups, published = value("pulsar_broker_lookup_count", own), value("pulsar_broker_publish_latency_count", own)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for size in (10, 10, 400, 3000, 50_000):
        producer.send(b"x" * size)
        consumer.receive(DEADLINE_MS)
    assert value("pulsar_broker_lookup_count", own) >= lookups + 2
    assert value("pulsar_broker_lookup", f'{own},quantile="1.0"') > 0
    assert value("pulsar_broker_publish_latency_count", own) == published + 5
    least, most = (value("pulsar_broker_publish_latency", f'{own},quantile="{q}"') for q in ("0.0", "1.0"))
    assert 0 < least <= most < 30_000
    assert value("pulsar_entry_size_count") == value("pulsar_storage_write_latency_count") == 5
    assert value("pulsar_entry_size_sum") == value("pulsar_storage_size")
    sizes = {bound: value(f"pulsar_entry_size_le_{bound}") for bound in ("128", "512", "4_kb", "16_kb", "100_kb")}
    assert sizes == {"128": 2, "512": 1, "4_kb": 1, "16_kb": 0, "100_kb": 1}
    # The write and its sync are a part of the whole.
    assert 0 < value("pulsar_storage_ledger_write_latency_sum") <= value("pulsar_storage_write_latency_sum")
    assert value("pulsar_storage_write_rate") > 0
    assert value("pulsar_storage_read_rate") > 0
    assert value("pulsar_broker_throttled_connections", own) == 0
    consumer.close()


def test_partitioned_stats_are_the_sum(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}"
    _send(broker, "PUT", f"{path}/partitions", "4")
    _send(broker, "PUT", f"{path}/subscription/idle")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(100):
        producer.send(b"y" * 10)
    whole = call(f"{broker.http_url}{path}/partitioned-stats?perPartition=false")
    assert whole["metadata"] == {"partitions": 4, "deleted": False}
    assert whole["partitions"] == {}
    assert set(whole) == (_TOPIC_FIELDS - {"deduplicationStatus", "ownerBroker"}) | {"metadata", "partitions"}
    assert len(whole["publishers"]) == 1
    parts = call(f"{broker.http_url}{path}/partitioned-stats")["partitions"]
    assert sorted(parts) == [f"persistent://public/default/{topic}-partition-{index}" for index in range(4)]
    for field in ("msgInCounter", "bytesInCounter", "storageSize", "backlogSize"):
        assert whole[field] == sum(part[field] for part in parts.values())
    assert whole["msgInCounter"] == whole["subscriptions"]["idle"]["msgBacklog"] == 100


def test_what_is_not_wanted_is_left_out_and_what_costs_more_comes_on_demand(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    began = time.time() * 1000
    producer.send(b"z" * 50)
    stats = call(f"{broker.http_url}{path}/stats?getPreciseBacklog=true")
    assert stats["subscriptions"]["s"]["backlogSize"] == stats["backlogSize"] > 50
    assert stats["subscriptions"]["s"]["earliestMsgPublishTimeInBacklog"] == 0
    assert (len(stats["publishers"]), len(stats["subscriptions"]["s"]["consumers"])) == (1, 1)
    assert stats["oldestBacklogMessageSubscriptionName"] == "s"
    query = "subscriptionBacklogSize=false&getEarliestTimeInBacklog=true&excludePublishers=true&excludeConsumers=true"
    stats = call(f"{broker.http_url}{path}/stats?{query}")
    subscription = stats["subscriptions"]["s"]
    assert subscription["backlogSize"] == -1
    assert stats["backlogSize"] > 50
    assert abs(subscription["earliestMsgPublishTimeInBacklog"] - began) < 60_000
    assert stats["earliestMsgPublishTimeInBacklogs"] == subscription["earliestMsgPublishTimeInBacklog"]
    assert (stats["publishers"], subscription["consumers"]) == ([], [])
    assert subscription["msgBacklog"] == 1
    with pytest.raises(urllib.error.HTTPError, match="400"):
        call(f"{broker.http_url}{path}/stats?excludeConsumers=perhaps")
    consumer.close()


def test_quota_limits_and_usage_are_in_the_stats(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    _send(broker, "PUT", f"/admin/v2/namespaces/public/{topic}")
    for kind, limit in (("destination_storage", {"limitSize": 5_000_000}), ("message_age", {"limitTime": 7200})):
        body = json.dumps({**limit, "policy": "consumer_backlog_eviction"})
        _send(broker, "POST", f"/admin/v2/namespaces/public/{topic}/backlogQuota?backlogQuotaType={kind}", body)
    path = f"/admin/v2/persistent/public/{topic}/t"
    _send(broker, "PUT", path)
    stats = call(f"{broker.http_url}{path}/stats")
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (5_000_000, 7200)
    assert stats["oldestBacklogMessageAgeSeconds"] == -1
    assert "oldestBacklogMessageSubscriptionName" not in stats


def test_a_non_persistent_topic_says_what_it_dropped(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    name = f"non-persistent://public/default/{topic}"
    consumer = client.subscribe(name, "s", receiver_queue_size=1)
    producer = client.create_producer(name, batching_enabled=False)
    for _ in range(20):
        producer.send(b"x")
    stats = call(f"{broker.http_url}/admin/v2/non-persistent/public/default/{topic}/stats")
    assert set(stats) == (_TOPIC_FIELDS - {"oldestBacklogMessageSubscriptionName", "deduplicationStatus"}) | {
        "msgDropRate"
    }
    assert set(stats["publishers"][0]) == _PRODUCER_FIELDS | {"msgDropRate"}
    assert stats["msgInCounter"] == 20
    assert (stats["storageSize"], stats["backlogSize"], stats["oldestBacklogMessageAgeSeconds"]) == (0, 0, -1)
    subscription = stats["subscriptions"]["s"]
    assert subscription["msgDropRate"] > 0
    assert subscription["msgOutCounter"] < 20
    assert subscription["isDurable"] is False
    internal = call(f"{broker.http_url}/admin/v2/non-persistent/public/default/{topic}/internalStats")
    assert set(internal) == _INTERNAL_FIELDS - _OF_LEDGERS
    assert internal["cursors"] == {}
    consumer.close()


def test_internal_stats_name_the_first_stored_entry_of_a_ledger(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    _send(broker, "PUT", f"/admin/v2/namespaces/public/{topic}", "")
    keep_nothing(broker.http_url, f"public/{topic}")
    name = f"public/{topic}/t"
    consumer = client.subscribe(name, "s")
    ids = publish(client, name, [b"%d" % number for number in range(10)])

    def ledger() -> tuple[int, int]:
        (found,) = call(f"{broker.http_url}/admin/v2/persistent/{name}/internalStats")["ledgers"]
        return found["firstEntry"], found["entries"]

    assert ledger() == (0, 10)
    consumer.acknowledge_cumulative(ids[3])
    eventually(lambda: ledger() == (4, 6), within_s=60, what="the acknowledged messages being deleted")
    consumer.acknowledge_cumulative(ids[-1])
    eventually(lambda: ledger() == (10, 0), within_s=60, what="all messages being deleted")


def test_internal_stats_of_every_partition(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    path = f"/admin/v2/persistent/public/default/{topic}"
    _send(broker, "PUT", f"{path}/partitions", "3")
    stats = call(f"{broker.http_url}{path}/partitioned-internalStats")
    assert stats["metadata"] == {"partitions": 3, "deleted": False}
    assert len(stats["partitions"]) == 3
    assert all(set(part) == _INTERNAL_FIELDS for part in stats["partitions"].values())


def test_a_client_may_look_up_by_http(broker: BrokerProcess) -> None:
    topic = fresh_name()
    client = pulsar.Client(broker.http_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        _send(broker, "PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", "2")
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        producer = client.create_producer(topic)
        for index in range(10):
            producer.send(str(index).encode())
        received = set()
        for _ in range(10):
            message = consumer.receive(DEADLINE_MS)
            received.add(message.data())
            consumer.acknowledge(message)
        assert received == {str(index).encode() for index in range(10)}
    finally:
        client.close()
