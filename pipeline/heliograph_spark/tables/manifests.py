"""Whether the manifests of snapshots are there as they were written.

pyiceberg takes a manifest, or a list of manifests, that ends after its head or between two blocks for one with fewer
files. A reader of the table would miss the others, and they would be deleted as files that no snapshot has.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from heliograph_spark.plan.errors import JobError

from .catalog import refusals


def check_manifests(io: FileIO, snapshots: Iterable[Snapshot], name: str) -> None:
    """Raise :class:`JobError`, naming the table ``name`` and the file, unless each has all that was written of it."""
    checked: set[str] = set()
    for snapshot in snapshots:
        check_list(io, snapshot, name)
        with refusals(f"{name}: {snapshot.manifest_list}"):
            manifests = snapshot.manifests(io)
        for manifest in manifests:
            path = manifest.manifest_path
            if path in checked:
                continue
            checked.add(path)
            with refusals(f"{name}: {path}"):
                size = len(io.new_input(path))
            if size != manifest.manifest_length:
                raise JobError(
                    f"{name}: {path} is damaged: {manifest.manifest_length} bytes were written, it has {size}"
                )


def check_list(io: FileIO, snapshot: Snapshot, name: str) -> None:
    """Raise :class:`JobError` unless the list of a snapshot's manifests ends as each block of Avro does.

    Nothing says how long it was. The next snapshot has what is in it and what is added.
    """
    path = snapshot.manifest_list
    with refusals(f"{name}: {path}"):
        with io.new_input(path).open() as file:
            content = file.read()
        with AvroFile(io.new_input(path)) as read:
            whole = content.endswith(read.header.sync)
    if not whole:
        raise JobError(f"{name}: {path} is damaged: it ends within a block")
