"""Many topics whose messages expire all at once: how long until they are gone, and what publishers elsewhere notice.

Run it with ``benchmarks/run-expiry``; see its ``--help``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from tests.support.broker_process import BrokerProcess

from .filler import NAMESPACE, RATE, fill, make_bystanders, metric, request, result, steady
from .latencies import p99

_QUIET_S = 8
_AFTER_S = 10
_LEAD_S = 3.0


def measure(directory: str, topics: int, messages: int, payload: int) -> tuple[float, float, float, float]:
    """Return when the last messages were gone (s), and latencies (ms): p99 quiet, p99 and maximum in that second."""
    with BrokerProcess(Path(directory) / "data") as broker:
        make_bystanders(broker)
        # Expired messages are trimmed at once, which is part of what others may notice.
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        request(broker, "POST", f"/admin/v2/namespaces/{NAMESPACE}/retention", nothing)
        uvloop.run(fill(broker.service_url, topics, messages, payload, "slow"))
        time.sleep(2)
        quiet = result(steady(broker, _QUIET_S))
        publisher = steady(broker, _LEAD_S + _AFTER_S)
        time.sleep(_LEAD_S)
        changed = time.monotonic()
        request(broker, "POST", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", 1)
        while True:
            sample = request(broker, "GET", f"/admin/v2/persistent/{NAMESPACE}/due-{topics - 1:05d}/stats")
            if sample["subscriptions"]["slow"]["msgBacklog"] == 0:
                break
            if time.monotonic() - changed > _AFTER_S:
                raise RuntimeError("the last topic's messages did not expire")
            time.sleep(0.05)
        last = time.monotonic() - changed
        busy = result(publisher)
        total = metric(broker, "heliograph_expired_messages_total")
        if total != topics * messages:
            raise RuntimeError(f"{total:.0f} messages expired, not {topics * messages}")
    first = int((changed - busy.began) * RATE)
    second = busy.publish_ms[first : first + int(RATE)]
    return last, p99(quiet.publish_ms[1000:]), p99(second), max(second)


def main(
    topics: Annotated[int, typer.Option(min=1, help="Topics that have messages due.")] = 1000,
    messages: Annotated[int, typer.Option(min=1, help="Messages due in each.")] = 1000,
    payload: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 100,
    runs: Annotated[int, typer.Option(min=1, help="Number of runs, each with a new broker.")] = 1,
    directory: Annotated[Path | None, typer.Option(help="Data directory of the broker.")] = None,
) -> None:
    """Fill topics, let all of it expire by one change of policy, and measure a publisher of another namespace.

    The publisher sends 1,000 messages of 1 KiB a second to a topic of its own. Printed are the p99 of its latencies
    when all is quiet and in the second after the change, and how long until nothing that is due is left.
    """
    ratios = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-", dir=directory) as scratch:
            last, calm, in_it, longest = measure(scratch, topics, messages, payload)
        ratios.append(in_it / calm)
        print(
            f"{topics * messages} messages expired, the last topic's {last:.2f} s after the change of policy; publish "
            f"p99 {calm:.1f} ms quiet, {in_it:.1f} ms in that second ({in_it / calm:.1f} times), "
            f"maximum {longest:.1f} ms",
            flush=True,
        )
    if runs > 1:
        print(f"median of {runs} runs: {statistics.median(ratios):.1f} times the quiet p99")


if __name__ == "__main__":
    typer.run(main)
