"""The rows of tables as jobs read them, filled without a broker: as they were written, and of no file too many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.archived_tables import messages_of, open_tables
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.plan.errors import JobError, SchemaError
from heliograph_spark.run.spark_versions import arrow_schema
from heliograph_spark.tables import reading
from heliograph_spark.tables.columns import storable
from heliograph_spark.tables.reading import DataFile, in_tasks, planned_files, read_scan
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.functions import expr

from tests.spark.lakes import lake
from tests.spark.test_tables import TOPIC, USUAL, Filled, delete_as_other_engines, rows

NESTED = t.StructType(
    [
        t.StructField("small", t.ShortType()),
        t.StructField(
            "record", t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", t.StringType())])
        ),
        t.StructField("list", t.ArrayType(t.StructType([t.StructField("x", t.FloatType())]))),
        t.StructField("map", t.MapType(t.StringType(), t.StructType([t.StructField("x", t.IntegerType())]))),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("price", t.DecimalType(20, 2)),
    ]
)


def values(spark: SparkSession, table: Table, condition: BooleanExpression | None = None) -> list[Any]:
    return sorted(row.value for row in read_scan(spark, messages_of(table, "t", condition), "t").collect())


def nested(catalog: Catalog, path: Path, *given: dict[str, Any]) -> Table:
    """Return a table of rows that are in one file."""
    schema = arrow_schema(storable(NESTED))
    table = catalog.create_table("archive.nested", schema)
    pq.write_table(pa.Table.from_pylist(list(given), schema), path / "nested.parquet")
    table.add_files([(path / "nested.parquet").as_uri()])
    return table


FULL = {
    "small": 7,
    "record": {"x": 1, "y": "one"},
    "list": [{"x": 0.5}, None],
    "map": [("k", {"x": 2})],
    "local": None,
    "price": None,
}
EMPTY: dict[str, Any] = {"small": None, "record": {"x": None, "y": None}, "list": [], "map": [], "local": None}
NULL: dict[str, Any] = dict.fromkeys(NESTED.names)


def test_rows_are_read_as_they_were_written_with_nulls_and_empty_ones_apart(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    table = nested(catalog, tmp_path, FULL, EMPTY, NULL)
    found = read_scan(spark, table.scan(), "t")
    assert found.schema == storable(NESTED)
    full, empty, null = (row.asDict(recursive=True) for row in found.collect())
    assert full == FULL | {"map": {"k": {"x": 2}}}
    assert (empty["list"], empty["map"], empty["record"]) == ([], {}, {"x": None, "y": None})
    assert null == NULL


def test_columns_go_by_their_ids_whatever_they_are_called_and_however_wide_they_are(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    table = nested(catalog, tmp_path, FULL, NULL)
    with table.update_schema() as change:
        change.rename_column("small", "little")
        change.update_column("small", field_type=_iceberg("long"))
    with table.update_schema() as change:
        change.rename_column("record.x", "z")
        change.delete_column("record.y")
        change.rename_column("list.element.x", "z")
        change.update_column("list.element.x", field_type=_iceberg("double"))
        change.rename_column("map.value.x", "z")
        change.add_column("note", _iceberg("string"))
    with table.update_schema() as change:
        change.add_column(("record", "w"), _iceberg("long"))
        change.move_first("note")
    first, second = (row.asDict(recursive=True) for row in read_scan(spark, table.scan(), "t").collect())
    assert first == {
        "note": None,
        "little": 7,
        "record": {"z": 1, "w": None},
        "list": [{"z": 0.5}, None],
        "map": {"k": {"z": 2}},
        "local": None,
        "price": None,
    }
    assert second == dict.fromkeys(first)


def _iceberg(name: str) -> Any:
    from pyiceberg.types import DoubleType, LongType, StringType

    return {"long": LongType(), "double": DoubleType(), "string": StringType()}[name]


def test_files_and_row_groups_outside_a_range_of_times_are_not_read(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    filled = Filled(spark, catalog)
    for number in range(3):
        published = f"timestamp'2024-03-0{number + 1} 12:00:00'"
        event = f"timestamp'2024-02-0{number + 1} 12:00:00'"
        filled.write(
            rows(spark, (str(number), b"k", number))
            .withColumn("__publishTime", expr(published))
            .withColumn("__eventTime", expr(event)),
            number,
        )
    table = filled.table()
    noon = 1_709_294_400_000_000
    day = 86_400_000_000
    for condition, wanted in (
        (AlwaysTrue(), ["0", "1", "2"]),
        (GreaterThanOrEqual("__publishTime", noon + day), ["1", "2"]),
        (LessThan("__publishTime", noon + day), ["0"]),
        (LessThan("__eventTime", noon - 28 * day), ["0"]),
    ):
        files = planned_files(messages_of(table, "t", condition), "t")
        assert len(files) == len(wanted)
        assert values(spark, table, condition) == wanted
    # Within one file, its statistics decide: the other row groups are damaged, and are not read.
    schema = arrow_schema(t.StructType(USUAL))
    one = catalog.create_table("archive.one", schema)
    path = tmp_path / "groups.parquet"
    times = [table.scan(EqualTo("value", str(number))).to_arrow()["__eventTime"][0] for number in range(3)]
    messages = [dict.fromkeys(schema.names) | {"__eventTime": time.as_py()} for time in times]
    pq.write_table(pa.Table.from_pylist(messages, schema), path, row_group_size=1)
    one.add_files([path.as_uri()])
    content = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    end = pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
    content[start:end] = bytes(end - start)
    path.write_bytes(content)
    found = read_scan(spark, one.scan(GreaterThanOrEqual("__eventTime", noon - 28 * day)), "t")
    assert found.count() == 2
    with pytest.raises(Exception, match=path.name):
        read_scan(spark, one.scan(), "t").collect()


def test_rows_that_another_engine_has_deleted_are_not_read(
    spark: SparkSession, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, *((str(number), b"k", number) for number in range(5))).coalesce(1), 0)
    filled.write(rows(spark, ("5", b"k", 5)), 1)
    table = filled.table()
    gone = table.scan(EqualTo("value", "5")).plan_files()
    assert len(list(gone)) == 1
    delete_as_other_engines(table, "value = '0'")
    left = filled.values()
    assert left == ["1", "2", "3", "4", "5"]
    monkeypatch.setattr(reading, "_BATCH_ROWS", 2)
    assert values(spark, filled.table()) == left


def test_deletes_by_values_are_refused_by_name(spark: SparkSession, catalog: Catalog) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"k", 0)), 0)
    delete_as_other_engines(filled.table(), "value = 'a'", DataFileContent.EQUALITY_DELETES)
    with pytest.raises(JobError, match=r"^t: another engine has deleted rows by their values \(equality deletes\)"):
        read_scan(spark, messages_of(filled.table(), "t"), "t")


def test_a_damaged_or_missing_file_is_named(spark: SparkSession, catalog: Catalog, tmp_path: Path) -> None:
    filled = Filled(spark, catalog)
    filled.write(rows(spark, ("a", b"k", 0)), 0)
    (file,) = (tmp_path / "archive").rglob("*.parquet")
    found = read_scan(spark, messages_of(filled.table(), "t"), "t")
    file.write_bytes(b"this is no Parquet")
    with pytest.raises(Exception, match=file.name):
        found.collect()
    file.unlink()
    with pytest.raises(Exception, match=file.name):
        found.collect()


def test_a_snapshot_is_read_as_it_was_whatever_is_merged_and_added_later(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    filled = Filled(spark, catalog)
    for number in range(3):
        filled.write(rows(spark, (str(number), b"k", number)), number)
    snapshot = filled.table().current_snapshot()
    assert snapshot is not None
    assert maintain(spark, MaintainOptions(lake(tmp_path))).merged == 3
    wider = rows(spark, ("3", b"k", 3)).withColumn("more", expr("1"))
    filled.write(wider, 3)
    table = filled.table()
    assert values(spark, table) == ["0", "1", "2", "3"]
    before = read_scan(spark, messages_of(table, "t", snapshot=snapshot.snapshot_id), "t")
    assert sorted(row.value for row in before.collect()) == ["0", "1", "2"]
    assert "more" not in before.columns


def test_a_table_is_read_only_if_it_is_the_topics_archive(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    tables = lake(tmp_path)
    with open_tables(spark, tables) as archive:
        with pytest.raises(JobError, match=r"^lake\.archive: no table of an archive is there$"):
            archive.table(TOPIC)
        catalog.create_table("archive.public_default_orders", arrow_schema(t.StructType(USUAL)))
        with pytest.raises(
            JobError, match=r"this table is no archive of a topic, as it has no property heliograph\.topic"
        ):
            archive.table(TOPIC)
        catalog.drop_table("archive.public_default_orders")
        owner = {"heliograph.topic": "persistent://public/default/Orders"}
        other = catalog.create_table(
            "archive.public_default_orders", arrow_schema(t.StructType(USUAL)), properties=owner
        )
        with pytest.raises(JobError, match="this table is of the topic persistent://public/default/Orders; valid: "):
            archive.table(TOPIC)
        assert archive.topics() == (["persistent://public/default/Orders"], [])
        with pytest.raises(
            JobError, match=r"/none is not archived there; there are persistent://public/default/Orders"
        ):
            archive.table("persistent://public/default/none")
        with other.update_schema() as change:
            change.rename_column("__messageId", "id")
        with pytest.raises(SchemaError, match=r"^t: it has no column __messageId; valid: the columns that archive has"):
            messages_of(other, "t")
    catalog.drop_table("archive.public_default_orders")
    fields = t.StructType([*USUAL, t.StructField("__bucket", t.StringType())])
    named = catalog.create_table("archive.public_default_orders", arrow_schema(fields), properties=owner)
    # Only a table of last values has a column of this name that is the archive's own.
    assert "__bucket" in messages_of(named, "t").selected_fields
    last = replace(tables, last_values=True)
    refusal = "no table of last values of a topic is there; without --upsert the table of all"
    with open_tables(spark, last) as archive, pytest.raises(JobError, match=refusal):
        archive.topics()


def test_files_are_shared_out_to_tasks_by_their_bytes() -> None:
    def file(size: int) -> DataFile:
        return DataFile(f"f{size}", size, 1)

    files = [file(size << 20) for size in (10, 60, 50, 20)]
    found = [sorted(each.bytes >> 20 for each in group) for group in in_tasks(files, 2)]
    assert sorted(found) == [[10, 60], [20, 50]]
    assert [len(group) for group in in_tasks(files, 8)] == [1, 1, 1, 1]
    many = in_tasks([file(1 << 10) for _ in range(10_000)], 2)
    assert {len(group) for group in many} <= {31, 32}
