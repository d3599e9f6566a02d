"""Micro-batches that Spark's engine of streams plans, which calls this process for each."""

from __future__ import annotations

import logging

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from heliograph_spark.run.checkpoints import is_unfinished
from heliograph_spark.run.files_source import read_into_files
from heliograph_spark.run.spark_versions import LIMITS_MICRO_BATCHES

from .micro_batches import Ended, MicroBatch, Reading, Write


class StreamingQuery:
    """A streaming query of Spark that runs up to the head and ends."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._ended: Ended | None = None

    def run(self, write: Write) -> None:
        self._ended = None
        if not LIMITS_MICRO_BATCHES and is_unfinished(self._reading.checkpoint):
            # Spark before 4.2 ends a query after it has repeated the micro-batch of a killed run.
            self._run(write)
        if self._ended is None:
            self._run(write)

    def _run(self, write: Write) -> None:
        reading = self._reading
        spark = reading.spark
        if reading.files is None:
            reader = spark.readStream.format("pulsar").schema(reading.messages)
        else:
            reader = read_into_files(spark, reading.files, reading.messages, reading.cores)
        frame = reader.options(**(reading.limited if LIMITS_MICRO_BATCHES else reading.options)).load()

        def write_batch(batch: DataFrame, number: int) -> None:
            try:
                write(MicroBatch(number, batch, lambda: batch.rdd.getNumPartitions()))
            except Ended as ended:
                self._ended = ended
                if ended.job_ends:
                    # It is no failure that Spark and py4j need to report, each with its stack.
                    spark.sparkContext.setLogLevel("OFF")
                    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
                raise

        writer = frame.writeStream.foreachBatch(write_batch).option("checkpointLocation", reading.checkpoint.path)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except PySparkException:
            if self._ended is None:
                raise
        finally:
            query.stop()
