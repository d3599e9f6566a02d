"""The tables of an archive, filled with rows without a broker: what they refuse, and what others may do to them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.jobs.archiving.last_values import LastValues
from heliograph_spark.jobs.archiving.target import Batch, Written
from heliograph_spark.jobs.archiving.topic_table import TIME, TopicTable
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.plan.errors import JobError, SchemaError
from heliograph_spark.plan.positions import Position
from heliograph_spark.run import day_files
from heliograph_spark.run.day_files import DayFiles
from heliograph_spark.run.hadoop_files import HadoopDirectory
from heliograph_spark.run.places import Place
from heliograph_spark.run.schemas import METADATA
from heliograph_spark.run.spark_versions import arrow_schema
from heliograph_spark.tables.adding import add_files
from heliograph_spark.tables.catalog import open_catalog
from heliograph_spark.tables.merging import merge_day, mergeable_days
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.functions import expr

from .lakes import lake

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
#: Longer than snapshots and files that are not used stay.
LATER_S = 40 * 86_400
TOPIC = "persistent://public/default/orders"
USUAL = METADATA.fields[:6]
TEXT = t.StructType([t.StructField("value", t.StringType()), *USUAL])


def message_id(ledger: int, entry: int) -> bytes:
    return bytes(wire.MessageIdData(ledgerId=ledger, entryId=entry, batch_index=-1).SerializeToString())


def rows(spark: SparkSession, *messages: tuple[str | None, bytes | None, int]) -> DataFrame:
    """Return messages, each a value, a key and the number of an entry."""
    found = [(value, key, TOPIC, message_id(1, entry), NOON, None, None) for value, key, entry in messages]
    return spark.createDataFrame(found, TEXT)


class Filled:
    """A table of the topic's, as a run of an archive has it."""

    def __init__(self, spark: SparkSession, catalog: Catalog, kind: type[TopicTable] = TopicTable) -> None:
        self._catalog = catalog
        self._name = ("archive", "orders_last" if kind is LastValues else "orders")
        self.target = kind(spark, catalog, self._name, f"lake.{'.'.join(self._name)}", TOPIC)

    def write(self, given: DataFrame, number: int, query: str = "q") -> Written:
        columns = self.target.keep_columns(given.schema)
        self.target.complete(query)
        return self.target.write(given.to(columns), Batch(query, number, {}, {TOPIC: Position(1, number)}))

    def table(self) -> Table:
        return self._catalog.load_table(self._name)

    def values(self) -> list[str]:
        return sorted(self.table().scan(selected_fields=("value",)).to_arrow()["value"].to_pylist())


def test_what_no_table_can_have_is_refused_by_its_name(spark: SparkSession, catalog: Catalog) -> None:
    for kind, name in ((TopicTable, "__place"), (LastValues, "__Place"), (LastValues, "__bucket")):
        named = t.StructType([t.StructField(name, t.StringType()), *USUAL])
        with pytest.raises(SchemaError, match=f"field '{name}' of {TOPIC} is called as a column of the archive's own"):
            Filled(spark, catalog, kind).target.keep_columns(named)
    interval = t.StructType([t.StructField("took", t.DayTimeIntervalType()), *USUAL])
    with pytest.raises(JobError, match=rf"^lake\.archive\.orders: the columns of {TOPIC}: Column 'took' has an unsup"):
        Filled(spark, catalog).target.keep_columns(interval)


def test_a_topic_without_messages_has_no_days(spark: SparkSession, catalog: Catalog) -> None:
    filled = Filled(spark, catalog)
    filled.target.keep_columns(rows(spark, ("a", b"k", 0)).schema)
    assert filled.target.unmarked_days() == []


def test_a_time_after_the_year_9999_does_not_end_an_archive(spark: SparkSession, catalog: Catalog) -> None:
    filled = Filled(spark, catalog)
    # As of a producer that gives microseconds for milliseconds.
    late = rows(spark, ("a", b"a", 0)).withColumn("__eventTime", expr("timestamp_micros(1700000000000000000)"))
    assert filled.write(late, 0).rows == 1
    assert filled.write(rows(spark, ("b", b"b", 1)), 1).rows == 1
    assert filled.values() == ["a", "b"]
    published = rows(spark, ("c", b"c", 2)).withColumn("__publishTime", expr("timestamp_micros(1700000000000000000)"))
    with pytest.raises(JobError, match=r"^lake\.archive\.orders: __publishTime of a message is after the year 9999"):
        filled.write(published, 2)


