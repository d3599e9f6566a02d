"""Reads Spark's files in the checkpoint of one streaming query on this source."""

from __future__ import annotations

import json

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.positions import Position, read_offsets

from .files import Directory


def query_id(checkpoint: Directory) -> str:
    """Return the id that the query keeps over restarts. Raises :class:`JobError` if there is none."""
    try:
        return str(json.loads(checkpoint.read_text("metadata"))["id"])
    except (ValueError, KeyError) as error:
        raise JobError(f"{checkpoint.path}/metadata: this is no checkpoint of Spark's") from error


def last_commit(checkpoint: Directory) -> int | None:
    """Return the number of the last micro-batch that is done; None before the first one."""
    return _last(checkpoint, "commits")


def is_unfinished(checkpoint: Directory) -> bool:
    """Whether the last micro-batch that was planned is not done."""
    return _last(checkpoint, "offsets") != last_commit(checkpoint)


def _last(checkpoint: Directory, log: str) -> int | None:
    return max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=None)


def offsets_of(checkpoint: Directory, batch: int) -> dict[str, Position]:
    """Return the end of a planned micro-batch in each partition; empty for the batch before the first one.

    Raises :class:`JobError` if the file is damaged.
    """
    if batch < 0:
        return {}
    lines = checkpoint.read_text(f"offsets/{batch}").splitlines()
    try:
        return read_offsets(json.loads(lines[-1]))
    except (ValueError, IndexError) as error:
        raise JobError(f"{checkpoint.path}/offsets/{batch}: no offsets of this source are in it: {error}") from error


def committed_offsets(checkpoint: Directory) -> dict[str, Position]:
    """Return the end in each partition of the batches that are done, which a loss of power leaves so."""
    last = last_commit(checkpoint)
    if last is None:
        return {}
    checkpoint.sync(f"offsets/{last}", f"commits/{last}", "offsets", "commits", "metadata", "")
    return offsets_of(checkpoint, last)


def sync_planned(checkpoint: Directory, batch: int) -> None:
    """Have the end of a planned micro-batch on the disk: with another one the batch could not be repeated."""
    checkpoint.sync(f"offsets/{batch}", "offsets", "metadata", "")
