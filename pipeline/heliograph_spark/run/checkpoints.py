"""The files in the checkpoint of one streaming query on this source: as Spark writes them, read and written.

A job that plans micro-batches itself writes them, so that the query goes on with Spark's engine and without it.
"""

from __future__ import annotations

import json
import time
import uuid

from heliograph_spark.plan.errors import JobError, OptionError
from heliograph_spark.plan.positions import Position, read_offsets

from .files import Directory

#: The version of the files that is read and written. Spark has another one, for streams with several sources.
_VERSION = "v1"
#: The number of the last micro-batches whose files stay, as in Spark (``spark.sql.streaming.minBatchesToRetain``).
_KEPT = 100


def query_id(checkpoint: Directory) -> str:
    """Return the id that the query keeps over restarts. Raises :class:`JobError` if there is none."""
    try:
        return str(json.loads(checkpoint.read_text("metadata"))["id"])
    except (ValueError, KeyError) as error:
        raise JobError(f"{checkpoint.path}/metadata: this is no checkpoint of Spark's") from error


def last_commit(checkpoint: Directory) -> int | None:
    """Return the number of the last micro-batch that is done; None before the first one."""
    return _last(checkpoint, "commits")


def last_planned(checkpoint: Directory) -> int | None:
    """Return the number of the last micro-batch that was planned, done or not; None before the first one."""
    return _last(checkpoint, "offsets")


def is_unfinished(checkpoint: Directory) -> bool:
    """Whether the last micro-batch that was planned is not done."""
    return last_planned(checkpoint) != last_commit(checkpoint)


def _last(checkpoint: Directory, log: str) -> int | None:
    return max((int(name) for name in checkpoint.names(log) if name.isdigit()), default=None)


def offsets_of(checkpoint: Directory, batch: int) -> dict[str, Position]:
    """Return the end of a planned micro-batch in each partition; empty for the batch before the first one.

    Raises :class:`JobError` if the file is damaged.
    """
    return {} if batch < 0 else read_offsets(kept_offsets(checkpoint, batch))


def kept_offsets(checkpoint: Directory, batch: int) -> dict[str, str]:
    """Return the end of a planned micro-batch as the reader of the stream gave it to Spark.

    Raises :class:`JobError` if the file is damaged.
    """
    lines = checkpoint.read_text(f"offsets/{batch}").splitlines()
    try:
        kept: dict[str, str] = json.loads(lines[-1])
        read_offsets(kept)
    except (ValueError, IndexError, OptionError) as error:
        raise JobError(f"{checkpoint.path}/offsets/{batch}: no offsets of this source are in it: {error}") from error
    return kept


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


def begin_query(checkpoint: Directory) -> str:
    """Return the id that the query keeps over restarts, which it gets where it has none."""
    if not checkpoint.exists("metadata"):
        checkpoint.make()
        _write_new(checkpoint, "metadata", json.dumps({"id": str(uuid.uuid4())}))
        checkpoint.sync("metadata", "")
    return query_id(checkpoint)


def write_planned(checkpoint: Directory, batch: int, ends: dict[str, str]) -> None:
    """Write the end of a micro-batch before anything of it is read; a loss of power leaves it so.

    Raises :class:`JobError` if another run has planned it meanwhile.
    """
    settings = {"batchWatermarkMs": 0, "conf": {}}
    if batch > 0:
        # Those of Spark that the query began with.
        version, kept, *_ = checkpoint.read_text(f"offsets/{batch - 1}").splitlines()
        if version != _VERSION:
            raise JobError(f"{checkpoint.path}/offsets/{batch - 1}: it is of version {version}, not {_VERSION}")
        settings = json.loads(kept)
    settings["batchTimestampMs"] = int(time.time() * 1000)
    checkpoint.make("offsets")
    _write_new(checkpoint, f"offsets/{batch}", "\n".join((_VERSION, json.dumps(settings), json.dumps(ends))))
    sync_planned(checkpoint, batch)


def write_commit(checkpoint: Directory, batch: int) -> None:
    """Write that a micro-batch is done, and delete the files of those long before it."""
    checkpoint.make("commits")
    _write_new(checkpoint, f"commits/{batch}", f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}')
    checkpoint.sync(f"commits/{batch}", "commits")
    for log in ("offsets", "commits"):
        for name in checkpoint.names(log):
            if name.isdigit() and int(name) <= batch - _KEPT:
                checkpoint.delete(f"{log}/{name}")


def _write_new(checkpoint: Directory, name: str, text: str) -> None:
    directory, _, last = name.rpartition("/")
    # Spark calls its own unfinished files so, and nobody reads them.
    aside = f"{directory}/.{last}.{uuid.uuid4()}.tmp".lstrip("/")
    if not checkpoint.write_new(name, text, aside):
        raise JobError(f"{checkpoint.path}/{name}: another run of the query has written it meanwhile")
