"""Makes ``format("pulsar")`` known to every Spark session that can import this package.

Spark imports each module whose name begins with ``pyspark_`` and takes its ``DefaultSource``, in a process of its own,
before it looks for a data source that it does not have.
"""

from __future__ import annotations

from heliograph_spark.run.source import PulsarDataSource as DefaultSource

__all__ = ["DefaultSource"]
