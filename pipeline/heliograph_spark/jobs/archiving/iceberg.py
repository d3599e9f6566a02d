"""An archive in Iceberg tables, one for each topic: all of its messages, or the last value of each key."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from heliograph_spark.tables.catalog import open_catalog, refusals

from .last_values import LastValues
from .options import Tables
from .topic_table import TopicTable


def table_name(topic: str) -> str:
    """Return the name of a topic's table, in characters that every engine takes without quotes."""
    return re.sub(r"[^0-9a-z]", "_", topic.partition("://")[2].lower())


class IcebergArchive:
    """The archive in a namespace of a catalog."""

    def __init__(self, spark: SparkSession, tables: Tables, checkpoint: str) -> None:
        self._spark = spark
        self._name = tables.catalog
        self._namespace = tuple(tables.namespace.split("."))
        self._catalog = open_catalog(tables.catalog, tables.properties)
        self._last_values = tables.last_values
        self.checkpoint = checkpoint

    def prepare(self) -> None:
        """Make the namespace and those above it, if it is not there: not everybody who writes tables may make one."""
        with refusals(f"catalog {self._name}, namespace {'.'.join(self._namespace)}"):
            if not self._catalog.namespace_exists(self._namespace):
                for levels in range(1, len(self._namespace) + 1):
                    self._catalog.create_namespace_if_not_exists(self._namespace[:levels])

    def topic(self, name: str) -> TopicTable:
        """Return the table of a topic; that of last values has a name of its own."""
        identifier = (*self._namespace, table_name(name) + ("_last" if self._last_values else ""))
        kind = LastValues if self._last_values else TopicTable
        return kind(self._spark, self._catalog, identifier, ".".join((self._name, *identifier)), name)
