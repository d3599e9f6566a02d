"""The scenarios: each is run against a fresh broker with a fresh data directory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.support.broker_process import BrokerProcess

from .latencies import quantiles
from .official_load import OfficialJob, OfficialResult
from .wire_load import WireJob, WireResult

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: A client's batch is closed at this size or at 1,000 messages (the clients' defaults).
BATCH_BYTES = 128 * 1024
RUN_WITHIN_S = 300.0


@dataclass(frozen=True)
class Scenario:
    """``kind``: publish (receipts only), end to end (received and acknowledged too), rate (latency), official."""

    name: str
    kind: str
    payload_bytes: int
    messages: int
    batch: int = 1
    window: int = 1000
    rate: float = 0.0
    target: str = ""


@dataclass(frozen=True)
class Measurement:
    """One run's results; after :func:`median`, those of several. Rates a second, CPU in µs a message, latency in ms."""

    publish_rate: float
    end_to_end_rate: float
    megabytes: float
    broker_cpu_us: float
    load_cpu_us: float
    publish_ms: tuple[float, float, float] | None = None
    end_to_end_ms: tuple[float, float, float] | None = None


def scenarios(*, quick: bool) -> list[Scenario]:
    """Return all scenarios; the quick ones are a fifth as long."""
    found: list[Scenario] = []
    for kind in ("publish", "end to end"):
        for payload, label, count in ((100, "100 B", 200_000), (1024, "1 KiB", 200_000), (65536, "64 KiB", 8_000)):
            target = "≥ 25,000/s" if (kind, payload) == ("end to end", 1024) else ""
            window = 1000 if payload <= 1024 else 64
            found.append(Scenario(f"unbatched {label}", kind, payload, count, window=window, target=target))
        for payload, label, count in ((100, "100 B", 4_000_000), (1024, "1 KiB", 1_500_000)):
            target = "≥ 150,000/s" if (kind, payload) == ("end to end", 1024) else ""
            batch = min(1000, BATCH_BYTES // payload)
            found.append(Scenario(f"batched {label}", kind, payload, count, batch, window=32, target=target))
    found.append(Scenario("batched 1 KiB, official client", "official", 1024, 500_000))
    found.append(Scenario("1,000 msg/s of 1 KiB", "rate", 1024, 15_000, rate=1000.0, target="p99 publish ≤ 10 ms"))
    share = 5 if quick else 1
    return [replace(each, messages=each.messages // share // each.batch * each.batch) for each in found]


def cpu_seconds(pid: int) -> float:
    """Return user and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Closed(NamedTuple):
    """A closed broker's options, a client's token, and the file with the authority of its certificate."""

    arguments: tuple[str, ...] = ()
    token: str = ""
    trusted: str = ""


def run(scenario: Scenario, directory: Path, checkout: Path | None = None, closed: Closed | None = None) -> Measurement:
    """Measure one run on a broker of its own, of another ``checkout`` or ``closed`` if these are given.

    Raises if anything was lost or refused.
    """
    packages = [] if checkout is None else [str(checkout.resolve() / package) for package in ("api", "broker")]
    environment = {"PYTHONPATH": os.pathsep.join(packages)} if packages else {}
    closed = closed or Closed()
    with BrokerProcess(directory / "data", environment=environment, arguments=closed.arguments) as broker:
        if scenario.kind == "official":
            return _run_official(scenario, broker)
        job = WireJob(
            service_url=broker.service_tls_url if closed.trusted else broker.service_url,
            topic="load",
            payload_bytes=scenario.payload_bytes,
            messages=scenario.messages,
            batch=scenario.batch,
            window=scenario.window,
            consume=scenario.kind != "publish",
            rate=scenario.rate,
            token=closed.token,
            trusted=closed.trusted,
        )
        before = cpu_seconds(broker.pid)
        answer = subprocess.run(
            [sys.executable, "-m", "benchmarks.wire_load", msgspec.json.encode(job).decode()],
            stdout=subprocess.PIPE,
            check=True,
            timeout=RUN_WITHIN_S,
        ).stdout
        cpu = cpu_seconds(broker.pid) - before
    result = msgspec.json.decode(answer, type=WireResult)
    seconds = result.end_to_end_s or result.publish_s
    return Measurement(
        publish_rate=result.messages / result.publish_s,
        end_to_end_rate=result.messages / result.end_to_end_s if result.end_to_end_s else 0.0,
        megabytes=result.messages * scenario.payload_bytes / 1e6 / seconds,
        broker_cpu_us=cpu * 1e6 / result.messages,
        load_cpu_us=result.cpu_s * 1e6 / result.messages,
        publish_ms=quantiles(result.publish_ms),
        end_to_end_ms=quantiles(result.end_to_end_ms),
    )


def _run_official(scenario: Scenario, broker: BrokerProcess) -> Measurement:
    def start(role: str) -> subprocess.Popen[str]:
        job = OfficialJob(role, broker.service_url, "load", scenario.payload_bytes, scenario.messages)
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.official_load", msgspec.json.encode(job).decode()],
            stdout=subprocess.PIPE,
            text=True,
        )

    consumer = start("consume")
    assert consumer.stdout is not None
    if consumer.stdout.readline().strip() != "subscribed":
        raise RuntimeError("the official client could not subscribe")
    before = cpu_seconds(broker.pid)
    publisher = start("publish")
    results = []
    for process in (publisher, consumer):
        output, _ = process.communicate(timeout=RUN_WITHIN_S)
        if process.returncode:
            raise RuntimeError(f"the official client's process ended with {process.returncode}")
        results.append(msgspec.json.decode(output, type=OfficialResult))
    cpu = cpu_seconds(broker.pid) - before
    published, consumed = results
    return Measurement(
        publish_rate=scenario.messages / (published.finished - published.began),
        end_to_end_rate=scenario.messages / (consumed.finished - published.began),
        megabytes=scenario.messages * scenario.payload_bytes / 1e6 / (consumed.finished - published.began),
        broker_cpu_us=cpu * 1e6 / scenario.messages,
        load_cpu_us=(published.cpu_s + consumed.cpu_s) * 1e6 / scenario.messages,
    )


def median(runs: list[Measurement]) -> Measurement:
    """Return the median of each result by itself."""

    def triple(values: list[tuple[float, float, float] | None]) -> tuple[float, float, float] | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        p50, p99, most = (statistics.median(column) for column in zip(*known, strict=True))
        return p50, p99, most

    return Measurement(
        publish_rate=statistics.median(run.publish_rate for run in runs),
        end_to_end_rate=statistics.median(run.end_to_end_rate for run in runs),
        megabytes=statistics.median(run.megabytes for run in runs),
        broker_cpu_us=statistics.median(run.broker_cpu_us for run in runs),
        load_cpu_us=statistics.median(run.load_cpu_us for run in runs),
        publish_ms=triple([run.publish_ms for run in runs]),
        end_to_end_ms=triple([run.end_to_end_ms for run in runs]),
    )
