"""The runs of an archive: their outcome, read from its jobs and their pods, and its fields in the status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from heliograph_api.resources.archive_spec import ArchiveSpec

from heliograph_operator.objects.conditions import ARCHIVED, Reason, Verdict
from heliograph_operator.objects.kinds import Body

from .archive_cron_job import CONTAINER
from .job_runs import MAX_MESSAGE_LENGTH, Run, failure_of, last_end, result_of, run_of


def runs_of(jobs: Sequence[Body]) -> list[Run]:
    """Return the runs, oldest first, without the results that only their pods have."""
    return sorted((run_of(job) for job in jobs), key=lambda run: (run.began, run.name))


def with_result(run: Run, pods: Sequence[Body]) -> Run:
    """Return a run that ended with the result its last pod reported: the rows it wrote, or why it failed."""
    last = last_end(pods, CONTAINER)
    if last is None:
        return run
    rows = result_of(last).get("rows")
    message = failure_of(last) if run.succeeded is False else run.message
    counted = rows if isinstance(rows, int) and rows >= 0 else None
    return replace(run, rows=counted, message=message[:MAX_MESSAGE_LENGTH])


def last_ended(runs: Sequence[Run]) -> Run | None:
    """Return the newest run that ended; None if none has."""
    return next((run for run in reversed(runs) if run.succeeded is not None), None)


def archive_fields(before: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return the fields of ``status.archive``; what ``before`` has of deleted jobs stays."""
    fields: dict[str, Any] = dict(before)
    fields["running"] = bool(runs) and runs[-1].succeeded is None
    if runs:
        fields["lastRunTime"] = runs[-1].began
    if (succeeded := [run for run in runs if run.succeeded]) and succeeded[-1].ended:
        fields["lastSuccessTime"] = succeeded[-1].ended
    if (last := last_ended(runs)) is not None:
        for name, value in (("rows", last.rows), ("message", last.message or None)):
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
    return fields


def archive_verdict(spec: ArchiveSpec, runs: Sequence[Run]) -> Verdict:
    """Return the Archived condition."""
    last = last_ended(runs)
    if last is not None and not last.succeeded:
        return Verdict(ARCHIVED, "False", Reason.ARCHIVE_FAILED, f"{last.name}: {last.message}")
    if spec.suspend:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_SUSPENDED, "spec.archive.suspend: no run is started")
    if last is None:
        return Verdict(ARCHIVED, "Unknown", Reason.ARCHIVE_PENDING, f"no run has ended yet; schedule: {spec.schedule}")
    rows = "messages" if last.rows is None else f"{last.rows} messages"
    return Verdict(ARCHIVED, "True", Reason.ARCHIVE_SUCCEEDED, f"{last.name} archived {rows}")
