"""The notebook of docs/notebooks.md: its cells run in order, and its plots show what the topic and the archive have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pulsar
import pytest
from matplotlib.dates import num2date
from pyspark.sql import SparkSession

from tests.support.broker_process import BrokerProcess
from tests.support.clients import read_messages, rest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebooks" / "first-five-minutes.ipynb"
TOPIC = "first-five-minutes"


@pytest.fixture
def without_windows() -> Iterator[None]:
    """Let matplotlib draw without windows, and close what it has drawn at the end."""
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def run_cells(given: dict[str, Any]) -> dict[str, Any]:
    """Execute the notebook's cells of code in order; returns the names that they leave."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, cell {cell['id']}", "exec"), given)
    return given


@pytest.mark.long
@pytest.mark.usefixtures("without_windows")
def test_the_notebook_plots_the_messages_of_a_topic_its_streams_lag_and_its_archives_sizes(
    spark: SparkSession,
    broker: BrokerProcess,
    client: pulsar.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HELIOGRAPH_TOPIC", raising=False)
    monkeypatch.setenv("HELIOGRAPH_SERVICE_URL", broker.service_url)
    monkeypatch.setenv("HELIOGRAPH_ADMIN_URL", broker.http_url)
    monkeypatch.setenv("HELIOGRAPH_ARCHIVE", str(tmp_path / "archive"))
    try:
        run_cells({})
        published = read_messages(client, TOPIC)
        entries = len({(each.message_id().ledger_id(), each.message_id().entry_id()) for each in published})
    finally:
        rest(broker, "DELETE", f"persistent/public/default/{TOPIC}?force=true")

    messages_by_hour: Counter[datetime] = Counter()
    bytes_by_day: Counter[date] = Counter()
    for each in published:
        at = datetime.fromtimestamp(each.event_timestamp() / 1000, UTC)
        messages_by_hour[at.replace(minute=0, second=0, microsecond=0)] += 1
        bytes_by_day[at.date()] += len(each.data())
    assert len(published) == 20_000
    assert len(bytes_by_day) == 5

    (figure,) = map(plt.figure, plt.get_fignums())
    throughput, lag, sizes = figure.axes
    (line,) = throughput.lines
    first, hours = min(messages_by_hour), len(line.get_xdata())
    assert [num2date(each) for each in line.get_xdata(orig=False)] == [
        first + timedelta(hours=number) for number in range(hours)
    ]
    assert first + timedelta(hours=hours - 1) == max(messages_by_hour)
    rates = [messages_by_hour[first + timedelta(hours=number)] / 3600 for number in range(hours)]
    assert list(line.get_ydata()) == pytest.approx(rates)

    (line,) = lag.lines
    assert list(line.get_ydata()) == list(range(entries, 0, -4))
    assert list(line.get_xdata()) == sorted(line.get_xdata())

    bars = {num2date(each.get_center()[0]).date(): each.get_height() for each in sizes.patches}
    assert bars == bytes_by_day
    for axes in (throughput, lag, sizes):
        assert all((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
