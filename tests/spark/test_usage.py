"""``heliograph-spark usage``: what the report says is what plain counting says, and what the broker received."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_spark.jobs.plan.broker_stats import PartitionStats, stats_of
from heliograph_spark.jobs.plan.forecast import interval_for
from heliograph_spark.jobs.usage import UsageOptions, usage
from heliograph_spark.plan.options import Connection
from heliograph_spark.run.session import Broker, reason
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, ignore_receipt, publish, rest
from tests.support.polling import eventually

from .conftest import Runs
from .test_replay import archive, documented, program

QUOTA = 1 << 20


def skewed(count: int) -> list[tuple[str | None, bytes]]:
    """Keys of which one has half of the messages, and some that have none; contents of different lengths."""
    return [
        (None if number % 10 == 9 else "big" if number % 2 == 0 else f"k{number % 7}", b"x" * (10 + number % 13))
        for number in range(count)
    ]


def table(spark: SparkSession, report: Path, name: str) -> list[dict[str, Any]]:
    """A table of the report, the same from Parquet and from CSV but for CSV's texts."""
    rows = [row.asDict() for row in spark.read.parquet(str(report / "parquet" / name)).collect()]
    texts = spark.read.option("header", "true").csv(str(report / "csv" / name))
    assert texts.count() == len(rows)
    assert not rows or set(texts.columns) == set(rows[0])
    return rows


