"""Forecasts the growth of a topic, when it reaches a limit, and how wrong such a forecast was on known data.

The series is what came in each interval, 0 where nothing came. Three models are compared, each no more than its name
says: ``level`` (the robust mean rate), ``trend`` (a Theil-Sen line) and ``seasonal`` (the level, shared out over a day
or a week as the past was). The one that, fitted to three fifths, adds up best on the fourth is taken, so its error,
measured on the last fifth that it has not seen, is not flattered. Then it is fitted to the whole series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]
#: Predicts as many intervals as it is asked for, from what went before.
Model = Callable[[Series, int], Series]

#: With fewer intervals there is nothing to hold back.
SHORTEST = 10
#: Further than so many times the known past no forecast looks.
HORIZON = 20
_DAY_S = 86_400
_HELD_BACK = 5
#: An interval counts as no more than so many times what nine of ten intervals stay below.
_OUTLIER = 3.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The model taken and its relative error: what it says for the held-back part together, against what that was.

    ``error`` is None if nothing came in the held-back part, of which no share can be wrong. ``bias`` has the sign:
    above zero it said too much. ``predicted`` is the held-back part as forecast, ``held_back`` how long that is.
    """

    model: str
    error: float | None
    bias: float | None
    held_back: int
    predicted: tuple[float, ...]
    future: tuple[float, ...]

    def intervals_until(self, amount: float, drained: float = 0.0) -> float | None:
        """Return the intervals, in fractions, until ``amount`` more has come in than was drained (per interval).

        None if it does not within the time of the forecast.
        """
        if amount <= 0:
            return 0.0
        level = 0.0
        for number, came in enumerate(self.future):
            step = came - drained
            if step > 0 and level + step >= amount:
                return number + (amount - level) / step
            # Surplus capacity is not saved up.
            level = max(0.0, level + step)
        return None


def forecast(values: Sequence[float], interval_s: float) -> Forecast | None:
    """Return the forecast for a series of whole intervals of that length; None if it is too short for one."""
    series = np.asarray(values, dtype=np.float64)
    if len(series) < SHORTEST:
        return None
    held = max(2, len(series) // _HELD_BACK)
    known, last = series[:-held], series[-held:]
    models = _models(len(known) - held, interval_s)
    name = min(models, key=lambda each: abs(models[each](known[:-held], held).sum() - known[-held:].sum()))
    predicted = models[name](known, held)
    total = float(last.sum())
    bias = float(predicted.sum() - total) / total if total > 0 else None
    return Forecast(
        name,
        None if bias is None else abs(bias),
        bias,
        held,
        tuple(map(float, predicted)),
        tuple(map(float, models[name](series, HORIZON * len(series)))),
    )


def _models(known: int, interval_s: float) -> dict[str, Model]:
    """Return the models that so many intervals are enough for; the simplest comes first and wins a tie."""
    found: dict[str, Model] = {"level": _level, "trend": _trend}
    for days in (1, 7):
        period = days * _DAY_S / interval_s
        if period >= 4 and period == int(period) and known >= 2 * period:
            found[f"seasonal ({'a day' if days == 1 else 'a week'})"] = _seasonal(int(period))
    return found


def _without_outliers(series: Series) -> Series:
    """Return the series without outliers: a single backfill does not come every day."""
    some = series[series > 0]
    if len(some) == 0:
        return series
    return np.minimum(series, _OUTLIER * np.quantile(some, 0.9))


def _level(series: Series, ahead: int) -> Series:
    return np.full(ahead, _without_outliers(series).mean())


def _trend(series: Series, ahead: int) -> Series:
    calm = _without_outliers(series)
    at = np.arange(len(calm), dtype=np.float64)
    one, other = np.triu_indices(len(calm), 1)
    slope = float(np.median((calm[other] - calm[one]) / (at[other] - at[one])))
    middle = calm.mean() + slope * (np.arange(len(calm), len(calm) + ahead) - at.mean())
    return np.asarray(np.maximum(0.0, middle), dtype=np.float64)


def _seasonal(period: int) -> Model:
    def model(series: Series, ahead: int) -> Series:
        calm = _without_outliers(series)
        whole = calm[len(calm) % period :].reshape(-1, period)
        # The forecast begins where the last whole period ended, which is the end of the series.
        shape = np.median(whole, axis=0)
        if shape.sum() == 0:
            return _level(series, ahead)
        level = whole[-2:].mean() / shape.mean()
        return np.asarray(np.resize(shape * level, ahead), dtype=np.float64)

    return model


_NICE_S = (1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 6 * 3600, _DAY_S, 7 * _DAY_S)


def interval_for(span_s: float) -> int:
    """Return the length (s) of intervals that a span is divided into: the shortest usual one that gives at most 400."""
    return next((each for each in _NICE_S if span_s / each <= 400), 28 * _DAY_S)
