"""Every number that the run must come to, compared with the data set's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .dataset import Totals
from .workers import Consumed, Published

KEY_SHARED = "by-carrier"
UNREAD = "audit"


class Checks:
    """Collects comparisons; :attr:`failures` are lines naming the number, what was expected and what came."""

    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []

    def equal(self, figure: str, expected: object, got: object) -> None:
        self.count += 1
        if expected != got:
            self.failures.append(f"{figure}: expected {expected}, got {got}")


def check_all(
    expected: Totals, published: Published, consumed: Sequence[Consumed], stats: dict[str, Any], *, partitions: int
) -> Checks:
    """Compare receipts, what each subscription received, and the broker's own numbers with the data set."""
    checks = Checks()
    checks.equal("receipts of the publisher", expected.messages, published.receipts)
    checks.equal("errors of the publisher", None, published.error)
    for worker in consumed:
        checks.equal(f"errors of {worker.consumer}", None, worker.error)
    for subscription in sorted({worker.subscription for worker in consumed}):
        totals = [worker.totals for worker in consumed if worker.subscription == subscription]
        checks.equal(f"{subscription}: messages", expected.messages, sum(part.messages for part in totals))
        checks.equal(f"{subscription}: miles flown", expected.distance, sum(part.distance for part in totals))
        for carrier, flights in sorted(expected.carriers.items()):
            got = sum(part.carriers[carrier] for part in totals)
            checks.equal(f"{subscription}: flights of {carrier}", flights, got)
    for carrier in sorted(expected.carriers):
        holders = [w.consumer for w in consumed if w.subscription == KEY_SHARED and carrier in w.totals.carriers]
        checks.equal(f"{KEY_SHARED}: consumers that saw {carrier}", 1, len(holders))
    checks.equal("broker: partitions", partitions, len(stats["partitions"]))
    checks.equal("broker: messages received", expected.messages, stats["msgInCounter"])
    for subscription, statistics_of in stats["subscriptions"].items():
        unread = expected.messages if subscription == UNREAD else 0
        checks.equal(f"broker: backlog of {subscription}", unread, statistics_of["msgBacklog"])
        if not unread:
            checks.equal(f"broker: backlog bytes of {subscription}", 0, statistics_of["backlogSize"])
    return checks
