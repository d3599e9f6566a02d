"""The planner of an archive's micro-batches in a test: Spark's engine of streams, or the job itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from heliograph_spark.jobs.archiving import topic_run
from heliograph_spark.jobs.archiving.micro_batches import QueryKind
from heliograph_spark.jobs.archiving.planned_query import PlannedQuery
from heliograph_spark.jobs.archiving.streaming_query import StreamingQuery

PLANNERS: Mapping[str, QueryKind] = {"streaming": StreamingQuery, "planned": PlannedQuery}


def plan_by(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the runs that begin from now on be planned so, whatever the session is."""
    monkeypatch.setattr(topic_run, "query_kind", lambda _spark: PLANNERS[planner])


@pytest.fixture(params=PLANNERS)
def planner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Asked for by tests of what an archive promises with either."""
    name = str(request.param)
    plan_by(name, monkeypatch)
    return name
