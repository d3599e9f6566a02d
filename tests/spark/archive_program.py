"""A program that a test kills: a stream from a topic into Parquet, in triggers of a bounded size, until it is ended.

Arguments: service URL, admin URL, topic, directory, and ``once`` to end when everything there is now was written.
"""

from __future__ import annotations

import sys

import heliograph_spark
from pyspark.sql import SparkSession


def main() -> None:
    service_url, admin_url, topic, directory, *once = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    heliograph_spark.register(spark)
    source = spark.readStream.format("pulsar").option("service.url", service_url).option("admin.url", admin_url)
    source = source.option("topic", topic).option("startingOffsets", "earliest").option("maxBytesPerTrigger", "20000")
    sink = source.option("maxEntriesPerSplit", "50").load().selectExpr("CAST(value AS STRING) AS value").writeStream
    sink = sink.format("parquet").option("path", f"{directory}/rows").option("checkpointLocation", f"{directory}/state")
    (sink.trigger(availableNow=True) if once else sink).start().awaitTermination()


if __name__ == "__main__":
    main()
