"""Expires snapshots of a table, and deletes the files that no snapshot has.

Such files are left by expired snapshots, by merged files, and by runs that were killed before their commit.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePosixPath

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from heliograph_spark.run.directories import open_directory

from .catalog import refusals
from .locations import of_hadoop, path_of
from .manifests import check_manifests

#: What tables and Spark write below a table's location, and where. Another file is not the table's: the location of
#: another table may be below this one's.
_PLACES = ("data/", "metadata/")
_OURS = (".parquet", ".avro", ".metadata.json", "/_SUCCESS")


def expire_snapshots(table: Table, before_ms: int) -> int:
    """Expire the snapshots older than a time (ms since 1970), but not the current one, and return their number."""
    with refusals(".".join(table.name())):
        known = len(table.snapshots())
        before = datetime.fromtimestamp(before_ms / 1000, UTC)
        table.maintenance.expire_snapshots().older_than(before).commit()
        return known - len(table.refresh().snapshots())


def delete_unused_files(spark: SparkSession, table: Table, before_ms: int) -> int:
    """Delete the files below a table's location that no snapshot has and that are older than a time (ms since 1970).

    A run writes its files before its commit, so a file must be older than any run takes. Directories that have nothing
    more in them go, too. Returns the number of files. Raises :class:`JobError`, before it deletes anything, if a
    manifest is damaged, as the files that it named could not be known.
    """
    directory = open_directory(spark, of_hadoop(table.location()))
    found = [name for name in directory.files_before(before_ms) if name.startswith(_PLACES) and name.endswith(_OURS)]
    # After the files are listed: each that was committed until then is among them.
    with refusals(".".join(table.name())):
        used = _used(table.refresh())
    root = path_of(table.location()).rstrip("/")
    unused = [name for name in found if f"{root}/{name}" not in used]
    for name in unused:
        directory.delete(name)
    # A micro-batch has directories of its own, and each run lists those that are there. The deepest ones come first.
    left = {str(above) for name in unused for above in PurePosixPath(name).parents if "/" in str(above)}
    for name in sorted(left, reverse=True):
        if not directory.names(name):
            directory.delete(name)
    return len(unused)


def _used(table: Table) -> set[str]:
    metadata = table.metadata
    check_manifests(table.io, metadata.snapshots, ".".join(table.name()))
    used = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    used |= {snapshot.manifest_list for snapshot in metadata.snapshots}
    used |= {each.statistics_path for each in (*metadata.statistics, *metadata.partition_statistics)}
    if manifests := set(table.inspect.all_manifests()["path"].to_pylist()):
        # pyiceberg's `all_files` fails where no snapshot has any.
        used |= manifests | set(table.inspect.all_files()["file_path"].to_pylist())
    return {path_of(location) for location in used if location}
