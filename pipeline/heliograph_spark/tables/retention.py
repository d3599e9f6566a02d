"""Removes old days from a table: only days that are marked as complete, and each whole, in one commit with its mark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from .catalog import refusals

#: The property of a table that names the days which were removed from it.
REMOVED_DAYS = "heliograph.removed-days"


def rows_of_day(column: str, day: date) -> BooleanExpression:
    """Return the condition for the rows whose time in a column is on a day in UTC."""
    until = day + timedelta(days=1)
    return And(
        GreaterThanOrEqual(column, f"{day}T00:00:00+00:00"),  # type: ignore[call-arg, arg-type, unused-ignore]
        LessThan(column, f"{until}T00:00:00+00:00"),  # type: ignore[call-arg, arg-type, unused-ignore]
    )


def removed_days(properties: Mapping[str, str]) -> list[str]:
    """Return the days that were removed from the table with these properties, sorted."""
    return properties.get(REMOVED_DAYS, "").split()


def remove_day(table: Table, column: str, day: str, mark: str) -> bool:
    """Remove the rows of a day (``YYYY-MM-DD``) of a column, with the property that is its ``mark``.

    Returns False, and changes nothing, if it has no mark, as after a late message. Raises :class:`JobError` if another
    commit was first; the table is as that left it.
    """
    with refusals(".".join(table.name())):
        if mark not in table.refresh().properties:
            return False
        days = sorted({*removed_days(table.properties), day})
        with table.transaction() as change:
            change.delete(rows_of_day(column, date.fromisoformat(day)))
            change.set_properties({REMOVED_DAYS: " ".join(days)})
            change.remove_properties(mark)
    return True
