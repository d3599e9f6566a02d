"""The plots of a report of usage, as a person reads them: units, and what each line is."""

from __future__ import annotations

import pytest
from heliograph_spark.jobs.plan.forecast import Forecast
from heliograph_spark.jobs.plan.usage_statistics import Counted
from heliograph_spark.jobs.usage_report import Report, growth_of, plots

NAME = "persistent://public/default/orders"


def report_of(name: str, size: int) -> Report:
    """Return a report of ten messages of this size in one partition."""
    counted = Counted(10, size * 10, 0, 9_000, 1, (size,) * 10)
    forecast = Forecast("level", 0.06, 0.0, 2, (float(size),) * 2, (float(size),) * 10)
    return Report(0, "publish", (), (), (), (), (), {}, {name: forecast}, {name: counted})


@pytest.mark.parametrize(("size", "unit"), [(90, "B"), (90_000, "kB"), (9_000_000_000, "GB")])
def test_growth_is_in_a_unit_of_its_size_and_each_line_says_what_it_is(size: int, unit: str) -> None:
    (axes,) = growth_of(report_of(NAME, size), [NAME]).axes
    assert axes.yaxis.get_major_formatter()(size).endswith(f" {unit}")
    assert axes.get_ylabel() == "bytes in 1s"
    assert [each.get_text() for each in axes.get_legend().get_texts()] == [
        "published",
        "forecast of the last fifth (6.0% off in sum)",
        "forecast of what comes (level)",
    ]


def test_a_name_of_any_characters_is_drawn_without_a_warning() -> None:
    assert plots(report_of(f"{NAME}-\U0001d11e", 90))["growth"].startswith(b"\x89PNG")
