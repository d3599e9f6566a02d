"""A broker full of what retention keeps, told to keep a tenth: how soon the disk has the rest back.

Run it with ``benchmarks/run-retention``; see its ``--help``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from heliograph_broker.storage.disk.data_dir import DataDir

from tests.support.broker_process import BrokerProcess

from .filler import NAMESPACE, fill, make_bystanders, metric, request, result, steady
from .latencies import p99
from .reclaim import GOAL_RATIO, GOAL_S

_MIB = 1 << 20
_QUIET_S = 8
_POLL_S = 0.25
_KEPT = 0.1


def main(
    topics: Annotated[int, typer.Option(min=1, help="Topics the messages are published to in turn.")] = 100,
    mib: Annotated[int, typer.Option(min=10, help="MiB published in all.")] = 2048,
    payload: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 1024,
    directory: Annotated[Path | None, typer.Option(help="Data directory of the broker.")] = None,
) -> None:
    """Fill topics that keep everything, lower the namespace's retention to a tenth, and watch the data directory.

    The size of its files is compared with the bytes that are still wanted, for a minute, while a publisher sends 1,000
    messages of 1 KiB a second to a namespace of its own. Ends with 1 if the promise is not kept: 1.5 times within 60 s.
    """
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-", dir=directory) as scratch:
        data = Path(scratch) / "data"
        with BrokerProcess(data) as broker:
            make_bystanders(broker)
            unlimited = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            request(broker, "POST", f"/admin/v2/namespaces/{NAMESPACE}/retention", unlimited)
            messages = mib * _MIB // payload // topics
            uvloop.run(fill(broker.service_url, topics, messages, payload, None))
            quiet = result(steady(broker, _QUIET_S))
            full = _ratio(broker, data)
            # Sizes of retention are whole MiB, of each topic.
            kept = max(1, int(mib * _KEPT / topics))
            publisher = steady(broker, GOAL_S)
            changed = time.monotonic()
            tenth = {"retentionTimeInMinutes": -1, "retentionSizeInMB": kept}
            request(broker, "POST", f"/admin/v2/namespaces/{NAMESPACE}/retention", tenth)
            highest, reached = 0.0, float("inf")
            while (elapsed := time.monotonic() - changed) < GOAL_S:
                ratio = _ratio(broker, data)
                highest = max(highest, ratio)
                if ratio > GOAL_RATIO:
                    reached = float("inf")
                elif reached == float("inf"):
                    reached = elapsed
                time.sleep(_POLL_S)
            meanwhile = result(publisher)
            live = metric(broker, "heliograph_store_live_bytes")
    print(
        f"{mib} MiB in {topics} topics, files {full:.2f} times of it; told to keep {kept} MiB of each, "
        f"{live / _MIB:.0f} MiB stay: {highest:.2f} times at first, at most {GOAL_RATIO} after {reached:.1f} s, "
        f"in the end {ratio:.2f}; publish p99 {p99(quiet.publish_ms[1000:]):.1f} ms quiet, "
        f"{p99(meanwhile.publish_ms):.1f} ms meanwhile"
    )
    if reached > GOAL_S:
        raise typer.Exit(1)


def _ratio(broker: BrokerProcess, data: Path) -> float:
    """Return the disk space of all files by the bytes that are still wanted."""
    return DataDir.files_bytes(data) / metric(broker, "heliograph_store_live_bytes")


if __name__ == "__main__":
    typer.run(main)
