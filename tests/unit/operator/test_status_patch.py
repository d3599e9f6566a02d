"""A status follows from the last one, and only what changed of it is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from heliograph_operator.decide.resource_stats import ResourceStats
from heliograph_operator.decide.status_patch import merge_patch, policy_fields, status_after
from heliograph_operator.objects.conditions import ARCHIVED, Reason, Verdict, ready

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def after(
    before: Mapping[str, Any],
    verdicts: Sequence[Verdict],
    generation: int,
    name: str,
    stats: ResourceStats | None,
    archive: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the status of a Tenant, Namespace or Topic that follows ``before``."""
    fields = policy_fields(before, name, stats, archive)
    return status_after(before, fields, verdicts, generation, NOW, without=() if archive is not None else (ARCHIVED,))


def test_figures_that_are_no_more_are_taken_out_and_without_figures_the_last_stay() -> None:
    verdicts = [ready(Reason.RECONCILED, "", "True")]
    first = after({}, verdicts, 3, "persistent://a/b/c", ResourceStats(5, 10, 2000, 20, 40, 1, 1))
    assert first["observedGeneration"] == 3
    assert first["quotaUsed"] == "40%"
    second = after(first, verdicts, 3, "persistent://a/b/c", ResourceStats(0, 0, -1, 20, -1, 1, 1))
    assert "quotaUsed" not in second
    assert merge_patch(first, second) == {
        "backlog": {"messages": 0, "bytes": "0", "oldestAge": None, "oldestTime": None},
        "quotaUsed": None,
        "quotaUsedPercent": None,
    }
    third = after(first, [ready(Reason.BROKER_UNREACHABLE, "away")], 3, "", None)
    assert set(merge_patch(first, third)) == {"conditions"}


def test_what_is_the_same_is_no_patch() -> None:
    status = {"a": 1, "b": {"c": [1, 2]}}
    assert merge_patch(status, {"a": 1, "b": {"c": [1, 2]}}) == {}
    assert merge_patch(status, {"b": {"c": [1], "d": 2}}) == {"a": None, "b": {"c": [1], "d": 2}}


def test_an_archives_lag_is_a_figure_and_goes_with_the_archive() -> None:
    verdicts = [ready(Reason.RECONCILED, "", "True"), Verdict(ARCHIVED, "True", Reason.ARCHIVE_SUCCEEDED)]
    first = after({}, verdicts, 1, "t", ResourceStats(5, archive_lag=3), {"rows": 1})
    assert first["archive"] == {"rows": 1, "lag": 3}
    unknown = after(first, verdicts[:1], 1, "t", None, {"rows": 2})
    assert unknown["archive"] == {"rows": 2, "lag": 3}
    ended = after(first, verdicts[:1], 2, "t", ResourceStats(5, archive_lag=3))
    assert "archive" not in ended
    assert [each["type"] for each in ended["conditions"]] == ["Ready"]
