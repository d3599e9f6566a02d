"""A run of ``archive`` that plans its micro-batches itself and kills itself at a step of the first one that is new.

Arguments: the master, service URL, admin URL, topic, directory, ``files`` or ``tables``, and the step, one of
:data:`STEPS`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heliograph_spark.jobs.archive import ArchiveOptions, archive
from heliograph_spark.jobs.archiving import parquet, planned_query, topic_table
from heliograph_spark.run.session import Broker, SessionOptions, build_session

from tests.spark.lakes import lake
from tests.spark.planners import plan_by

#: The last step of a run that is killed, in their order. Files of tables have their places when they
#: are written.
STEPS = {
    "files": ("planned", "staged", "placed", "recorded", "committed"),
    "tables": ("planned", "staged", "recorded", "committed"),
}


def archive_options(
    service_url: str, admin_url: str, topic: str, directory: Path, target: str, **more: Any
) -> ArchiveOptions:
    """Return the options of the program, with which other runs go on."""
    where = {"tables": lake(directory)} if target == "tables" else {"path": f"{directory}/files"}
    given: dict[str, Any] = {"topics": (topic,), "checkpoint": f"{directory}/state", "file_bytes": 400, **where, **more}
    return ArchiveOptions(Broker(service_url, admin_url, {"maxBytesPerTrigger": "800"}), **given)


class Killing:
    """Calls functions as they are, and kills this process at a step after it has planned a micro-batch."""

    def __init__(self) -> None:
        #: The micro-batch that this process has planned, if any.
        self.planned: int | None = None

    def at(self, step: str, target: str) -> None:
        """Have it killed there."""
        self._wrap(planned_query, "write_planned", after=self._has_planned)
        if step == "planned":
            self._wrap(planned_query, "write_planned", after=self._kill)
        elif step == "staged":
            self._wrap(topic_table if target == "tables" else parquet, "written_files", after=self._kill)
        elif step == "placed":
            self._wrap(parquet, "mark_complete", before=self._kill_before_record)
        elif step == "recorded":
            self._wrap(planned_query, "write_commit", before=self._kill)
        elif step == "committed":
            self._wrap(planned_query, "write_commit", after=self._kill)

    @staticmethod
    def _wrap(
        module: Any,
        name: str,
        before: Callable[..., None] = lambda *_: None,
        after: Callable[..., None] = lambda *_: None,
    ) -> None:
        whole: Callable[..., Any] = getattr(module, name)

        def call(*given: Any) -> Any:
            before(*given)
            done = whole(*given)
            after(*given)
            return done

        setattr(module, name, call)

    def _has_planned(self, _checkpoint: Any, batch: int, _ends: Any) -> None:
        self.planned = batch

    def _kill_before_record(self, _files: Any, _query: str, batches: int, _ends: Any) -> None:
        # A target that begins also records that no part of the batch is there.
        if self.planned is not None and batches > self.planned:
            self._kill()

    def _kill(self, *_: Any) -> None:
        if self.planned is not None:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    master, service_url, admin_url, topic, directory, target, step = sys.argv[1:]
    spark = build_session("archive", SessionOptions(master=master))
    plan_by("planned", pytest.MonkeyPatch())
    Killing().at(step, target)
    print(archive(spark, archive_options(service_url, admin_url, topic, Path(directory), target)))


if __name__ == "__main__":
    main()
