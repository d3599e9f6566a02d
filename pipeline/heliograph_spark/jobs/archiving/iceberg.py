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


def identifier_of(tables: Tables, topic: str) -> tuple[str, ...]:
    """Return the identifier of a topic's table; that of last values has a name of its own."""
    return *tables.namespace.split("."), table_name(topic) + ("_last" if tables.last_values else "")


class IcebergArchive:
    """The archive in a namespace of a catalog."""

    def __init__(self, spark: SparkSession, tables: Tables, checkpoint: str) -> None:
        self._spark = spark
        self._tables = tables
        self._catalog = open_catalog(tables.catalog, tables.properties)
        self.checkpoint = checkpoint

    def prepare(self) -> None:
        """Make the namespace and those above it, if it is not there: not everybody who writes tables may make one."""
        namespace = tuple(self._tables.namespace.split("."))
        with refusals(f"catalog {self._tables.catalog}, namespace {self._tables.namespace}"):
            if not self._catalog.namespace_exists(namespace):
                for levels in range(1, len(namespace) + 1):
                    self._catalog.create_namespace_if_not_exists(namespace[:levels])

    def topic(self, name: str) -> TopicTable:
        """Return the table of a topic."""
        identifier = identifier_of(self._tables, name)
        kind = LastValues if self._tables.last_values else TopicTable
        return kind(self._spark, self._catalog, identifier, ".".join((self._tables.catalog, *identifier)), name)
