"""Conditions keep the time at which their status became what it is."""

from __future__ import annotations

from datetime import UTC, datetime

from heliograph_operator.objects.conditions import Reason, Verdict, condition, ready, with_verdicts

THEN = datetime(2026, 1, 1, 12, 0, 0, 999, tzinfo=UTC)
LATER = datetime(2026, 1, 1, 12, 5, tzinfo=UTC)


def test_a_new_reason_alone_is_no_transition_and_a_new_status_is_one() -> None:
    first = with_verdicts([], [ready(Reason.PARENT_MISSING, "no parent")], 1, THEN)
    assert first == [
        {
            "type": "Ready",
            "status": "False",
            "reason": "ParentMissing",
            "message": "no parent",
            "lastTransitionTime": "2026-01-01T12:00:00Z",
            "observedGeneration": 1,
        }
    ]
    second = with_verdicts(first, [ready(Reason.BROKER_UNREACHABLE, "away")], 2, LATER)
    assert (second[0]["reason"], second[0]["observedGeneration"]) == ("BrokerUnreachable", 2)
    assert second[0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    third = with_verdicts(second, [ready(Reason.RECONCILED, "", "True")], 2, LATER)
    assert third[0]["lastTransitionTime"] == "2026-01-01T12:05:00Z"


def test_conditions_of_which_nothing_is_said_stay() -> None:
    other = {"type": "Other", "status": "True", "reason": "X", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    found = with_verdicts([other], [Verdict("PoliciesApplied", "True", Reason.RECONCILED)], 1, THEN)
    assert [each["type"] for each in found] == ["PoliciesApplied", "Other"]
    assert found[1] == other
    assert condition({"conditions": found}, "Other") == other
    assert condition({}, "Other") == {}
