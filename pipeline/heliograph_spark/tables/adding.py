"""Adds data files to a table, with the bounds of their columns as pyiceberg reads them from the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.types import DateType, TimestampType, TimestamptzType

#: Followed by a dot and a column's name: the property that says which statistics of the column a table keeps.
_METRICS = "write.metadata.metrics.column"
_TIMES = (DateType, TimestampType, TimestamptzType)


def add_files(
    change: Transaction, io: FileIO, files: Iterable[str], partitioned_by: str, summary: Mapping[str, str]
) -> None:
    """Add files that no snapshot has, with this summary, to a table that a column's values partition.

    Bounds are Python's dates and times, which end with the year 9999. If one of the files has a later one, the table
    keeps no bounds of such columns from now on. Raises :class:`OverflowError` if it is in the column of the partitions.
    Neither does it keep those of texts and bytes which Arrow has left out of a part of a file, as they are too long:
    pyiceberg would take those of the other parts for the file's.
    """
    given = list(files)
    schema = change.table_metadata.schema()
    if partly := sorted({name for file in given for name in _partly_bounded(io, file, schema)}):
        change.set_properties({f"{_METRICS}.{name}": "counts" for name in partly})

    def add() -> None:
        change.add_files(given, snapshot_properties=dict(summary), check_duplicate_files=False)

    try:
        add()
        return
    except OverflowError:
        columns = [each.name for each in schema.fields if isinstance(each.field_type, _TIMES)]
    change.set_properties({f"{_METRICS}.{name}": "counts" for name in columns if name != partitioned_by})
    try:
        add()
    except OverflowError as error:
        raise OverflowError(f"{partitioned_by} of a message is after the year 9999: no partition has it") from error


def _partly_bounded(io: FileIO, path: str, schema: Schema) -> Iterator[str]:
    """Yield the columns of a file of which some row groups have bounds, and others have values without bounds."""
    with io.new_input(path).open() as file:
        footer = pq.read_metadata(file)
    ids = parquet_path_to_id_mapping(schema)
    for at in range(footer.num_columns):
        parts = [footer.row_group(number).column(at) for number in range(footer.num_row_groups)]
        bounded = {
            each.statistics.has_min_max
            for each in parts
            if each.physical_type == "BYTE_ARRAY" and each.is_stats_set and each.statistics.num_values
        }
        if len(bounded) > 1 and (name := schema.find_column_name(ids[parts[0].path_in_schema])):
            yield name
