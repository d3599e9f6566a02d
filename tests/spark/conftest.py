"""One broker and one Spark for all tests of the data source: both are real, and talk over real sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import heliograph_spark
import pulsar
import pytest
from pyspark.sql import SparkSession

from tests.integration.client_fixtures import client, topic
from tests.integration.clients import rest
from tests.support.broker_process import BrokerProcess

__all__ = ["broker", "client", "spark", "topic"]

PIPELINE = Path(__file__).parents[2] / "pipeline"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that keeps what nobody is subscribed to, so that there is something to read."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        rest(
            running,
            "POST",
            "namespaces/public/default/retention",
            {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        )
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark of two threads in this process, whose Python workers can import the data source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    heliograph_spark.register(session)
    yield session
    session.stop()


def publish(client: pulsar.Client, topic: str, contents: list[bytes], **settings: object) -> list[pulsar.MessageId]:
    """Publish each content as a message of its own; returns their ids."""
    producer = client.create_producer(topic, **settings)
    ids = [producer.send(each) for each in contents]
    producer.close()
    return ids
