"""The official Go client against the broker: runs the Go module beside this file and shows its lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.clients import RunningBroker
from tests.support.closed_broker import FACTS, ClosedBroker

GO_MODULE = Path(__file__).parent / "go"


# A fresh machine downloads and compiles the client first.
@pytest.mark.timeout(1750)
@pytest.mark.skipif(shutil.which("go") is None, reason="the go command is not installed: the Go client is not tested")
def test_official_go_client(broker: RunningBroker, closed: ClosedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    completed = subprocess.run(
        ["go", "test", "-json", "-count=1", "-timeout=900s", "./..."],
        cwd=GO_MODULE,
        # Without cgo the client uses its pure Go compressors, so no C compiler is needed.
        env=os.environ
        | {
            "HELIOGRAPH_SERVICE_URL": broker.service_url,
            "HELIOGRAPH_HTTP_URL": broker.http_url,
            FACTS: str(closed.facts),
            "CGO_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    output: list[str] = []
    outcomes: dict[str, str] = {}
    for line in completed.stdout.splitlines():
        if not line.startswith("{"):
            output.append(line)
            continue
        event = json.loads(line)
        if event["Action"] == "output":
            output.append(event["Output"].rstrip("\n"))
        elif "Test" in event and event["Action"] in ("pass", "fail", "skip"):
            outcomes[event["Test"]] = event["Action"]
    with capsys.disabled():
        print()
        for name, outcome in outcomes.items():
            print(f"  go {outcome}: {name}")
    details = "\n".join(output) + completed.stderr
    assert completed.returncode == 0, details
    counts = Counter(outcomes.values())
    assert counts["fail"] == 0, details
    assert counts["skip"] == 0, details
    assert counts["pass"] >= 64, details
