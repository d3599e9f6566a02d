"""A driver asks for many partitions at the same time, over connections that it keeps."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from heliograph_spark.plan import connection
from heliograph_spark.plan.connection import ask_admin
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import Connection
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.source import PulsarDataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, create_partitions, publish


def test_work_is_done_at_the_same_time_and_its_results_are_in_order() -> None:
    together = threading.Barrier(4)

    def work(number: int) -> int:
        together.wait(timeout=60)
        return number * number

    assert for_each(range(4), work) == [0, 1, 4, 9]
    assert for_each([], work) == []


def test_an_error_of_one_ends_all_and_is_the_error() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise PulsarSourceError("the third")
        return number

    with pytest.raises(PulsarSourceError, match="the third"):
        for_each(range(1000), work)


def test_questions_of_the_rest_api_share_a_connection_also_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        asked = Connection(broker.service_url, broker.http_url, {}, {})
        idle = connection._kept._idle[broker.http_url.partition("://")[2]]
        for _ in range(3):
            assert "public" in ask_admin(asked, "tenants")
        (kept,) = idle
        assert ask_admin(asked, "persistent/public/default/none/stats") is None
        assert idle == [kept]
        broker.restart()
        assert "public" in ask_admin(asked, "tenants")
        assert len(idle) == 1
        assert idle != [kept]


def test_a_stream_of_many_partitions_acknowledges_each_of_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = connect(broker.service_url)
        create_partitions(broker, "many", 40)
        options = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": "many"}
        source = PulsarDataSource({**options, "startingOffsets": "earliest", "predefinedSubscription": "held"})
        reader = source.streamReader(columns_of(RAW, "many"))
        begun = reader.initialOffset()
        assert len(begun) == 40
        for number in (0, 39, 7):
            publish(client, f"many-partition-{number}", [b"a", b"b"])
        end = reader.latestOffset(begun, ReadAllAvailable())
        changed = [f"persistent://public/default/many-partition-{number}" for number in (0, 39, 7)]
        assert sorted(topic for topic in end if end[topic] != begun[topic]) == sorted(changed)
        assert sorted(each.value for each in reader.partitions(begun, end)) == sorted(changed)
        assert [backlog(broker, f"many-partition-{number}", "held") for number in (0, 39, 7)] == [2, 2, 2]
        reader.commit(end)
        assert [backlog(broker, f"many-partition-{number}", "held") for number in (0, 39, 7)] == [0, 0, 0]
        reader.stop()
        client.close()