@pytest.mark.long
def test_messages_bytes_keys_lag_and_quota_are_as_counted_by_hand(
    spark: SparkSession, runs: Runs, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    parted, plain = f"persistent://{tenant}/n/parted", f"persistent://{tenant}/n/plain"
    rest(broker, "PUT", f"persistent/{tenant}/n/parted/partitions", 3)
    quota = {"limitSize": QUOTA, "policy": "producer_request_hold"}
    rest(broker, "POST", f"namespaces/{tenant}/n/backlogQuota?backlogQuotaType=destination_storage", quota)
    sent = skewed(500)
    behind = client.subscribe(plain, "behind", initial_position=pulsar.InitialPosition.Earliest)
    current = client.subscribe(plain, "current", initial_position=pulsar.InitialPosition.Earliest)
    for topic, batching in ((parted, True), (plain, False)):
        producer = client.create_producer(topic, batching_enabled=batching)
        for key, content in sent:
            producer.send_async(content, ignore_receipt, partition_key=key)
        producer.flush()
    last = None
    for number in range(len(sent)):
        message = current.receive(DEADLINE_MS)
        current.acknowledge(message)
        last = behind.receive(DEADLINE_MS)
        if number == 99:
            behind.acknowledge_cumulative(last)
    current.close()
    behind.close()
    archive(spark, broker, plain, tmp_path / "archive")
    report = tmp_path / "report"
    options = UsageOptions(
        Broker(broker.service_url, broker.http_url), str(report), (tenant,), archive=str(tmp_path / "archive")
    )
    done = runs(lambda session: usage(session, options))
    total = sum(len(content) for _, content in sent)
    assert (done.tenants, done.namespaces, done.topics) == (1, 1, 2)
    assert (done.messages, done.bytes) == (1000, 2 * total)

    counts = Counter(key for key, _ in sent if key is not None)
    sizes = Counter[str]()
    for key, content in sent:
        if key is not None:
            sizes[key] += len(content)
    keys = table(spark, report, "keys")
    for topic in (parted, plain):
        assert {row["key"]: row["messages"] for row in keys if row["topic"] == topic} == counts
        assert {row["key"]: row["bytes"] for row in keys if row["topic"] == topic} == sizes

    topics = {row["topic"]: row for row in table(spark, report, "topics")}
    for topic, partitions in ((parted, 3), (plain, 1)):
        row = topics[topic]
        assert (row["tenant"], row["namespace"], row["partitions"]) == (tenant, f"{tenant}/n", partitions)
        assert (row["messages"], row["bytes"], row["keys"]) == (500, total, len(counts))
        assert (row["biggest_key"], row["key_skew"]) == ("big", counts["big"] / 500)
        assert row["quota_bytes"] == QUOTA
    assert topics[plain]["partition_skew"] == 1
    assert topics[plain]["archived_messages"] == 500
    files = (tmp_path / "archive").rglob("*.parquet")
    assert topics[plain]["archived_bytes"] == sum(file.stat().st_size for file in files)
    assert topics[parted]["archived_messages"] is None

    partitions_found = {row["partition"]: row for row in table(spark, report, "partitions")}
    assert sum(row["bytes"] for row in partitions_found.values()) == 2 * total
    biggest = max(row["bytes"] for name, row in partitions_found.items() if name.startswith(parted))
    assert topics[parted]["partition_skew"] == biggest / total
    stored = {name: rest(broker, "GET", name.replace("://", "/") + "/stats") for name in partitions_found}
    for name, row in partitions_found.items():
        assert row["stored_bytes"] == stored[name]["storageSize"]
        assert row["messages"] == stored[name]["msgInCounter"]
        assert row["bytes_per_hour"] == pytest.approx(row["bytes"] / row["messages"] * row["messages_per_hour"])

    lags = {row["subscription"]: row for row in table(spark, report, "subscriptions")}
    assert set(lags) == {"behind", "current"}
    assert (lags["behind"]["messages"], lags["current"]["messages"], lags["current"]["bytes"]) == (400, 0, 0)
    output = rest(broker, "GET", f"persistent/{tenant}/n/plain/stats?subscriptionBacklogSize=true")
    assert lags["behind"]["bytes"] == output["subscriptions"]["behind"]["backlogSize"] > 0
    assert partitions_found[plain]["backlog_bytes"] == lags["behind"]["bytes"]
    assert topics[plain]["quota_use"] == lags["behind"]["bytes"] / QUOTA

    for name, word in (("tenants", tenant), ("namespaces", f"{tenant}/n")):
        (row,) = table(spark, report, name)
        assert (row["name"], row["topics"], row["messages"], row["bytes"]) == (word, 2, 1000, 2 * total)
        assert row["quota_use"] == topics[plain]["quota_use"]

    page = (report / "usage.html").read_text()
    assert 'src="data:image/png;base64,' in page
    assert not re.search(r"(src|href)=\"(?!data:)", page), "the page needs something beside it"
    for png in re.findall(r"base64,([^\"]+)\"", page):
        assert base64.b64decode(png, validate=True).startswith(b"\x89PNG")
    for text in (parted, plain, "behind", "big", f"{counts['big'] / 500:.1%}"):
        assert text in page


@pytest.mark.long
def test_a_comma_in_a_name_is_part_of_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    sent = {f"persistent://{tenant}/n/{name}": count for name, count in (("a", 1), ("a,b", 2), ("b,c", 3))}
    for topic, count in sent.items():
        publish(client, topic, [b"x"] * count)
    usage(spark, UsageOptions(Broker(broker.service_url, broker.http_url), str(tmp_path / "report"), (tenant,)))
    found = {row["topic"]: row["messages"] for row in table(spark, tmp_path / "report", "topics")}
    assert found == sent


def test_keys_that_are_no_text_are_counted_as_their_base64(
    spark: SparkSession, broker: BrokerProcess, tenant: str, tmp_path: Path
) -> None:
    topic = f"persistent://{tenant}/n/keys"
    rest(broker, "PUT", f"persistent/{tenant}/n/keys")
    rows = spark.createDataFrame(
        [(b"1", b"\xff\x00"), (b"2", b"text"), (b"3", b"\xff\x01"), (b"4", b"\xff\x00"), (b"5", None)],
        "value binary, __key binary",
    )
    urls = {"service.url": broker.service_url, "admin.url": broker.http_url}
    rows.write.format("pulsar").options(**urls, topic=topic).mode("append").save()
    usage(spark, UsageOptions(Broker(broker.service_url, broker.http_url), str(tmp_path / "report"), (tenant,)))
    found = {row["key"]: row["messages"] for row in table(spark, tmp_path / "report", "keys")}
    assert found == {"/wA=": 2, "text": 1, "/wE=": 1}


def test_the_last_message_before_a_report_counts_even_in_the_same_millisecond(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    topic = f"persistent://{tenant}/n/t"
    publish(client, topic, [b"1", b"2"])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    last_ms = [reader.read_next(60_000).publish_timestamp() for _ in range(2)][-1]
    reader.close()
    report = tmp_path / "report"
    options = UsageOptions(Broker(broker.service_url, broker.http_url), str(report), (tenant,))
    assert usage(spark, options, lambda: (last_ms + 0.5) / 1000).messages == 2


def test_keys_and_intervals_are_counted_in_one_reading(
    spark: SparkSession,
    runs: Runs,
    broker: BrokerProcess,
    client: pulsar.Client,
    tenant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = client.create_producer(f"persistent://{tenant}/n/once", batching_enabled=False)
    for number in range(40):
        producer.send_async(b"x" * 10, ignore_receipt, event_timestamp=1_700_000_000_000 + number * 3_600_000)
    producer.flush()
    producer.close()

    def and_then_truncate(span_s: float) -> int:
        # Between the two counts nothing of the topic stays.
        rest(broker, "DELETE", f"persistent/{tenant}/n/once/truncate")
        stored = f"persistent/{tenant}/n/once/internalStats"
        eventually(lambda: rest(broker, "GET", stored)["numberOfEntries"] == 0, what="the messages being deleted")
        return interval_for(span_s)

    monkeypatch.setattr("heliograph_spark.jobs.usage.interval_for", and_then_truncate)
    report = tmp_path / "report"
    options = UsageOptions(Broker(broker.service_url, broker.http_url), str(report), (tenant,), clock="event")
    assert runs(lambda session: usage(session, options)).messages == 40
    assert sum(row["bytes"] for row in table(spark, report, "series")) >= 390


@pytest.mark.long
def test_a_topic_that_is_deleted_meanwhile_is_left_out_and_named(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    tenant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, deleted = f"persistent://{tenant}/n/kept", f"persistent://{tenant}/n/deleted"
    for topic in (kept, deleted):
        publish(client, topic, [b"1", b"2"])

    def and_then_delete(connection: Connection, partition: str) -> PartitionStats | None:
        found = stats_of(connection, partition)
        if partition == kept and not gone:
            gone.append(deleted)
            rest(broker, "DELETE", f"persistent/{tenant}/n/deleted?force=true")
        return found

    gone: list[str] = []
    monkeypatch.setattr("heliograph_spark.jobs.usage.stats_of", and_then_delete)
    options = UsageOptions(Broker(broker.service_url, broker.http_url), str(tmp_path), (tenant,))
    done = usage(spark, options)
    assert (done.topics, done.messages, done.gone, done.error) == (1, 2, (deleted,), None)
    assert [row["topic"] for row in table(spark, tmp_path, "topics")] == [kept]
    assert f"left out: {deleted}" in (tmp_path / "usage.html").read_text()


@pytest.mark.long
def test_growth_is_forecast_and_the_time_to_the_quota_follows_from_it(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    topic = f"persistent://{tenant}/n/growing"
    quota = {"limitSize": QUOTA, "policy": "producer_request_hold"}
    rest(broker, "POST", f"namespaces/{tenant}/n/backlogQuota?backlogQuotaType=destination_storage", quota)
    client.subscribe(topic, "behind", initial_position=pulsar.InitialPosition.Earliest).close()
    producer = client.create_producer(topic, batching_enabled=False)
    # By event time: a thousand bytes an hour for three hundred hours, which nobody has to wait for.
    begin = 1_700_000_000_000
    for number in range(300):
        producer.send_async(b"x" * 1000, ignore_receipt, event_timestamp=begin + number * 3_600_000)
    producer.flush()
    report = tmp_path / "report"
    usage(spark, UsageOptions(Broker(broker.service_url, broker.http_url), str(report), (tenant,), clock="event"))
    (row,) = table(spark, report, "partitions")
    assert (row["messages"], row["bytes"], row["interval_s"]) == (300, 300_000, 3600)
    assert row["forecast_model"] == "level"
    assert row["forecast_error"] == pytest.approx(0, abs=1e-9)
    # The quota counts what is stored, which is more than the messages' own bytes.
    assert row["stored_bytes"] > row["bytes"]
    hours = (QUOTA - row["backlog_bytes"]) / (1000 * row["stored_bytes"] / row["bytes"])
    assert 0 < hours < 900
    assert row["seconds_to_quota"] == pytest.approx(hours * 3600, rel=1e-6)
    series = sorted((each["from_ms"], each["bytes"]) for each in table(spark, report, "series"))
    assert series == [(begin + number * 3_600_000, 1000) for number in range(299)]

    # A quota that is reached is reported as reached, whatever the forecast.
    small = {"limitSize": 100_000, "policy": "producer_request_hold"}
    rest(broker, "POST", f"namespaces/{tenant}/n/backlogQuota?backlogQuotaType=destination_storage", small)
    usage(spark, UsageOptions(Broker(broker.service_url, broker.http_url), str(report), (tenant,), clock="event"))
    (row,) = table(spark, report, "partitions")
    assert row["quota_use"] > 1
    assert row["seconds_to_quota"] == 0
    assert "reached" in (report / "usage.html").read_text()


@pytest.mark.long
def test_the_command_reports_a_tenant_without_topics_and_names_one_that_is_not_there(
    spark: SparkSession, broker: BrokerProcess, tenant: str, tmp_path: Path
) -> None:
    command = program(broker, "usage", *documented("usage", to=str(tmp_path / "report"), tenant=tenant))
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    output = json.loads(out.splitlines()[-1])
    assert (output["job"], output["topics"], output["messages"], output["error"]) == ("usage", 0, 0, None)
    assert (tmp_path / "report" / "usage.html").exists()
    nowhere = UsageOptions(Broker(broker.service_url, broker.http_url), str(tmp_path / "none"), ("nobody",))
    with pytest.raises(Exception, match="there is no tenant 'nobody'") as refused:
        usage(spark, nowhere)
    assert tenant in reason(refused.value)
    assert not (tmp_path / "none").exists()
    with pytest.raises(Exception, match="no answer that can be used") as refused:
        usage(spark, UsageOptions(Broker(broker.service_url, "http://127.0.0.1:1"), str(tmp_path / "none")))
    assert "http://127.0.0.1:1/admin/v2/tenants" in reason(refused.value)


def test_a_topic_is_read_while_it_is_written_to_up_to_the_reports_beginning(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    topic = f"persistent://{tenant}/n/live"
    publish(client, topic, [b"1", b"2"])
    stop = threading.Event()

    def go_on() -> None:
        producer = client.create_producer(topic)
        while not stop.wait(0.01):
            producer.send(b"more")

    writer = threading.Thread(target=go_on)
    writer.start()
    report = tmp_path / "report"
    try:
        done = usage(spark, UsageOptions(Broker(broker.service_url, broker.http_url), str(report), (tenant,)))
    finally:
        stop.set()
        writer.join()
    keyed = spark.read.parquet(str(report / "parquet" / "partitions")).collect()[0]
    series = sum(row.bytes for row in spark.read.parquet(str(report / "parquet" / "series")).collect())
    assert done.messages == keyed.messages >= 2
    assert series <= keyed.bytes == done.bytes


@pytest.mark.long
def test_a_report_is_as_of_its_moment_and_its_page_is_there_only_with_its_own_tables(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, tmp_path: Path
) -> None:
    topic = f"persistent://{tenant}/n/t"
    publish(client, topic, [b"1", b"2"])
    moment = time.time() + 0.002
    while time.time() < moment + 0.002:
        time.sleep(0.001)
    publish(client, topic, [b"3"])
    given = UsageOptions(Broker(broker.service_url, broker.http_url), str(tmp_path), (tenant,))
    assert usage(spark, given, lambda: moment).messages == 2
    assert usage(spark, given).messages == 3
    shutil.rmtree(tmp_path / "csv")
    (tmp_path / "csv").write_text("in the way")
    with pytest.raises(Exception, match="csv"):
        usage(spark, given)
    assert not (tmp_path / "usage.html").exists()
