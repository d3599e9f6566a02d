"""The example of the guide, on a slice of the flights: it checks every number itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLIGHTS = 3000


@pytest.mark.timeout(900)
def test_the_flights_are_archived_replayed_compacted_and_reported_and_every_figure_agrees(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "flights-pipeline"), "--limit", str(FLIGHTS), "--plots", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "numbers agree with the data set" in done.stdout
    for what in (
        "published",
        "archived",
        "into archive.nyc13_pipeline_flights",
        "replayed",
        "replayed from archive.nyc13_pipeline_flights",
    ):
        assert f"{what}: {FLIGHTS:,} messages" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {
        "flights-topics.png",
        "flights-growth.png",
        "flights-keys.png",
    }
