"""A program that is killed: a stream from a topic into another one, in triggers of a bounded size, until it ends.

Arguments: service URL, admin URL, topic, topic to write to, checkpoint, bytes of a trigger, and ``once`` to end when
everything there is now was written.
"""

from __future__ import annotations

import sys

from heliograph_spark.run.session import SessionOptions, build_session


def main() -> None:
    service_url, admin_url, topic, target, checkpoint, trigger_bytes, *once = sys.argv[1:]
    spark = build_session("sink", SessionOptions(master="local[2]"))
    source = spark.readStream.format("pulsar").option("service.url", service_url).option("admin.url", admin_url)
    source = source.option("topic", topic).option("startingOffsets", "earliest")
    source = source.option("maxBytesPerTrigger", trigger_bytes).option("maxEntriesPerSplit", "50")
    sink = source.load().select("__key", "value").writeStream.format("pulsar")
    sink = sink.option("service.url", service_url).option("topic", target).option("checkpointLocation", checkpoint)
    sink = sink.option("pulsar.producer.producerName", "copy")
    (sink.trigger(availableNow=True) if once else sink).start().awaitTermination()


if __name__ == "__main__":
    main()
