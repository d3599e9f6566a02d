"""Reads and writes topics of Heliograph, or of any Pulsar, with Spark: ``format("pulsar")`` for batch and streaming.

The options, their defaults and the columns of metadata are those of the Scala connector for Pulsar, so that a query
moves over as it is.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make ``format("pulsar")`` known to a ``SparkSession``. The executors must be able to import this package."""
    from heliograph_spark.run.source import PulsarDataSource

    spark.dataSource.register(PulsarDataSource)
