"""The files of a commit to a table, beside its data."""

from __future__ import annotations

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from heliograph_spark.run.files import Directory

from .locations import of_hadoop


def sync_metadata(spark: SparkSession, table: Table) -> None:
    """Have the metadata of the last commit on the disk, so that a loss of power leaves the table as it is.

    Raises what :func:`~.catalog.refusals` turns into :class:`JobError`, and :class:`JobError`.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None
    added = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
    for file in (*(each.manifest_path for each in added), snapshot.manifest_list):
        _place(spark, file).sync(_name(file))
    # A REST catalog writes this one, and need not keep it as a file that is seen from here.
    if (place := _place(spark, table.metadata_location)).exists(_name(table.metadata_location)):
        place.sync(_name(table.metadata_location))


def _place(spark: SparkSession, file: str) -> Directory:
    return Directory(spark, of_hadoop(file).rpartition("/")[0])


def _name(file: str) -> str:
    return file.rpartition("/")[2]
