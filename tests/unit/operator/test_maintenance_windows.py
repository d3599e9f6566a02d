"""The times in which brokers may be replaced: days, midnight, time zones and changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from heliograph_api.resources.rollout_spec import DAYS, MaintenanceWindow
from heliograph_operator.decide.maintenance_windows import WindowError, is_open, next_opening
from hypothesis import given
from hypothesis import strategies as st


def window(start: str, duration: str, *days: str, zone: str = "UTC") -> MaintenanceWindow:
    given: dict[str, Any] = {"start": start, "duration": duration, "days": list(days), "timeZone": zone}
    return MaintenanceWindow.model_validate(given)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_without_windows_it_is_always_open() -> None:
    assert is_open([], at("2026-03-02T12:00"))


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-03-02T01:59:59", False),
        ("2026-03-02T02:00", True),
        ("2026-03-02T03:59:59", True),
        ("2026-03-02T04:00", False),
    ],
)
def test_a_window_is_open_from_its_start_to_its_end(now: str, expected: bool) -> None:
    assert is_open([window("02:00", "2h")], at(now)) is expected


def test_a_window_over_midnight_belongs_to_the_day_it_opens() -> None:
    # 6 March 2026 is a Friday.
    weekend = [window("23:00", "3h", "Fri")]
    assert is_open(weekend, at("2026-03-07T01:59"))
    assert not is_open(weekend, at("2026-03-06T01:00"))
    assert next_opening(weekend, at("2026-03-06T23:00")) == at("2026-03-13T23:00")


def test_the_first_of_several_windows_is_the_next() -> None:
    several = [window("02:00", "1h", "Sun"), window("04:00", "1h", "Tue", zone="Asia/Tokyo")]
    # Tuesday at 04:00 in Tokyo is Monday at 19:00.
    assert next_opening(several, at("2026-03-02T12:00")) == at("2026-03-02T19:00")


def test_a_window_follows_the_clocks_of_its_zone() -> None:
    berlin = [window("02:30", "30m", zone="Europe/Berlin")]
    assert next_opening(berlin, at("2026-03-27T12:00")) == at("2026-03-28T01:30")
    # On 29 March, 02:30 is skipped; on 25 October it comes twice.
    assert next_opening(berlin, at("2026-03-28T12:00")) == at("2026-03-29T01:30")
    assert next_opening(berlin, at("2026-10-24T12:00")) == at("2026-10-25T00:30")
    assert next_opening(berlin, at("2026-10-25T01:00")) == at("2026-10-26T01:30")


def test_a_window_of_a_week_never_closes() -> None:
    always = [window("12:00", "7d")]
    assert all(is_open(always, at("2026-03-02T00:00") + timedelta(hours=hours)) for hours in range(200))


def test_a_zone_that_nobody_knows_is_named_with_its_field() -> None:
    unknown = [window("02:00", "1h"), window("02:00", "1h", zone="Europe/Atlantis")]
    with pytest.raises(WindowError, match=r"^spec\.maintenanceWindows\[1\]\.timeZone: 'Europe/Atlantis' is not"):
        next_opening(unknown, at("2026-03-02T00:00"))
    with pytest.raises(WindowError):
        is_open(unknown, at("2026-03-02T12:00"))


_WINDOWS = st.lists(
    st.builds(
        lambda hour, minute, minutes, days, zone: window(f"{hour:02}:{minute:02}", f"{minutes}m", *days, zone=zone),
        st.integers(0, 23),
        st.integers(0, 59),
        st.integers(1, 7 * 1440),
        st.lists(st.sampled_from(DAYS), unique=True),
        st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"]),
    ),
    min_size=1,
    max_size=3,
)


@given(windows=_WINDOWS, now=st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)))
def test_it_is_open_at_its_next_opening_and_closed_between(windows: list[MaintenanceWindow], now: datetime) -> None:
    moment = now.replace(tzinfo=UTC)
    opens = next_opening(windows, moment)
    assert moment < opens <= moment + timedelta(days=8)
    assert is_open(windows, opens)
    if not is_open(windows, moment):
        halfway = moment + (opens - moment) / 2
        assert not is_open(windows, halfway)
        assert next_opening(windows, halfway) == opens
