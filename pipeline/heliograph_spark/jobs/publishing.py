"""Puts a report into its place, page and tables together, where other runs may want to put theirs.

A report is written below ``_staging`` under a name of the run's own, which begins with the moment it began. Its tables
are then renamed into their places, and the page is written last. The files of a table have names that no other run
gives, so a run sees if another one has meanwhile put its tables there: then there is no page. The run that has put its
report there deletes what those before it have left; one of them that is still at work finds its mark gone, and leaves
the report that is newer than its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from heliograph_spark.plan.errors import JobError
from heliograph_spark.run.connect import FAILURES
from heliograph_spark.run.files import STAGING, Directory

_MARK = "_began"


@contextmanager
def aside(directory: Directory, began_ms: int) -> Iterator[str]:
    """Yield the directory below ``directory`` in which a run writes its tables; it is deleted at the end.

    Raises :class:`JobError`, whatever else failed, if a run that began later has put its report in place meanwhile.
    """
    own = f"{STAGING}/{began_ms:013}-{uuid.uuid4().hex}"
    directory.write_text(f"{own}/{_MARK}", "")
    try:
        yield own
    except FAILURES as error:
        if not directory.exists(f"{own}/{_MARK}"):
            raise _overtaken(directory) from error
        raise
    finally:
        directory.delete(own)


def put_in_place(directory: Directory, own: str, tables: Sequence[str], name: str, page: str) -> None:
    """Replace the tables and the page ``name`` of ``directory`` by those that are aside.

    Raises :class:`JobError` if another run has done so at the same time; there may be no page then.
    """
    files = {table: directory.names(f"{own}/{table}") for table in tables}
    if not directory.exists(f"{own}/{_MARK}"):
        raise _overtaken(directory)
    beside = f"{directory.path}/{name}: another run has put its report there at the same time"
    directory.delete(name)
    try:
        for table in tables:
            directory.make(table.rpartition("/")[0])
            directory.delete(table)
            directory.rename(f"{own}/{table}", table)
        # One that was written since belongs to tables that are not there any more.
        directory.delete(name)
        if not _are(directory, files) or not directory.write_new(name, page, aside=f"{own}/{name}"):
            raise JobError(beside)
        if not _are(directory, files):
            raise JobError(beside)
    except JobError:
        directory.delete(name)
        raise
    began = own.rpartition("/")[2].partition("-")[0]
    for left in directory.names(STAGING):
        if left[:1].isdigit() and left.partition("-")[0] < began:
            directory.delete(f"{STAGING}/{left}")


def _are(directory: Directory, files: dict[str, list[str]]) -> bool:
    return all(directory.names(table) == names for table, names in files.items())


def _overtaken(directory: Directory) -> JobError:
    return JobError(f"{directory.path}: a run that began later has put its report there meanwhile")
