"""pulsar-spark itself, the Scala connector, reads and writes; the rows that it reads are those of this data source."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.support.clients import (
    RunningBroker,
    backlog,
    create_partitions,
    publish,
    publish_batch,
    read_messages,
    rest,
    stats,
)
from tests.support.polling import eventually

from .pulsar_spark_process import INSTALLED, READS, VERSIONS, WRITES, Connector, full, offsets
from .pulsar_spark_program import Queries
from .pulsar_spark_rows import SCHEMAS, in_base64, placed_rows, send_rows

pytestmark = [
    pytest.mark.skipif(
        INSTALLED is None,
        reason="scripts/pulsar-spark fetches pulsar-spark with two versions of Spark (0.7 GB), and runs this",
    ),
    # Some start Spark several times, and a busy machine takes minutes for each.
    pytest.mark.timeout(3000),
]

#: The columns of streams, and of rows whose order or places do not matter.
TEXT = ("CAST(value AS STRING) AS value",)


@pytest.fixture(scope="module", params=VERSIONS)
def connector(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connector]:
    with Connector(request.param, tmp_path_factory.mktemp("connector") / "log") as started:
        assert started.run("version") == request.param
        yield started


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connector]:
    """The connector on a Spark on which it writes."""
    with Connector(WRITES, tmp_path_factory.mktemp("writing") / "log") as started:
        yield started


@pytest.fixture
def urls(broker: RunningBroker) -> dict[str, str]:
    return {"service.url": broker.service_url, "admin.url": broker.http_url}


def _values(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["value"] for row in rows)


def _asked_for_a_schema(connector: Connector, client: pulsar.Client, topic: str, urls: dict[str, str]) -> None:
    """Have the connector ask for a version of a schema, as it does for each topic in Avro.

    Its client gives the answer back to a pool before a slow thread has read it. The first time, that thread may be slow
    because the JVM links what it calls, and then the client has an empty schema of that topic as long as it lives.
    """
    send_rows(client, topic, "avro")
    try:
        connector.run("read", options=urls | {"topic": topic})
    except AssertionError as error:
        if 'because "schema" is null' not in str(error):
            raise


@pytest.mark.parametrize("kind", SCHEMAS)
def test_its_rows_are_what_was_sent_and_those_of_this_data_source(
    connector: Connector,
    spark: SparkSession,
    broker: RunningBroker,
    client: pulsar.Client,
    topic: str,
    urls: dict[str, str],
    kind: str,
) -> None:
    if kind == "avro":
        _asked_for_a_schema(connector, client, f"{topic}-first", urls)
    create_partitions(broker, topic, 3)
    sent = send_rows(client, topic, kind)
    read = connector.run("read", options=urls | {"topic": topic})
    assert {row["__topic"] for row in read["rows"]} == {full(f"{topic}-partition-{number}") for number in range(3)}
    contents = [{name: row[name] for name in sent[0]} for row in read["rows"]]
    assert sorted(map(json.dumps, contents)) == sorted(map(json.dumps, sent))
    ours = Queries(spark).read(urls | {"topic": topic})
    assert read["columns"] == ours["columns"]
    assert placed_rows(read["rows"]) == placed_rows(ours["rows"])


def test_a_batch_query_begins_and_ends_where_it_is_told(
    connector: Connector, client: pulsar.Client, topic: str, urls: dict[str, str]
) -> None:
    other = f"{topic}-other"
    ids = publish(client, topic, [b"a", b"b", b"c", b"d"])
    of_other = publish(client, other, [b"e", b"f"])

    def read(**options: str) -> list[str]:
        return _values(connector.run("read", options=urls | options, select=TEXT)["rows"])

    assert read(topic=topic, startingOffsets="earliest", endingOffsets="latest") == ["a", "b", "c", "d"]
    ends = {"startingOffsets": offsets({topic: ids[1]}), "endingOffsets": offsets({topic: ids[2]})}
    assert read(topic=topic, **ends) == ["b", "c"]
    # One place is no range to the connector, be it the first and the last message.
    assert read(topic=topic, startingOffsets=offsets({topic: ids[3]})) == []
    both = offsets({topic: ids[2], other: of_other[0]})
    assert read(topics=f"{topic},{other}", startingOffsets=both) == ["c", "d", "e", "f"]
    assert read(topicsPattern=f"{topic}.*") == ["a", "b", "c", "d", "e", "f"]


def test_a_stream_begins_where_it_is_told(
    connector: Connector, client: pulsar.Client, topic: str, urls: dict[str, str], tmp_path: Path
) -> None:
    for content in (b"a", b"b", b"c", b"d"):
        publish(client, topic, [content])
        # A publish time is in milliseconds, so the next message has another one.
        sent = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= sent + 1:
            time.sleep(0.001)
    first, second = read_messages(client, topic)[:2]
    at = second.publish_timestamp()
    # The connector finds the first message of that time with a consumer, and begins after it unless it is the topic's.
    cases: dict[str, tuple[dict[str, str], list[str]]] = {
        "default": ({}, []),
        "latest": ({"startingOffsets": "latest"}, []),
        "earliest": ({"startingOffsets": "earliest"}, ["a", "b", "c", "d"]),
        "offsets": ({"startingOffsets": offsets({topic: second.message_id()})}, ["b", "c", "d"]),
        "time": ({"startingTime": str(at)}, ["c", "d"]),
        "first time": ({"startingTime": str(first.publish_timestamp())}, ["a", "b", "c", "d"]),
        "times": ({"startingTime": json.dumps({full(topic): at})}, ["c", "d"]),
    }

    def follow(name: str) -> list[str]:
        options = urls | {"topic": topic} | cases[name][0]
        return _values(connector.run("follow", options=options, directory=str(tmp_path / name), select=TEXT))

    assert {name: follow(name) for name in cases} == {name: found for name, (_, found) in cases.items()}
    publish(client, topic, [b"e"])
    assert {name: follow(name) for name in cases} == {name: [*found, "e"] for name, (_, found) in cases.items()}
    batch = connector.run("read", options=urls | {"topic": topic, "startingTime": str(at)}, select=TEXT)
    assert _values(batch["rows"]) == ["c", "d", "e"]


def test_a_stream_of_a_pattern_finds_later_topics(
    connector: Connector, client: pulsar.Client, topic: str, urls: dict[str, str], tmp_path: Path
) -> None:
    def follow() -> list[str]:
        options = urls | {"topicsPattern": f"{topic}-.*"}
        return _values(connector.run("follow", options=options, directory=str(tmp_path), select=TEXT))

    publish(client, f"{topic}-1", [b"before"])
    assert follow() == []
    publish(client, f"{topic}-1", [b"a"])
    publish(client, f"{topic}-2", [b"b", b"c"])
    assert follow() == ["a", "b", "c"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_that_is_killed_goes_on_from_its_checkpoint_and_this_data_source_after_it(
    spark: SparkSession,
    broker: RunningBroker,
    client: pulsar.Client,
    topic: str,
    urls: dict[str, str],
    tmp_path: Path,
    version: str,
) -> None:
    create_partitions(broker, topic, 3)
    options = urls | {"topic": topic, "startingOffsets": "earliest", "failOnDataLoss": "true"}
    stream: dict[str, Any] = {"options": options, "directory": str(tmp_path), "select": TEXT}
    sent: list[str] = []

    def send(count: int) -> None:
        some = [f"{len(sent) + number:05}" for number in range(count)]
        publish(client, topic, [each.encode() for each in some[::2]], keys=7)
        publish_batch(client, topic, [each.encode() for each in some[1::2]])
        sent.extend(some)

    for number in range(3):
        send(200)
        with Connector(version, tmp_path / f"killed-{number}.log") as killed:
            killed.run("start", **stream)
            killed.wait_for(tmp_path / "checkpoint" / "offsets" / str(number))
            killed.kill9()
    with Connector(version, tmp_path / "last.log") as last:
        assert _values(last.run("follow", **stream)) == sent
    send(10)
    assert _values(Queries(spark).follow(**stream)) == sent


def test_a_predefined_subscription_holds_what_is_not_committed(
    connector: Connector, broker: RunningBroker, client: pulsar.Client, topic: str, urls: dict[str, str], tmp_path: Path
) -> None:
    def follow(**more: str) -> list[str]:
        options = urls | {"topic": topic, "startingOffsets": "earliest"} | more
        directory = str(tmp_path / more.get("predefinedSubscription", "own"))
        return _values(connector.run("follow", options=options, directory=directory, select=TEXT))

    publish(client, topic, [b"a", b"b", b"c"])
    # The connector does not create it.
    with pytest.raises(AssertionError, match="Subscription spark not found"):
        follow(predefinedSubscription="spark")
    client.subscribe(topic, "spark", initial_position=pulsar.InitialPosition.Earliest).close()
    assert follow(predefinedSubscription="spark") == ["a", "b", "c"]
    assert backlog(broker, topic, "spark") == 3
    publish(client, topic, [b"d"])
    assert follow(predefinedSubscription="spark") == ["a", "b", "c", "d"]
    # The batch before is committed but for its last message, from which the connector would go on.
    assert backlog(broker, topic, "spark") == 2
    # Without one it creates a subscription of its own, and deletes it.
    assert follow() == ["a", "b", "c", "d"]
    eventually(lambda: list(stats(broker, topic)["subscriptions"]) == ["spark"], what="no other subscription")


def test_a_stream_fails_by_what_is_gone_unless_it_may_lose_it(
    connector: Connector,
    broker: RunningBroker,
    client: pulsar.Client,
    topic: str,
    urls: dict[str, str],
    tmp_path: Path,
    trims_exactly: None,
) -> None:
    def follow(fail: str) -> list[str]:
        options = urls | {"topic": topic, "startingOffsets": "earliest", "failOnDataLoss": fail}
        return _values(connector.run("follow", options=options, directory=str(tmp_path), select=TEXT))

    publish(client, topic, [b"a", b"b"])
    assert follow("true") == ["a", "b"]
    publish(client, topic, [b"gone"])
    rest(broker, "DELETE", f"persistent/public/default/{topic}/truncate")
    publish(client, topic, [b"c", b"d"])
    with pytest.raises(AssertionError, match="Potential Data Loss: intended to start at"):
        follow("true")
    # The connector takes the first message there is for the last one that it has read, and leaves it out.
    assert follow("false") == ["a", "b", "d"]


def test_it_writes_batches_and_streams_to_the_topics_of_a_column(
    writing: Connector,
    broker: RunningBroker,
    client: pulsar.Client,
    topic: str,
    urls: dict[str, str],
    tmp_path: Path,
) -> None:
    create_partitions(broker, f"{topic}-2", 2)
    made = f"""SELECT concat('{topic}-', 1 + number % 2) AS __topic, concat('k', number) AS __key,
        timestamp_millis(1700000000000 + number) AS __eventTime, concat('v', number) AS value
        FROM (SELECT explode(sequence(0, 9)) AS number)"""
    copy: dict[str, Any] = {
        "options": urls | {"topics": f"{topic}-1,{topic}-2", "startingOffsets": "earliest"},
        "select": [f"'{topic}-copy' AS __topic", "__key", "value"],
        "to": urls,
        "checkpoint": str(tmp_path),
    }
    for _ in range(2):
        writing.run("write", sql=made, options=urls)
        # The second one goes on from the checkpoint of the first.
        writing.run("copy", **copy)
    for name, numbers in {"1": range(0, 10, 2), "2": range(1, 10, 2), "copy": range(10)}.items():
        found = [(each.partition_key(), each.value()) for each in read_messages(client, f"{topic}-{name}")]
        # Java's clients set a key of bytes in base64.
        sent = [(in_base64(f"k{number}"), f"v{number}".encode()) for number in numbers]
        assert sorted(found) == sorted([*sent, *sent]), name
        assert rest(broker, "GET", f"schemas/public/default/{topic}-{name}/schema")["type"] == "STRING"


def test_it_writes_several_columns_as_avro_and_this_data_source_reads_them(
    writing: Connector, spark: SparkSession, broker: RunningBroker, topic: str, urls: dict[str, str]
) -> None:
    made = f"SELECT '{topic}' AS __topic, 'k' AS __key, 7L AS id, 'Köln' AS city, array(1.5D) AS ratios"
    writing.run("write", sql=made, options=urls)
    assert rest(broker, "GET", f"schemas/public/default/{topic}/schema")["type"] == "AVRO"
    read: dict[str, Any] = {
        "options": urls | {"topic": topic},
        "select": ("decode(__key, 'utf-8') AS key", "id", "city", "ratios"),
    }
    rows = [{"key": "k", "id": 7, "city": "Köln", "ratios": [1.5]}]
    assert writing.run("read", **read)["rows"] == Queries(spark).read(**read)["rows"] == rows


def test_what_it_cannot_write_fails_within_its_spark(connector: Connector, topic: str, urls: dict[str, str]) -> None:
    # Spark 3.5 has not got a method that it calls, and no Spark here takes the text that it makes of the option topic.
    lacking = {READS: "NoSuchMethodError: .*StructType.toAttributes"}.get(connector.run("version"))
    with pytest.raises(AssertionError, match=lacking or "Literal must have a corresponding value to string"):
        connector.run("write", sql="SELECT 'a' AS value", options=urls | {"topic": topic})
    if lacking is not None:
        with pytest.raises(AssertionError, match=lacking):
            connector.run("write", sql=f"SELECT '{topic}' AS __topic, 'a' AS value", options=urls)
