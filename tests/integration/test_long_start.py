"""A broker that takes long to read its data directory: its port says that it lives, and that it is not ready."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.broker_process import READY_WITHIN_S, BrokerProcess
from tests.support.polling import eventually

#: Runs the command line, with a start that is busy with the segments until a file exists.
_SLOW = """
import os, sys
from heliograph_broker.cli.main import main
from heliograph_broker.storage.segments.segment_files import SegmentFiles

gate, load = sys.argv.pop(1), SegmentFiles.load

def load_at_last(self):
    while not os.path.exists(gate):
        sum(range(100_000))
    return load(self)

SegmentFiles.load = load_at_last
main()
"""


def _ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        # Nobody listens yet, or between the port of the start and that of the broker.
        return 0, str(error)


def test_a_broker_is_live_and_not_ready_while_it_reads_its_data_directory(tmp_path: Path) -> None:
    before = BrokerProcess(tmp_path / "data")
    before.start()
    assert before.terminate() == 0
    gate = tmp_path / "gate"
    arguments = before.command[3:]
    with (tmp_path / "slow.log").open("wb") as log:
        slow = subprocess.Popen([sys.executable, "-c", _SLOW, str(gate), *arguments], stdout=log, stderr=log)
    try:

        def answers() -> bool:
            assert slow.poll() is None, (tmp_path / "slow.log").read_text()
            return _ask(f"{before.http_url}/health/live") == (200, '{"status": "live"}')

        eventually(answers, within_s=READY_WITHIN_S, what="the starting broker answers")
        for _ in range(5):
            assert answers()
            status, text = _ask(f"{before.http_url}/health/ready")
            assert status == 503
            assert json.loads(text)["reason"].startswith("the broker is starting: it has been reading")
        gate.touch()

        def is_ready() -> bool:
            assert slow.poll() is None, (tmp_path / "slow.log").read_text()
            return _ask(f"{before.http_url}/health/ready")[0] == 200

        eventually(is_ready, within_s=READY_WITHIN_S, what="the broker is ready")
        assert _ask(f"{before.http_url}/health/live")[0] == 200
    finally:
        slow.kill()
        slow.wait()
