"""A step of ``benchmarks/run-memory``: ``python -m benchmarks.memory_steps STEP URL ADMIN-URL TOPIC MESSAGES``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from heliograph_spark.run.session import SessionOptions, build_session
from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import col, concat, count, lit, lpad

_CORES = 2
#: Zeros and the number make 100 bytes.
_PAYLOAD = 100
_KEYS = 1000


def write(spark: SparkSession, options: dict[str, str], messages: int) -> int:
    """Publish so many messages with keys, each with its number."""
    number = col("id").cast("string")
    rows = spark.range(0, messages, 1, _CORES).select(
        lpad(number, _PAYLOAD, "0").cast("binary").alias("value"),
        concat(lit("key-"), (col("id") % _KEYS).cast("string")).alias("__key"),
    )
    rows.write.format("pulsar").options(**options).mode("append").save()
    return messages


def read(spark: SparkSession, options: dict[str, str]) -> int:
    """Read the topic into nothing, and count the messages."""
    seen = Observation()
    frame = spark.read.format("pulsar").options(**options, minPartitions=str(_CORES)).load()
    frame.observe(seen, count(lit(1)).alias("messages")).write.format("noop").mode("overwrite").save()
    return int(seen.get["messages"])


def main(arguments: Sequence[str]) -> None:
    """Do a step and print the number of messages."""
    step, service_url, admin_url, topic, messages = arguments
    options = {"service.url": service_url, "admin.url": admin_url, "topic": topic}
    spark = build_session(step, SessionOptions(master=f"local[{_CORES}]"))
    steps: dict[str, Callable[[], int]] = {
        "write": lambda: write(spark, options, int(messages)),
        "read": lambda: read(spark, options),
    }
    print(f"messages {steps[step]()}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
