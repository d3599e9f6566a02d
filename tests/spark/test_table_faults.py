"""A table of an archive that is damaged or changed is named, loses nothing by that, and stops no other table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from heliograph_spark.jobs.archived_tables import messages_of, open_tables
from heliograph_spark.jobs.archiving.iceberg import table_name
from heliograph_spark.jobs.archiving.topic_table import TopicTable
from heliograph_spark.jobs.compact import CompactOptions, compact, read_table
from heliograph_spark.jobs.maintain import MaintainOptions, maintain
from heliograph_spark.jobs.usage import UsageOptions, usage
from heliograph_spark.plan.errors import JobError, SchemaError
from heliograph_spark.run.session import Broker
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import publish

from .lakes import lake
from .test_tables import LATER_S, TOPIC, Filled, rows


class Archived(Filled):
    """A table with the name that the jobs look for."""

    def __init__(
        self, spark: SparkSession, catalog: Catalog, name: str = "orders", namespace: str = "public/default"
    ) -> None:
        super().__init__(spark, catalog)
        topic = f"persistent://{namespace}/{name}"
        self._name = ("archive", table_name(topic))
        self.target = TopicTable(spark, catalog, self._name, f"lake.{'.'.join(self._name)}", topic)


def file_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


HEAD = "its head"
#: Parts of a file of Avro that may be left of it. After its head pyiceberg finds nothing wrong.
LEFT = [0.0, HEAD, 0.95]


def cut_off(location: str, left: float | str) -> None:
    """Leave this part of a file, as a disk does whose power was lost."""
    file = file_of(location)
    content = file.read_bytes()
    end_of_head = content.index(content[-16:]) + 16
    file.write_bytes(content[: end_of_head + 8 if isinstance(left, str) else int(len(content) * left)])


def manifest_of(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return str(snapshot.manifests(table.io)[0].manifest_path)


def list_of(table: Table) -> str:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return str(snapshot.manifest_list)


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("damaged", [manifest_of, list_of])
def test_a_manifest_that_ends_early_is_named_and_no_file_is_taken_for_unused(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, damaged: Callable[[Table], str], left: float | str
) -> None:
    archived, other = Archived(spark, catalog), Archived(spark, catalog, "other")
    for each in (archived, other):
        for number in range(2):
            each.write(rows(spark, (str(number), b"k", number)), number)
    name = damaged(archived.table())
    cut_off(name, left)
    files = {path for path in (tmp_path / "archive").rglob("*.parquet") if "orders" in str(path)}
    assert len(files) == 2

    later = archived.table().metadata.last_updated_ms / 1000 + LATER_S
    done = maintain(spark, MaintainOptions(lake(tmp_path)), lambda: later)
    assert done.error is not None
    assert name.rpartition("/")[2] in done.error
    assert all(path.exists() for path in files)
    assert len(other.table().snapshots()) == 1
    assert other.values() == ["0", "1"]

    made = compact(spark, CompactOptions(None, str(tmp_path / "last"), archive_tables=lake(tmp_path)))
    assert made.tables.keys() == {"persistent://public/default/other"}
    assert made.error is not None
    assert name.rpartition("/")[2] in made.error


@pytest.mark.parametrize("left", LEFT)
def test_messages_are_not_added_to_a_list_of_manifests_that_ends_early(
    spark: SparkSession, catalog: Catalog, left: float | str
) -> None:
    archived = Archived(spark, catalog)
    archived.write(rows(spark, ("0", b"k", 0)), 0)
    name = list_of(archived.table())
    cut_off(name, left)
    before = archived.table().metadata_location
    with pytest.raises(JobError, match=name.rpartition("/")[2]):
        archived.write(rows(spark, ("1", b"k", 1)), 1)
    assert archived.table().metadata_location == before


def test_a_table_that_cannot_be_read_is_named_and_left_out_by_compact_and_usage(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, tenant: str, catalog: Catalog, tmp_path: Path
) -> None:
    namespace = f"{tenant}/n"
    archived = Archived(spark, catalog, "whole", namespace)
    archived.write(rows(spark, ("0", b"k", 0)), 0)
    gone, unread = Archived(spark, catalog, "gone", namespace), Archived(spark, catalog, "unread", namespace)
    for each in (gone, unread):
        each.write(rows(spark, ("0", b"k", 0)), 0)
    for file in file_of(gone.table().metadata_location).parent.iterdir():
        file.unlink()
    cut_off(manifest_of(unread.table()), 0.5)

    to = str(tmp_path / "last")
    options = CompactOptions(None, to, archive_tables=lake(tmp_path))
    whole = f"persistent://{namespace}/whole"
    named = f"archive.{tenant.replace('-', '_')}_n_gone"
    done = compact(spark, options)
    assert (set(done.tables), done.rows) == ({whole}, 1)
    assert done.error is not None
    assert done.error.startswith(f"{named}: ")
    assert done.error.endswith("(and 1 more of 2 topics)")
    one = compact(spark, CompactOptions(None, to, (whole,), lake(tmp_path)))
    assert (one.unchanged, one.error) == (1, None)
    with pytest.raises(JobError, match=f"^{re.escape(named)}: "):
        compact(spark, CompactOptions(None, to, (f"persistent://{namespace}/gone",), lake(tmp_path)))

    publish(client, whole, [b"0"])
    reached = Broker(broker.service_url, broker.http_url)
    report = usage(spark, UsageOptions(reached, str(tmp_path / "report"), (tenant,), tables=lake(tmp_path)))
    assert report.error is not None
    assert report.error.startswith(f"{named}: ")
    counted = spark.read.parquet(str(tmp_path / "report" / "parquet" / "topics")).where(f"topic = '{whole}'").collect()
    assert [row.archived_messages for row in counted] == [1]


@pytest.mark.long
def test_a_table_of_last_values_is_made_again_if_only_the_columns_have_changed(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    archived = Archived(spark, catalog)
    archived.write(rows(spark, ("0", b"k", 0)), 0)
    options = CompactOptions(None, str(tmp_path / "last"), archive_tables=lake(tmp_path))
    compact(spark, options)
    with archived.table().update_schema() as change:
        change.add_column("note", StringType())
    assert compact(spark, options).unchanged == 0
    assert "note" in read_table(spark, str(tmp_path / "last"), TOPIC).columns
    assert compact(spark, options).unchanged == 1


@pytest.mark.parametrize("name", ["__eventTime", "__messageProperties", "__key"])
def test_a_column_of_messages_that_another_engine_has_renamed_or_replaced_is_named(
    spark: SparkSession, catalog: Catalog, tmp_path: Path, name: str
) -> None:
    archived = Archived(spark, catalog)
    archived.write(rows(spark, ("0", b"k", 0)), 0)
    with archived.table().update_schema() as change:
        change.rename_column(name, "other")
    snapshot = archived.table().current_snapshot()
    assert snapshot is not None
    condition = EqualTo(name, 0)  # type: ignore[call-arg, arg-type, unused-ignore]
    for of in (None, snapshot.snapshot_id):
        with pytest.raises(SchemaError, match=f"^t: it has no column {name}; valid: the columns that archive has made"):
            messages_of(archived.table(), "t", condition, of)
    # The archive adds a column of that name, which older messages have no values in.
    archived.write(rows(spark, ("1", b"k", 1)), 1)
    with (
        open_tables(spark, lake(tmp_path)) as archive,
        pytest.raises(SchemaError, match=f"another engine has renamed or replaced column {name}, "),
    ):
        archive.read(TOPIC)


@pytest.mark.long
def test_a_table_that_another_engine_has_partitioned_otherwise_is_named_and_stops_no_other(
    spark: SparkSession, catalog: Catalog, tmp_path: Path
) -> None:
    none, more, other = (Archived(spark, catalog, name) for name in ("none", "more", "other"))
    for each in (none, more, other):
        for number in range(2):
            each.write(rows(spark, (str(number), b"k", number)), number)
    with none.table().update_spec() as spec:
        spec.remove_field("__publishTime_day")
    with more.table().update_spec() as spec:
        spec.add_field("__key", BucketTransform(4), "of_key")
    for each, by in ((none, "nothing"), (more, r"day of __publishTime, bucket\[4\] of __key")):
        for work in (each.target.unmarked_days, each.target.is_empty, lambda each=each: each.target.complete("q")):
            with pytest.raises(JobError, match=f"another engine has changed its partitions, which are by {by}; valid"):
                work()
        # The messages that are there are read.
        assert each.values() == ["0", "1"]
    done = maintain(spark, MaintainOptions(lake(tmp_path)))
    assert (done.tables, done.merged, done.error) == (3, 2, None)
    assert [each.values() for each in (none, more, other)] == [["0", "1"]] * 3
