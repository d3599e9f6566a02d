"""The flights job: a broker, 336,776 flights through it, three subscriptions, and every sum checked.

Run by ``scripts/quickstart``, or with everything installed: ``python -m examples.flights.run``.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import queue
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from heliograph_api.admin.admin_client import AdminClient, AdminError, AdminRefused
from heliograph_api.values.names import TopicName
from heliograph_broker.clock import SystemClock

from .checks import KEY_SHARED, check_all
from .child_broker import BrokerFailed, ChildBroker
from .dataset import DataSetMissing, Totals, expected_totals
from .display import ProgressDisplay, Retention, print_result
from .workers import Consumed, Published, Work, consume, publish

MANIFEST = Path(__file__).with_name("flights.yaml")
TOPIC = TopicName.parse("persistent://nyc/airports/flights")
PARTITIONS = 4
#: Subscription -> its type. The third one, audit, is left unread.
SUBSCRIPTIONS = {"ops": "Shared", KEY_SHARED: "Key_Shared"}
CONSUMERS_EACH = 2

_PREFIX = "heliograph-quickstart-"
_POLL_S = 0.1
_STALLED_AFTER_S = 60.0
_SETTLED_WITHIN_S = 20.0


class RunFailed(Exception):
    """The run cannot go on; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code: 0 if every number is right, else 1."""
    options = _parse(arguments)
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            if options.data_dir is not None:
                data_dir = options.data_dir.absolute()
            elif options.keep_running:
                data_dir = Path(tempfile.mkdtemp(prefix=_PREFIX)) / "data"
            else:
                data_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX))) / "data"
            broker = ChildBroker(data_dir)
            print(f"broker ready at {broker.service_url} and {broker.http_url}, data in {data_dir}", flush=True)
            try:
                right = _run(broker, options.limit)
            except BaseException:
                broker.stop()
                raise
            _end(broker, options.keep_running)
            print(f"took {time.monotonic() - started:.0f} s")
            return 0 if right else 1
    except (RunFailed, BrokerFailed, DataSetMissing, AdminError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quickstart: interrupted", file=sys.stderr)
        return 130


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="keep the data here (default: a temporary folder)")
    parser.add_argument("--keep-running", action="store_true", help="leave the broker up at the end")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights (default: all 336,776)")
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        parser.error("--limit should be at least 1")
    return options


def _end(broker: ChildBroker, keep_running: bool) -> None:
    if not keep_running:
        code = broker.stop()
        if code != 0:
            raise RunFailed(f"the broker ended with exit code {code}; see {broker.log_path}")
        return
    print(
        f"\nthe broker goes on; 'kill {broker.pid}' ends it in good order. To look around:\n"
        f"  export HELIOGRAPH_HTTP_URL={broker.http_url} HELIOGRAPH_SERVICE_URL={broker.service_url}\n"
        f"  heliograph topics stats {TOPIC}\n"
        f"  heliograph consume {TOPIC} -s audit -n 3"
    )


def _run(broker: ChildBroker, limit: int | None) -> bool:
    asyncio.run(_apply(broker.http_url))
    expected = expected_totals(limit)
    published, consumed = _pass_through(broker, expected, limit)
    stats, retention = asyncio.run(_settled_stats(broker.http_url))
    delivered = {
        subscription: (kind, sum(each.totals.messages for each in consumed if each.subscription == subscription))
        for subscription, kind in SUBSCRIPTIONS.items()
    }
    print_result(str(TOPIC), stats, retention, delivered, SystemClock().now_ms())
    checks = check_all(expected, published, consumed, stats, partitions=PARTITIONS)
    if checks.failures:
        print(f"\n{len(checks.failures)} of {checks.count} numbers are wrong:", file=sys.stderr)
        for failure in checks.failures:
            print(f"  {failure}", file=sys.stderr)
        return False
    print(f"\nall {checks.count} numbers agree with the data set")
    return True


async def _apply(http_url: str) -> None:
    async with AdminClient(http_url) as admin:
        try:
            before = await admin.stats(TOPIC)
        except AdminRefused as error:
            if error.status != 404:
                raise
        else:
            if before["msgInCounter"] or before["subscriptions"]:
                print("the data directory holds an earlier run: starting over", flush=True)
                await admin.delete_topic(TOPIC, force=True)
        for line in await admin.apply(MANIFEST.read_text(encoding="utf-8")):
            print(f"{line['kind'].lower()}/{line['name']} {line['action']}", flush=True)


def _pass_through(broker: ChildBroker, expected: Totals, limit: int | None) -> tuple[Published, list[Consumed]]:
    """Start the consumers, then the publisher; show progress until everything has arrived or nothing moves."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    stop = context.Event()

    def work() -> Work:
        return Work(broker.service_url, str(TOPIC), context.Value("Q", 0), results, context.Event(), stop)

    consumers = [
        (subscription, kind, f"{subscription}-{number}", work())
        for subscription, kind in SUBSCRIPTIONS.items()
        for number in range(1, CONSUMERS_EACH + 1)
    ]
    publisher = work()
    processes = [
        context.Process(target=consume, args=(each, subscription, kind, name))
        for subscription, kind, name, each in consumers
    ]
    processes.append(context.Process(target=publish, args=(publisher, limit)))
    try:
        for process in processes[:-1]:
            process.start()
        for _, _, name, each in consumers:
            # Before the first message: a consumer that joins later would take over some keys of the others.
            if not each.ready.wait(_STALLED_AFTER_S):
                raise RunFailed(f"consumer {name} did not connect within {_STALLED_AFTER_S:g} s")
        processes[-1].start()
        started = time.monotonic()
        _watch(publisher, consumers, expected.messages)
        took = time.monotonic() - started
        print(f"{expected.messages:,} flights published and delivered twice in {took:.1f} s", flush=True)
        stop.set()
        try:
            outcomes = [results.get(timeout=_STALLED_AFTER_S) for _ in processes]
        except queue.Empty:
            codes = [process.exitcode for process in processes]
            raise RunFailed(f"a worker ended without its numbers; exit codes {codes}") from None
        for process in processes:
            process.join(_STALLED_AFTER_S)
    finally:
        stop.set()
        for process in processes:
            if process.is_alive():
                process.terminate()
    return (
        next(outcome for outcome in outcomes if isinstance(outcome, Published)),
        sorted((outcome for outcome in outcomes if isinstance(outcome, Consumed)), key=lambda each: each.consumer),
    )


