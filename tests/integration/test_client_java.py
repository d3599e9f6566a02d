"""The official Java client against the broker: every case of ``java/client`` as a test, and pulsar-perf.

``HELIOGRAPH_JAVA_AGAINST=SERVICE-URL,HTTP-URL`` runs all of it against another broker, such as an Apache Pulsar; only
the cases in ``Securing`` always have a broker that is closed, and that is a Heliograph.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.support.clients import RunningBroker, fresh_name
from tests.support.closed_broker import ClosedBroker
from tests.support.java_client import case_names, missing, run_cases, start_perf

# Compiling, and the cases: the first test waits for all of them.
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(missing() is not None, reason=f"the Java client and pulsar-perf are not tested: {missing()}"),
]

SNIPPETS = Path(__file__).parent / "java" / "client" / "snippets.yaml"
AGAINST = "HELIOGRAPH_JAVA_AGAINST"
PERF_WITHIN_S = 300.0


class Endpoint(NamedTuple):
    """A broker that runs already."""

    service_url: str
    http_url: str


@pytest.fixture(scope="module")
def tested(request: pytest.FixtureRequest) -> Iterator[RunningBroker]:
    """The broker under test."""
    if against := os.environ.get(AGAINST):
        yield Endpoint(*against.split(","))
    else:
        yield request.getfixturevalue("broker")


@pytest.fixture(scope="module")
def outcomes(tested: RunningBroker, closed: ClosedBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of every case, all of them run in one JVM."""
    found = run_cases(tested, closed, tmp_path_factory.mktemp("java-client"))
    assert sorted(found) == sorted(case_names())
    return found


@pytest.mark.parametrize("case", case_names())
def test_case(outcomes: dict[str, str], case: str) -> None:
    assert outcomes[case] == "passed", outcomes[case]


def test_every_snippet_of_pulsars_texts_has_a_case() -> None:
    table = yaml.safe_load(SNIPPETS.read_text(encoding="utf-8"))
    without, unknown = [], []
    for text, sections in table.items():
        for section, snippets in sections.items():
            for snippet, cases in snippets.items():
                if not cases:
                    without.append((text, section, snippet))
                unknown += [case for case in cases if case not in case_names()]
    assert without == []
    assert unknown == []


def test_pulsar_perf_produces_consumes_and_reads(tested: RunningBroker, tmp_path: Path) -> None:
    topic = f"persistent://public/default/{fresh_name('perf')}"
    commands = {
        # It counts what it sends in steps, and sends some more.
        "produce": f"produce {topic} --num-messages 2000 --rate 4000 --size 256",
        # Its readers begin with the earliest message.
        "consume": f"consume {topic} --subscription-position Earliest --num-messages 2000",
        "read": f"read {topic} --num-messages 2000",
    }
    done = re.compile(r"Aggregated throughput stats --- (\d+) records (\w+)")
    running = {name: start_perf(tested, tmp_path, command) for name, command in commands.items()}
    try:
        for name, verb in (("produce", "sent"), ("consume", "received"), ("read", "received")):
            output, _ = running[name].communicate(timeout=PERF_WITHIN_S)
            assert running[name].returncode == 0, output
            counted = done.search(output)
            assert counted, output
            assert counted[2] == verb, output
            assert int(counted[1]) >= 2000, output
    finally:
        for process in running.values():
            process.kill()
            process.wait()
