"""Histograms of latencies and sizes in fixed buckets, cheap enough to be updated for every entry.

Buckets are Pulsar's. A topic's counts only grow; the readers take the difference over a minute themselves. The
broker's quantiles are of the last minute before the question.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

from heliograph_broker.clock import Clock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.commit.group import Histogram

from .tls_metrics import TlsMetrics

#: Upper bounds (s) of the latency buckets; one more counts longer times.
LATENCY_BOUNDS_S = (0.0005, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 1.0)
#: Upper bounds (bytes) of the entry size buckets; one more counts larger entries.
SIZE_BOUNDS = (128, 512, 1024, 2048, 4096, 16384, 102_400, 1_232_896)

#: Indexes at which the parts of :attr:`TopicMetrics.counts` begin.
WRITE_LATENCY, WRITE_SUM_US = 0, len(LATENCY_BOUNDS_S) + 1
LEDGER_LATENCY, LEDGER_SUM_US = WRITE_SUM_US + 1, 2 * WRITE_SUM_US + 1
ENTRY_SIZE = LEDGER_SUM_US + 1
ENTRY_SIZE_SUM = ENTRY_SIZE + len(SIZE_BOUNDS) + 1
COUNTS = ENTRY_SIZE_SUM + 1

#: Each bucket is wider than the one before by this factor: a quantile is off by less than that.
_RATIO = 1.1
_FINE_S = tuple(sorted({*LATENCY_BOUNDS_S, *(1e-5 * _RATIO**step for step in range(165))}))
#: For each of the fine buckets, the one of Pulsar's that it is part of.
_COARSE = (*(bisect_left(LATENCY_BOUNDS_S, bound) for bound in _FINE_S), len(LATENCY_BOUNDS_S))

_taken_at = attrgetter("taken_at")
_frame = attrgetter("frame")

WINDOW_S = 60.0
_SLICE_S = 5.0


class _Slice:
    """The observations of some seconds."""

    __slots__ = ("began", "counts", "least", "most")

    def __init__(self, began: float) -> None:
        self.began = began
        self.counts = [0] * (len(_FINE_S) + 1)
        self.least = float("inf")
        self.most = 0.0


class LatencySummary:
    """Count and sum (s) since the start, and quantiles over the last minute."""

    __slots__ = ("_clock", "_slices", "count", "total")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slices: deque[_Slice] = deque()
        self.count = 0
        self.total = 0.0

    def current(self, now: float) -> _Slice:
        """Return the slice for observations at ``now`` (monotonic)."""
        slices = self._slices
        if not slices or now - slices[-1].began >= _SLICE_S:
            self._forget(now)
            slices.append(_Slice(now))
        return slices[-1]

    def observe(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        current = self.current(self._clock.monotonic())
        current.counts[bisect_left(_FINE_S, seconds)] += 1
        current.least = min(current.least, seconds)
        current.most = max(current.most, seconds)

    def _forget(self, now: float) -> None:
        while self._slices and now - self._slices[0].began > WINDOW_S:
            self._slices.popleft()

    def quantiles(self, wanted: Sequence[float]) -> list[float]:
        """Return these quantiles (0 to 1) of the last minute in seconds; NaN for each if nothing was observed."""
        self._forget(self._clock.monotonic())
        if not self._slices:
            return [float("nan")] * len(wanted)
        counts = [sum(column) for column in zip(*(each.counts for each in self._slices), strict=True)]
        least = min(each.least for each in self._slices)
        most = max(each.most for each in self._slices)
        reached = list(accumulate(counts))
        found = []
        for quantile in wanted:
            at = bisect_left(reached, max(1.0, quantile * reached[-1]))
            bound = _FINE_S[at] if at < len(_FINE_S) else most
            found.append(least if quantile <= 0 else most if quantile >= 1 else min(max(bound, least), most))
        return found


NO_COUNTS = (0,) * COUNTS


class TopicMetrics:
    """Buckets of one topic; ``counts`` holds all of them in one list, see the constants of this module."""

    __slots__ = ("cache_misses", "counts")

    def __init__(self) -> None:
        #: Empty until the first entry is durable.
        self.counts: list[int] = []
        #: Entries that were read from the store for a consumer.
        self.cache_misses = 0

    def counters(self) -> tuple[int, ...]:
        """Return the buckets, then the entries read from the store."""
        return *(self.counts or NO_COUNTS), self.cache_misses

    def entries_durable(self, entries: list[Entry], now: float, commit_s: float, broker: BrokerMetrics) -> None:
        """Count a group's entries, durable at ``now`` (monotonic); writing and syncing took ``commit_s`` of it.

        Sorted, entries of one bucket lie side by side: buckets are looked up once for all of them.
        """
        if not self.counts:
            self.counts = [0] * COUNTS
        counts = self.counts
        summary = broker.publish_latency
        taken = sorted(map(_taken_at, entries))
        number = len(taken)
        current = summary.current(now)
        current.least = min(current.least, now - taken[-1])
        current.most = max(current.most, now - taken[0])
        at = 0
        while at < number:
            fine = bisect_left(_FINE_S, now - taken[at])
            end = max(at + 1, bisect_left(taken, now - _FINE_S[fine - 1], at)) if fine else number
            current.counts[fine] += end - at
            counts[WRITE_LATENCY + _COARSE[fine]] += end - at
            at = end
        latencies = number * now - sum(taken)
        summary.count += number
        summary.total += latencies
        counts[WRITE_SUM_US] += round(latencies * 1e6)
        counts[LEDGER_LATENCY + bisect_left(LATENCY_BOUNDS_S, commit_s)] += number
        counts[LEDGER_SUM_US] += round(number * commit_s * 1e6)
        sizes = sorted(map(len, map(_frame, entries)))
        at = 0
        while at < number:
            bucket = bisect_left(SIZE_BOUNDS, sizes[at])
            end = bisect_right(sizes, SIZE_BOUNDS[bucket], at) if bucket < len(SIZE_BOUNDS) else number
            counts[ENTRY_SIZE + bucket] += end - at
            at = end
        counts[ENTRY_SIZE_SUM] += sum(sizes)


LIMITS = (
    "max_handles_per_connection",
    "max_namespaces_per_tenant",
    "max_subscriptions_per_tenant",
    "max_topics_per_tenant",
    "topics_pattern",
)
"""The maxima of which it is counted how often a request was refused by them."""


class ConnectionMetrics:
    """Connections of one port: how many are open, and how many were refused or aborted since the start."""

    __slots__ = ("cut", "open", "refused")

    def __init__(self) -> None:
        self.open = 0
        #: By the limit that was reached.
        self.refused = {"total": 0, "address": 0, "role": 0, "descriptors": 0}
        #: By reason: no CONNECT or TLS handshake in time, silent, answers or remaining data not read, connections held
        #: too much memory, a TLS handshake that failed, a client's certificate that expired, a malformed or too large
        #: frame, much of an HTTP request that was answered already, or a body that arrived too slowly.
        reasons = ("handshake", "silent", "unread", "memory", "tls", "certificate", "malformed", "body", "slow")
        self.cut = dict.fromkeys(reasons, 0)


class BrokerMetrics:
    """Metrics of the whole broker; the server fills in what it alone knows."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = clock.now_ms()
        self.publish_latency = LatencySummary(clock)
        self.lookup_latency = LatencySummary(clock)
        self.lookups_answered = 0
        self.lookups_failed = 0
        #: Duration (s) of each check of quotas by age, expiry and retention.
        self.policy_checks = Histogram((5.0, 10.0, 30.0, 60.0, 300.0))
        #: Number of times that an invariant of the stored records was found broken, and healed, at a start.
        self.healed_invariants: dict[str, int] = {}
        #: How often a request was refused because a maximum was reached, by the name of the maximum.
        self.limits_reached = dict.fromkeys(LIMITS, 0)
        #: Records that could not be decoded and are kept aside.
        self.unreadable_records = 0
        self.binary_connections = ConnectionMetrics()
        self.http_connections = ConnectionMetrics()
        #: Clients that have shown who they are, or failed to, by method and success.
        self.authentications: Mapping[tuple[str, bool], int] = {}
        #: How often a role's limit refused a producer or consumer, or held back its clients.
        self.role_limits = {"producers": 0, "consumers": 0, "publishRate": 0, "dispatchRate": 0}
        self.tls = TlsMetrics()
        #: Issuers of tokens: name, fetches of their keys that succeeded and that failed, age (s) of the keys, if any.
        self.key_fetches: Callable[[], Sequence[tuple[str, int, int, float | None]]] = list
        #: Connections that are not read from because too much waits for the store.
        self.throttled_connections: Callable[[], int] = int
        #: Bytes sent to consumers that their connections have not taken yet.
        self.undelivered_bytes: Callable[[], int] = int
        #: Bytes of unread answers, unfinished frames and requests that wait, all connections together.
        self.connection_bytes: Callable[[], int] = int

    def lookup_answered(self, began: float, *, found: bool) -> None:
        """Count an answered look-up that ``began`` then (monotonic, s)."""
        self.lookup_latency.observe(self._clock.monotonic() - began)
        if found:
            self.lookups_answered += 1
        else:
            self.lookups_failed += 1