def _watch(publisher: Work, consumers: Sequence[tuple[str, str, str, Work]], total: int) -> None:
    """Show progress until every subscription has ``total``; gives up when nothing has moved for a while."""
    moved = time.monotonic()
    done: dict[str, int] = {}
    with ProgressDisplay(["published", *SUBSCRIPTIONS], total) as display:
        while any(done.get(name, 0) < total for name in ("published", *SUBSCRIPTIONS)):
            time.sleep(_POLL_S)
            now = {"published": publisher.progress.value}
            for subscription, _, _, work in consumers:
                now[subscription] = now.get(subscription, 0) + work.progress.value
            if now != done:
                done, moved = now, time.monotonic()
            elif time.monotonic() - moved > _STALLED_AFTER_S:
                print(f"quickstart: nothing has moved for {_STALLED_AFTER_S:g} s: {done}", file=sys.stderr)
                return
            display.show(done)


async def _settled_stats(http_url: str) -> tuple[dict[str, Any], Retention]:
    """Return the topic's stats once the last acknowledgements have arrived (or should have), and its retention."""
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    async with AdminClient(http_url) as admin:
        while True:
            stats = await admin.stats(TOPIC)
            left = sum(stats["subscriptions"][name]["msgBacklog"] for name in SUBSCRIPTIONS)
            if not left or time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_S)
        allowed = await admin.request("GET", f"/admin/v2/namespaces/{TOPIC.namespace_name}/retention")
    return stats, Retention(allowed["retentionTimeInMinutes"], allowed["retentionSizeInMB"])


if __name__ == "__main__":
    sys.exit(main())