def test_messages_whose_publish_time_is_not_known_are_of_no_day(spark: SparkSession, catalog: Catalog) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"a", 0)).withColumn("__publishTime", expr("CAST(NULL AS timestamp)")), 0)
    filled.write(rows(spark, ("b", b"b", 1)), 1)
    assert filled.target.unmarked_days() == ["2024-03-01"]
    assert filled.target.mark_days(["2024-03-01"], {}, 0) == {"2024-03-01": 1}
    assert mergeable_days(filled.table(), 1) == {}


def test_a_value_too_long_for_the_bounds_of_a_part_of_a_file_is_found_by_it(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("archive.orders", arrow_schema(TEXT))
    # Each message is a row group of its own. Arrow writes no bounds of the first one's value.
    monkeypatch.setattr(day_files, "_MOST_BUFFERED_BYTES", 1)
    files = DayFiles(Place(str(tmp_path)), "batch", "__place", TEXT)
    for value in ("z" * 5000, "a"):
        message = dict.fromkeys(TEXT.names) | {"value": value, TIME: NOON}
        files.add(pa.RecordBatch.from_pylist([message], arrow_schema(TEXT)))
    (file,) = files.close()
    with table.transaction() as change:
        add_files(change, table.io, [f"{tmp_path}/{file.path}"], TIME, {})
    assert [len(table.scan(EqualTo("value", each)).to_arrow()) for each in ("z" * 5000, "a")] == [1, 1]


def test_a_table_that_lacks_batches_of_a_checkpoint_is_refused(spark: SparkSession, catalog: Catalog) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"k", 0)), 0)
    with pytest.raises(JobError, match=r"orders: it has 1 batches of the query whose checkpoint goes on with batch 2"):
        filled.write(rows(spark, ("c", b"k", 2)), 2)
    assert filled.values() == ["a"]


def test_no_table_is_made_where_one_that_was_renamed_has_its_files(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"k", 0)), 0)
    catalog.rename_table("archive.orders", "archive.orders_of_2024")
    with pytest.raises(JobError, match="archive/orders has the files of a table that was renamed or dropped"):
        Filled(spark, catalog).write(rows(spark, ("b", b"k", 1)), 0, "another")
    assert catalog.list_tables("archive") == [("archive", "orders_of_2024")]


