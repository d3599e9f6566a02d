"""Spark's declarative pipelines: a topic becomes a table, and the rows of that go to another topic."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BROKER = {"service.url": "pulsar://localhost:6650"}

dp.create_sink("copies", "pulsar", {**BROKER, "topic": "words-copy"})


@dp.table(name="words")
def words() -> DataFrame:
    """The messages of the topic, from the first one that is stored on."""
    source = SparkSession.active().readStream.format("pulsar").options(**BROKER).option("topic", "words")
    return source.option("startingOffsets", "earliest").load()


@dp.append_flow(target="copies")
def copied() -> DataFrame:
    """The rows that the table gets, in capitals."""
    return SparkSession.active().readStream.table("words").selectExpr("__key", "upper(CAST(value AS STRING)) AS value")
