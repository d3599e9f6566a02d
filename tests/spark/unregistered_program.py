"""Reads and copies a topic without registering anything.

Its arguments are ``SERVICE-URL TOPIC CHECKPOINT [REMOTE]``. It prints what it found as JSON.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    service_url, topic, checkpoint, *remote = sys.argv[1:]
    builder = SparkSession.builder
    builder = builder.remote(remote[0]) if remote else builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    view = f"words USING pulsar OPTIONS ('service.url' '{service_url}', topic '{topic}')"
    spark.sql(f"CREATE TEMPORARY VIEW {view}")
    frame = spark.read.format("pulsar").option("service.url", service_url).option("topic", topic).load()
    found = {
        "view": [bytes(row.value).decode() for row in spark.sql("SELECT value FROM words").collect()],
        "frame": [bytes(row.value).decode() for row in frame.select("value").collect()],
    }
    # The same message twice: copied by a batch, and by a stream.
    copy = {"service.url": service_url, "topic": f"{topic}-copy"}
    frame.select("value").write.format("pulsar").options(**copy).mode("append").save()
    stream = spark.readStream.format("pulsar").option("service.url", service_url).option("topic", topic)
    copied = stream.option("startingOffsets", "earliest").load().select("value").writeStream.format("pulsar")
    copied = copied.options(**copy).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    copied.start().awaitTermination()
    written = spark.read.format("pulsar").options(**copy).load()
    found["copied"] = [bytes(row.value).decode() for row in written.select("value").collect()]
    import heliograph_spark

    # Once more by name, as notebooks do that were written before.
    heliograph_spark.register(spark)
    found["registered"] = [bytes(row.value).decode() for row in frame.select("value").collect()]
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
