"""Adds data files to a table, with the bounds of their columns as pyiceberg reads them from the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.table import Transaction
from pyiceberg.types import DateType, TimestampType, TimestamptzType

#: Followed by a dot and a column's name: the property that says which statistics of the column a table keeps.
_METRICS = "write.metadata.metrics.column"
_TIMES = (DateType, TimestampType, TimestamptzType)


def add_files(change: Transaction, files: Iterable[str], partitioned_by: str, summary: Mapping[str, str]) -> None:
    """Add files that no snapshot has, with this summary, to a table that a column's values partition.

    Bounds are Python's dates and times, which end with the year 9999. If one of the files has a later one, the table
    keeps no bounds of such columns from now on. Raises :class:`OverflowError` if it is in the column of the partitions.
    """
    given = list(files)

    def add() -> None:
        change.add_files(given, snapshot_properties=dict(summary), check_duplicate_files=False)

    try:
        add()
        return
    except OverflowError:
        columns = [each.name for each in change.table_metadata.schema().fields if isinstance(each.field_type, _TIMES)]
    change.set_properties({f"{_METRICS}.{name}": "counts" for name in columns if name != partitioned_by})
    try:
        add()
    except OverflowError as error:
        raise OverflowError(f"{partitioned_by} of a message is after the year 9999: no partition has it") from error
