"""A stream on a Spark that hands over neither a start nor a limit, called as Spark 4.0 and 4.1 call it."""

from __future__ import annotations

import pulsar
import pytest
from heliograph_spark.plan.errors import DataLossError, OptionError
from heliograph_spark.plan.options import read_options
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.source import Split, UnlimitedStreamReader
from pyspark.sql.datasource import InputPartition

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish


def reader_of(broker: BrokerProcess, topic: str, **more: str) -> UnlimitedStreamReader:
    given = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": topic}
    options = read_options({**given, "startingOffsets": "earliest", **more}, streaming=True)
    return UnlimitedStreamReader(columns_of(RAW, topic), options)


def entries(splits: list[InputPartition]) -> int:
    return sum(split.range.entries for split in splits if isinstance(split, Split))


def test_each_batch_goes_on_where_the_one_before_ended(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"one", b"two"])
    reader = reader_of(broker, topic)
    start, end = reader.initialOffset(), reader.latestOffset()
    assert entries([*reader.partitions(start, end)]) == 2
    assert reader.latestOffset() == end
    publish(client, topic, [b"three"])
    later = reader.latestOffset()
    assert entries([*reader.partitions(end, later)]) == 1
    reader.stop()


def test_after_a_restart_the_first_batch_goes_on_where_the_last_one_ended(
    broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, [b"one", b"two"])
    before = reader_of(broker, topic)
    before.initialOffset()
    done = before.latestOffset()
    before.stop()
    reader = reader_of(broker, topic)
    # Spark asks for the end first, and compares it with that of its checkpoint.
    assert reader.latestOffset() == done
    publish(client, topic, [b"three"])
    assert entries([*reader.partitions(done, reader.latestOffset())]) == 1
    reader.stop()


def test_a_topic_that_is_gone_ends_the_query(broker: BrokerProcess, client: pulsar.Client, topic: str) -> None:
    publish(client, topic, [b"one"])
    reader = reader_of(broker, topic)
    end = reader.latestOffset()
    start = end | {"persistent://public/default/gone": "3:4"}
    with pytest.raises(DataLossError, match="gone is gone, of which the query has read up to 3:4"):
        reader.partitions(start, end)
    reader.stop()
    tolerant = reader_of(broker, topic, failOnDataLoss="false")
    assert tolerant.partitions(start, end) == []
    tolerant.stop()


@pytest.mark.parametrize("option", ["maxBytesPerTrigger", "maxOffsetsPerTrigger"])
def test_a_limit_is_refused(broker: BrokerProcess, client: pulsar.Client, topic: str, option: str) -> None:
    publish(client, topic, [b"one"])
    with pytest.raises(OptionError, match=rf"{option} needs Spark 4\.2 or later, and this is Spark .*: leave it out"):
        reader_of(broker, topic, **{option: "1"})
