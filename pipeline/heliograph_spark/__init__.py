"""Reads and writes topics of Heliograph, or of any Pulsar, with Spark: ``format("pulsar")`` for batch and streaming.

The options, their defaults and the columns of metadata are those of the Scala connector for Pulsar, so that a query
moves over as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heliograph_spark.run.stream_metrics import MetricsServer


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


def serve_metrics(spark: Any, port: int, address: str = "0.0.0.0", *, failures: bool = True) -> MetricsServer:
    """Serve the metrics of a ``SparkSession``'s streaming queries of this source to Prometheus, at ``/metrics``.

    It counts from now on, by Spark's progress, for queries that are started or running; port 0 is any free one. With
    ``failures`` it also counts those that end with an error: a job that handles them has reasons of its own. Needs
    ``prometheus-client``. Raises :class:`PulsarSourceError` without it, and :class:`OSError` if the port is in use.
    """
    from heliograph_spark.plan.errors import PulsarSourceError
    from heliograph_spark.plan.extras import missing_package

    try:
        from heliograph_spark.run.stream_metrics import MetricsServer
    except ModuleNotFoundError as error:
        raise PulsarSourceError(missing_package(error) or str(error)) from error

    return MetricsServer(spark, port, address, failures=failures)
