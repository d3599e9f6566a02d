"""A Spark session that reads topics: ``python -m benchmarks.spark_reader SERVICE-URL ADMIN-URL [values | JAR]``.

With ``values`` it asks for the values alone, without the columns of metadata. With a JAR, which is that of the Scala
connector, this runs in a Python with a PySpark that fits it.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql.functions import count, length, lit, spark_partition_id
from pyspark.sql.functions import max as largest
from pyspark.sql.functions import sum as total

from .read_requests import Reading, Request, serve

#: Asks for the values alone.
VALUES = "values"

_MASTER = "local[2]"


def connector_session(jar: str) -> SparkSession:
    """Return a session in which ``format("pulsar")`` is that of the connector."""
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}
    builder = SparkSession.builder.master(_MASTER).config("spark.jars", jar)
    for name, value in local.items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def own_session() -> SparkSession:
    """Return a session that knows this project's data source."""
    # The connector's Python has not got it.
    from heliograph_spark.run.session import SessionOptions, build_session

    return build_session("reading", SessionOptions(master=_MASTER, conf={"spark.ui.enabled": "false"}))


def read(
    spark: SparkSession, service_url: str, admin_url: str, request: Request, *, connector: bool, values: bool = False
) -> Reading:
    """Read a topic into nothing, and count what goes there."""
    began = time.monotonic()
    options = {"service.url": service_url, "admin.url": admin_url, "topic": request.topic}
    if not connector:
        # More entries than any topic has here.
        options |= {"maxEntriesPerSplit": "1000000000", "minPartitions": str(request.splits)}
    reader = spark.read.format("pulsar").options(**options)
    frame = (reader.schema("value BINARY") if values else reader).load()
    seen = Observation()
    counts = [count(lit(1)).alias("messages"), total(length("value")).alias("bytes")]
    if not connector:
        # Spark 3.5 cannot count it, and the connector reads a partition by one task.
        counts.append(largest(spark_partition_id()).alias("last_split"))
    counted = frame.observe(seen, *counts)
    counted.write.format("noop").mode("overwrite").save()
    whole_s = time.monotonic() - began
    found: dict[str, Any] = seen.get
    if (splits := found.get("last_split", 0) + 1) != request.splits:
        raise RuntimeError(f"{splits} splits instead of {request.splits}")
    return Reading(found["messages"], found["bytes"], whole_s)


if __name__ == "__main__":
    service, admin, *further = sys.argv[1:]
    values = further == [VALUES]
    jars = [] if values else further
    session = connector_session(jars[0]) if jars else own_session()
    serve(lambda request: read(session, service, admin, request, connector=bool(jars), values=values))
