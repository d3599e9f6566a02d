"""The files of a commit to a table, beside its data."""

from __future__ import annotations

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from heliograph_spark.run.directories import open_directory
from heliograph_spark.run.files import Directory

from .locations import of_hadoop


def sync_metadata(spark: SparkSession, table: Table) -> None:
    """Have the metadata of the last commit on the disk, so that a loss of power leaves the table as it is.

    Raises what :func:`~.catalog.refusals` turns into :class:`JobError`, and :class:`JobError`.
    """
    snapshot = table.current_snapshot()
    if snapshot is not None:
        added = [each for each in snapshot.manifests(table.io) if each.added_snapshot_id == snapshot.snapshot_id]
        for file in (*(each.manifest_path for each in added), snapshot.manifest_list):
            directory, name = _place(spark, file)
            directory.sync(name)
    # A REST catalog writes this one, and need not keep it as a file that is seen from here.
    directory, name = _place(spark, table.metadata_location)
    if directory.exists(name):
        directory.sync(name)


def _place(spark: SparkSession, file: str) -> tuple[Directory, str]:
    directory, _, name = of_hadoop(file).rpartition("/")
    return open_directory(spark, directory), name
