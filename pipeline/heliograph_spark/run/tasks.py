"""The streaming query and the micro-batch that a task is part of, as Spark tells it."""

from __future__ import annotations

from pyspark import TaskContext

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def this_task() -> TaskContext:
    """Return the task that this runs in."""
    task = TaskContext.get()
    assert task is not None
    return task


def query_of(own: str) -> str:
    """Return the id of the streaming query that this task is part of, or ``own`` if Spark names none."""
    task = TaskContext.get()
    return (task.getLocalProperty(_QUERY_ID) if task is not None else None) or own


def micro_batch() -> tuple[str, int] | None:
    """Return the id of this task's streaming query and the number of its micro-batch; None if Spark names none."""
    task = this_task()
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    return None if query is None or batch is None else (query, int(batch))
