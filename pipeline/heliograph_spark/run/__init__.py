"""The parts that Spark runs: the data source, the sink, decoding and encoding, files.

Importing any of it raises :class:`PulsarSourceError` with a Spark that is too old.
"""

from . import spark_versions

__all__ = ["spark_versions"]
