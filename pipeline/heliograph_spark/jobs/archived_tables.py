"""An archive in the tables of a catalog, as jobs read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import DataScan, Table
from pyspark.sql import DataFrame, SparkSession

from heliograph_spark.plan.errors import JobError, SchemaError
from heliograph_spark.run.schemas import METADATA
from heliograph_spark.tables.catalog import open_catalog, refusals
from heliograph_spark.tables.columns import REWRITE
from heliograph_spark.tables.reading import planned_files, read_scan

from .archived import Archived, Topics, made_of
from .archiving.iceberg import identifier_of
from .archiving.last_values import LastValues
from .archiving.options import Tables
from .archiving.topic_table import TIME, TOPIC, TopicTable, check_owner

#: Columns without which a table has no messages, or not as they were.
_NEEDED = ("__key", "__topic", "__messageId", TIME, "__eventTime", "__messageProperties")
_NAMED = 5


def archive_tables(catalog: Catalog, tables: Tables) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """Return the tables of topics in a namespace, each with the topic's whole name, and what could not be read.

    A topic has several tables, if that of its last values is one of them.
    """
    with refusals(tables.name):
        identifiers = catalog.list_tables(tuple(tables.namespace.split(".")))
    found: list[tuple[str, tuple[str, ...]]] = []
    failed: list[str] = []
    for identifier in identifiers:
        try:
            with refusals(".".join(identifier)):
                topic = catalog.load_table(identifier).properties.get(TOPIC)
        except JobError as error:
            failed.append(str(error))
            continue
        if topic is not None:
            found.append((topic, tuple(identifier)))
    if not found:
        raise JobError(failed[0] if failed else f"{tables.name}: no table of an archive is there")
    return found, failed


class TableArchive:
    """The tables of all messages, or those of last values, in a namespace of a catalog."""

    def __init__(self, spark: SparkSession, catalog: Catalog, tables: Tables) -> None:
        self._spark = spark
        self._catalog = catalog
        self._tables = tables
        self.name = tables.name

    def topics(self) -> Topics:
        found, failed = archive_tables(self._catalog, self._tables)
        if not (topics := self._of_kind(found)):
            raise JobError(failed[0] if failed else f"{self.name}: no {self._kind} of a topic is there; {self._other}")
        return Topics(topics, failed)

    def read(self, topic: str) -> Archived:
        table = self.table(topic)
        path = self.path(topic)
        scan = messages_of(table, path, own=self._own)
        files = [text for each in planned_files(scan, path) for text in (each.path, *each.deletes)]
        rows = read_scan(self._spark, scan, path)
        return Archived(rows, made_of(sorted(files), rows.schema))

    def size(self, topic: str) -> tuple[int, int]:
        scan = self.table(topic).scan(selected_fields=("__messageId",))
        files = planned_files(scan, self.path(topic))
        size = sum(each.bytes for each in files)
        if any(each.deletes for each in files):
            return read_scan(self._spark, scan, self.path(topic)).count(), size
        return sum(each.rows for each in files), size

    def path(self, topic: str) -> str:
        """Return the name of a topic's table in errors."""
        return ".".join((self._tables.catalog, *identifier_of(self._tables, topic)))

    def table(self, topic: str) -> Table:
        """Return the table of a topic as it is now. Raises :class:`JobError` if there is none, or another topic's."""
        path = self.path(topic)
        try:
            with refusals(path):
                table = self._catalog.load_table(identifier_of(self._tables, topic))
        except JobError as error:
            if isinstance(error.__cause__, NoSuchTableError):
                raise JobError(self._not_there(topic)) from error
            raise
        check_owner(table, topic, path, f"valid: the table that archive has made of {topic}")
        return table

    def rows(self, table: Table, topic: str, condition: BooleanExpression, snapshot: int | None) -> DataFrame:
        """Return the messages of a snapshot, without the files and row groups that a condition on columns excludes."""
        path = self.path(topic)
        return read_scan(self._spark, messages_of(table, path, condition, snapshot, own=self._own), path)

    def _not_there(self, topic: str) -> str:
        found, _ = archive_tables(self._catalog, self._tables)
        topics = self._of_kind(found)
        if not topics or topic in (name for name, _ in found):
            return f"{self.path(topic)}: there is no such table; {self._other}"
        return f"{self.name}: {topic} is not archived there; there are {', '.join(topics[:_NAMED])}"

    def _of_kind(self, found: list[tuple[str, tuple[str, ...]]]) -> list[str]:
        return sorted(topic for topic, identifier in found if identifier == identifier_of(self._tables, topic))

    @property
    def _own(self) -> tuple[str, ...]:
        return LastValues.own_columns if self._tables.last_values else TopicTable.own_columns

    @property
    def _kind(self) -> str:
        return "table of last values" if self._tables.last_values else "table of all messages"

    @property
    def _other(self) -> str:
        if self._tables.last_values:
            return "without --upsert the table of all messages is read"
        return "replay reads tables of last values with --upsert"


def messages_of(
    table: Table,
    path: str,
    condition: BooleanExpression | None = None,
    snapshot: int | None = None,
    *,
    own: tuple[str, ...] = TopicTable.own_columns,
) -> DataScan:
    """Return the scan of a snapshot's messages, the newest one's by default, without ``own`` columns of the archive.

    Raises :class:`SchemaError`, naming the table's ``path`` and the column, if the table or the snapshot has not the
    columns of a message, or has had other ones of their names, with the values of older messages.
    """
    with refusals(path):
        scan = table.scan(AlwaysTrue() if condition is None else condition, snapshot_id=snapshot)
        names = [each.name for each in scan.projection().fields]
    # The condition is on the columns that the table has now, whatever the snapshot had.
    now = {each.name: each.field_id for each in table.schema().fields}
    if missing := [each for each in _NEEDED if each not in now or each not in names]:
        raise SchemaError(f"{path}: it has no column {missing[0]}; valid: the columns that archive has made")
    for each in (field for schema in table.schemas().values() for field in schema.fields):
        if each.name in METADATA.names and now.get(each.name, each.field_id) != each.field_id:
            raise SchemaError(
                f"{path}: another engine has renamed or replaced column {each.name}, without whose values older"
                f" messages would be read: {REWRITE}"
            )
    return scan.select(*(each for each in names if each not in own))


@contextmanager
def open_tables(spark: SparkSession, tables: Tables) -> Iterator[TableArchive]:
    """Give the archive in the tables of a catalog. Raises :class:`JobError` if the catalog does not answer."""
    with closing(open_catalog(tables.catalog, tables.properties)) as catalog:
        yield TableArchive(spark, catalog, tables)
