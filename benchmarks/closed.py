"""``benchmarks/run-closed``: see its ``--help``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.support.certificates import Authority
from tests.support.tokens import Signer

from .scenarios import Closed, Measurement, Scenario, median, run

SCENARIOS = (
    Scenario("unbatched 1 KiB", "end to end", 1024, 200_000),
    Scenario("batched 1 KiB", "end to end", 1024, 1_500_000, batch=128, window=32),
    Scenario("1,000 msg/s of 1 KiB", "rate", 1024, 15_000, rate=1000.0),
)
WAYS = ("plain", "token", "TLS", "TLS and token")
HEADINGS = (
    "scenario",
    "way",
    "end to end msg/s",
    "of plain",
    "publish ms p50 / p99",
    "of plain's p99",
    "broker µs/msg",
)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the messages, and one run each.")] = False,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each; results are their medians.")] = 3,
) -> None:
    """Measure what TLS and tokens cost: the same load on brokers that are plain and closed, in turn."""
    console = Console(width=None if Console().is_terminal else 160)
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-") as name:
        directory = Path(name)
        closed = ways(directory)
        for scenario in SCENARIOS:
            shown = replace(
                scenario, messages=scenario.messages // (5 if quick else 1) // scenario.batch * scenario.batch
            )
            measured: dict[str, list[Measurement]] = {way: [] for way in WAYS}
            for number in range(1 if quick else runs):
                for way in WAYS:
                    console.print(f"{scenario.name}, {way}: run {number + 1}", style="dim")
                    with tempfile.TemporaryDirectory(dir=directory) as scratch:
                        measured[way].append(run(shown, Path(scratch), closed=closed[way]))
            table = Table(*HEADINGS)
            for row in rows(shown, {way: median(found) for way, found in measured.items()}):
                table.add_row(*row)
            console.print(table)


def ways(directory: Path) -> dict[str, Closed]:
    """Return how brokers are closed in each way, with keys and certificates in ``directory``."""
    signer, authority = Signer(directory / "secret.key"), Authority()
    certificate, key = authority.issue().write(directory / "tls")
    trusted = str(authority.write(directory))
    tokens = ("--auth", "token", "--token-secret-key", str(signer.path), "--superuser", "load")
    encryption = ("--tls-cert", str(certificate), "--tls-key", str(key))
    token = signer.token("load")
    return {
        "plain": Closed(),
        "token": Closed(tokens, token),
        "TLS": Closed(encryption, trusted=trusted),
        "TLS and token": Closed((*encryption, *tokens), token, trusted),
    }


def rows(scenario: Scenario, measured: dict[str, Measurement]) -> list[list[str]]:
    """Return the rows of one scenario, each way beside the ratio to the plain one."""
    plain = measured["plain"]
    found = []
    for way, result in measured.items():
        latency, of_p99 = "", ""
        if result.publish_ms is not None and plain.publish_ms is not None:
            latency = f"{result.publish_ms[0]:.1f} / {result.publish_ms[1]:.1f}"
            of_p99 = f"{result.publish_ms[1] / plain.publish_ms[1]:.2f}"
        rated = bool(scenario.rate)
        rate = "" if rated else f"{result.end_to_end_rate:,.0f}"
        of_plain = "" if rated else f"{result.end_to_end_rate / plain.end_to_end_rate:.2f}"
        found.append([scenario.name, way, rate, of_plain, latency, of_p99, f"{result.broker_cpu_us:.1f}"])
    return found


if __name__ == "__main__":
    typer.run(main)
