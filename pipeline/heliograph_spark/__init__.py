"""Reads and writes topics of Heliograph, or of any Pulsar, with Spark: ``format("pulsar")`` for batch and streaming.

The options, their defaults and the columns of metadata are those of the Scala connector for Pulsar, so that a query
moves over as it is.
"""

from __future__ import annotations

from typing import Any


def register(spark: Any) -> None:
    """Make ``format("pulsar")`` known to a ``SparkSession``. The executors must be able to import this package.

    Where the driver finds the module ``pyspark_pulsar``, Spark knows the source already, and this changes nothing.
    """
    from pyspark.errors import AnalysisException

    from heliograph_spark.run.source import PulsarDataSource

    try:
        spark.dataSource.register(PulsarDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