def test_rows_of_which_the_driver_finds_no_file_are_not_taken_for_written(
    spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = Filled(spark, catalog)
    with monkeypatch.context() as elsewhere:
        # As executors write them that do not share the driver's disk.
        elsewhere.setattr(HadoopDirectory, "matching", lambda *_: [])
        with pytest.raises(JobError, match="rows were written there, and the driver finds no file of them"):
            filled.write(rows(spark, ("a", b"k", 0)), 0)
    assert filled.target.complete("q") is None
    assert filled.write(rows(spark, ("a", b"k", 0)), 0).rows == 1
    assert filled.write(rows(spark).limit(0), 1).rows == 0


def test_a_run_marks_no_days_after_another_one_has_added_messages(spark: SparkSession, catalog: Catalog) -> None:
    first, second = Filled(spark, catalog), Filled(spark, catalog)
    first.write(rows(spark, ("a", b"k", 0)), 0)
    (day,) = first.target.unmarked_days()
    second.write(rows(spark, ("b", b"k", 1)), 1)
    with pytest.raises(JobError, match=r"^lake\.archive\.orders: "):
        first.target.mark_days([day], {}, 0)
    assert second.target.unmarked_days() == [day]
    assert second.target.mark_days([day], {}, 0) == {day: 2}
    assert second.target.unmarked_days() == []


class _Deletes(ManifestWriterV2):  # type: ignore[misc]
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_as_other_engines(
    table: Table, condition: str, content: DataFileContent = DataFileContent.POSITION_DELETES
) -> None:
    """Delete the first row of the file that a condition selects by a file of deletes, as Trino does.

    With other ``content`` the file is only recorded as one of it.
    """
    (file,) = (task.file for task in table.scan(condition).plan_files())
    location = f"{table.location()}/data/deletes.parquet"
    deletes = pa.table({"file_path": [file.file_path], "pos": pa.array([0], pa.int64())})
    with table.io.new_output(location).create() as stream:
        pq.write_table(deletes, stream)

    class Appended(_FastAppendFiles):  # type: ignore[misc]
        def _manifests(self) -> list[ManifestFile]:
            deleted = DataFile.from_args(
                content=content,
                file_path=location,
                file_format=FileFormat.PARQUET,
                partition=file.partition,
                record_count=1,
                file_size_in_bytes=len(table.io.new_input(location)),
                spec_id=file.spec_id,
            )
            output = self.new_manifest_output()
            with _Deletes(table.spec(), table.schema(), output, self._snapshot_id, "deflate") as writer:
                status = ManifestEntryStatus.ADDED
                writer.add(ManifestEntry.from_args(status=status, snapshot_id=self._snapshot_id, data_file=deleted))
            return [writer.to_manifest_file(), *self._existing_manifests()]

    with table.transaction() as change:
        Appended(Operation.DELETE, change, table.io).commit()


def test_rows_that_another_engine_has_deleted_do_not_come_back(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    filled, last = Filled(spark, catalog), Filled(spark, catalog, LastValues)
    for number, value in enumerate(("a", "b")):
        filled.write(rows(spark, (value, b"k", number)), number)
    delete_as_other_engines(filled.table(), "value = 'a'")
    assert filled.values() == ["b"]
    done = maintain(spark, MaintainOptions(lake(tmp_path)))
    assert filled.values() == ["b"]
    assert (done.merged, done.error) == (0, None)
    last.write(rows(spark, ("a", b"k", 0)), 0)
    delete_as_other_engines(last.table(), "value = 'a'")
    held = spark.sparkContext._jsc.getPersistentRDDs().size()
    with pytest.raises(JobError, match=r"another engine has deleted rows of file:.*have that engine rewrite"):
        last.write(rows(spark, (None, b"other", 2), ("c", b"k", 3)), 1)
    assert last.values() == []
    # Its rows are not held any longer.
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == held


def test_files_that_a_renamed_column_keeps_from_being_read_by_names_are_not_merged(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    filled, last = Filled(spark, catalog), Filled(spark, catalog, LastValues)
    for each in (filled, last):
        for number, value in enumerate(("a", "b")):
            each.write(rows(spark, (value, f"k{number}".encode(), number)), number)
        with each.table().update_schema() as change:
            change.rename_column("value", "content")
    refusal = "another engine has renamed or replaced column 'content'"
    done = maintain(spark, MaintainOptions(lake(tmp_path), (TOPIC,)))
    assert done.error is not None
    assert refusal in done.error
    with pytest.raises(SchemaError, match=refusal):
        last.write(rows(spark, ("c", b"k0", 3)), 2)
    assert sorted(filled.table().scan().to_arrow()["content"].to_pylist()) == ["a", "b"]
    # The archive's next run has this column again.
    assert last.values() == ["a", "b"]


def test_a_secret_with_a_line_break_is_refused_without_it() -> None:
    with pytest.raises(JobError, match=r"^catalog lake: property 'token' has a line break; valid: one line$"):
        open_catalog("lake", {"type": "rest", "uri": "http://127.0.0.1:1", "token": "a\nb"})


def test_a_day_is_merged_while_others_get_messages_and_left_if_it_gets_some_itself(
    spark: SparkSession, catalog: Catalog
) -> None:
    filled = Filled(spark, catalog)
    for number in range(2):
        filled.write(rows(spark, (str(number), b"k", number)), number)
    table = filled.table()
    ((day, files),) = mergeable_days(table, 1 << 20).items()
    next_day = rows(spark, ("2", b"k", 2)).withColumn("__publishTime", expr("timestamp'2024-03-02 00:00:00'"))
    filled.write(next_day, 2)
    assert merge_day(spark, table, TIME, day, files, 1 << 20) == 1
    assert filled.values() == ["0", "1", "2"]
    filled.write(rows(spark, ("3", b"k", 3)), 3)
    table = filled.table()
    ((day, files),) = mergeable_days(table, 1 << 20).items()
    filled.write(rows(spark, ("4", b"k", 4)), 4)
    assert merge_day(spark, table, TIME, day, files, 1 << 20) is None
    assert filled.values() == ["0", "1", "2", "3", "4"]


@pytest.mark.long
def test_both_tables_of_a_topic_are_maintained_and_one_that_cannot_be_read_stops_none(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    both = Filled(spark, catalog), Filled(spark, catalog, LastValues)
    for each in both:
        for number in range(2):
            each.write(rows(spark, (str(number), b"k", number)), number)
    catalog.create_table("archive.broken", both[0].table().schema(), properties={"heliograph.topic": "t"})
    for file in (tmp_path / "archive" / "broken" / "metadata").iterdir():
        file.unlink()
    later = both[0].table().metadata.last_updated_ms / 1000 + LATER_S
    done = maintain(spark, MaintainOptions(lake(tmp_path)), lambda: later)
    assert (done.tables, done.merged) == (2, 2)
    assert done.error is not None
    assert done.error.startswith("archive.broken: ")
    assert [len(each.table().snapshots()) for each in both] == [1, 1]
    assert [each.values() for each in both] == [["0", "1"], ["1"]]
    assert maintain(spark, MaintainOptions(lake(tmp_path), (TOPIC,)), lambda: later).error is None


def test_no_file_of_a_table_goes_whose_location_ends_with_a_slash_or_has_another_table_below(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a catalog of REST may place it.
    whole = SqlCatalog._resolve_table_location
    monkeypatch.setattr(SqlCatalog, "_resolve_table_location", lambda *given: f"{whole(*given)}/")
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"k", 0)), 0)
    assert filled.table().location().endswith("/archive/orders/")
    below = tmp_path / "archive" / "orders" / "other" / "data" / "part.parquet"
    below.parent.mkdir(parents=True)
    below.write_bytes(b"")
    later = filled.table().metadata.last_updated_ms / 1000 + LATER_S
    assert maintain(spark, MaintainOptions(lake(tmp_path)), lambda: later).error is None
    assert filled.values() == ["a"]
    assert below.exists()


def test_a_field_with_the_name_of_a_directory_of_files_is_a_column_as_any_other(
    spark: SparkSession, catalog: Catalog
) -> None:
    filled = Filled(spark, catalog, LastValues)
    filled.write(rows(spark, ("a", b"k", 0)).withColumn("date", expr("'yesterday'")), 0)
    assert filled.table().scan().to_arrow()["date"].to_pylist() == ["yesterday"]
    filled.write(rows(spark, (None, b"k", 1)).withColumn("date", expr("'today'")), 1)
    assert filled.table().scan().to_arrow()["date"].to_pylist() == ["today"]


@pytest.mark.long
def test_last_values_are_those_of_the_topics_order_however_micro_batches_cut_it(
    spark: SparkSession, catalog: Catalog
) -> None:
    moments = Random(7)
    filled = Filled(spark, catalog, LastValues)
    last: dict[bytes, str] = {}
    entry = 0
    for number in range(4):
        messages = []
        for _ in range(moments.choice([1, 4, 40])):
            key = moments.choice([None, b"", b"\xff\x00", *(b"%d" % each for each in range(9))])
            value = moments.choice([None, "", f"{moments.random()}", f"{moments.random()}"])
            messages.append((value, key, entry))
            entry += 1
            if key is not None:
                last.pop(key, None)
                last |= {key: value} if value else {}
        moments.shuffle(messages)
        filled.write(rows(spark, *messages).repartition(3), number)
        found = filled.table().scan(selected_fields=("__key", "value")).to_arrow().to_pylist()
        assert sorted((row["__key"], row["value"]) for row in found) == sorted(last.items())
