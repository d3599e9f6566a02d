"""Whether a table is partitioned as it was made."""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Table
from pyiceberg.transforms import Transform, VoidTransform

from heliograph_spark.plan.errors import JobError

#: The column and the transform of the partitions, and their name.
Partition = tuple[str, Transform[Any, Any], str]


def check_partitions(table: Table, wanted: Partition, path: str) -> None:
    """Raise :class:`JobError`, naming the table's ``path``, if another engine has changed the partitions."""
    column, transform, name = wanted
    # Tables of an older format have what was removed as a field of no values.
    fields = [each for each in table.spec().fields if not isinstance(each.transform, VoidTransform)]
    found = [(table.schema().find_column_name(each.source_id), str(each.transform), each.name) for each in fields]
    if found != [(column, str(transform), name)]:
        others = ", ".join(f"{way} of {source}" for source, way, _ in found) or "nothing"
        raise JobError(
            f"{path}: another engine has changed its partitions, which are by {others}; valid: {transform} of {column},"
            f" with the name {name}"
        )
