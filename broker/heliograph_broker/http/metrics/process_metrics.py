"""Metrics of the process, the event loop, the store and its group commit; all of Heliograph's own."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from heliograph_api import __version__
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from heliograph_broker.messaging.base.histograms import ConnectionMetrics
from heliograph_broker.messaging.base.tls_metrics import TlsMetrics
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.storage.commit.group import Histogram
from heliograph_broker.storage.store import LedgerStore

from .exposition import Block, Sample, Value, histogram_samples, labels, write_block
from .loop_lag import LoopLag

_STATUS = Path("/proc/self/status")
_EOF = b"# EOF\n"


class DiskUsage(NamedTuple):
    """Bytes the data directory takes, and bytes that are free where it is."""

    used: int
    free: int


def disk_usage(store: LedgerStore) -> DiskUsage:
    """Ask the file system; for a thread beside the event loop."""
    return DiskUsage(store.disk_bytes(), store.space.free_bytes())


def anonymous_bytes() -> int | None:
    """Return the process's own memory without mapped files, None where the system does not say."""
    try:
        status = _STATUS.read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return None


def _histogram(name: str, text: str, histogram: Histogram) -> Block:
    return Block(name, "histogram", histogram_samples(histogram), text)


def _gauge(name: str, text: str, value: Value) -> Block:
    return Block(name, "gauge", [("", "", value)], text)


def _connection_blocks(binary: ConnectionMetrics, http: ConnectionMetrics) -> list[Block]:
    """Return the families of connections, by port."""
    ports = (("binary", binary), ("http", http))
    open_now: list[Sample] = [("", labels(port=port), metrics.open) for port, metrics in ports]
    refused: list[Sample] = [
        ("", labels(port=port, limit=limit), number)
        for port, metrics in ports
        for limit, number in metrics.refused.items()
    ]
    cut: list[Sample] = [
        ("", labels(port=port, reason=reason), number)
        for port, metrics in ports
        for reason, number in metrics.cut.items()
    ]
    return [
        Block("heliograph_connections", "gauge", open_now, "Connections that are open."),
        Block(
            "heliograph_connections_refused_total",
            "counter",
            refused,
            "Connections refused because a limit was reached.",
        ),
        Block("heliograph_connections_cut_total", "counter", cut, "Connections that the broker aborted, by reason."),
    ]


def _tls_blocks(tls: TlsMetrics) -> list[Block]:
    """Return the families of TLS; none without it."""
    if not tls.expiry:
        return []
    expiry: list[Sample] = [("", labels(certificate=kind), at) for kind, at in tls.expiry.items()]
    return [
        Block(
            "heliograph_tls_certificate_expiry_timestamp_seconds",
            "gauge",
            expiry,
            "When the first certificate of the file in effect expires.",
        ),
        Block(
            "heliograph_tls_reloads_total", "counter", [("", "", tls.reloads)], "Changed TLS files taken into effect."
        ),
        Block(
            "heliograph_tls_reload_failures_total",
            "counter",
            [("", "", tls.failures)],
            "Changed TLS files that cannot be used.",
        ),
        _gauge(
            "heliograph_tls_files_refused",
            "1 while the TLS files cannot be used and those read before are in effect.",
            int(tls.refused),
        ),
        Block(
            "heliograph_tls_handshakes",
            "gauge",
            [
                ("", labels(state="running"), tls.handshakes_running),
                ("", labels(state="waiting"), tls.handshakes_waiting),
            ],
            "TLS handshakes that are under way, and clients that wait for the turn of theirs.",
        ),
    ]


def process_blocks(broker: Broker, lag: LoopLag, disk: DiskUsage) -> list[Block]:
    """Return the families without labels."""
    store, cache = broker.store, broker.tail_cache
    stats, scrub = store.writer.stats, store.scrub
    build = f'{{version="{__version__}",python="{platform.python_version()}"}}'
    blocks = [
        Block("heliograph_build_info", "gauge", [("", build, 1)], "The broker's version and the Python it runs on."),
        _histogram("heliograph_group_commit_entries", "Entries in each group.", stats.group_entries),
        _histogram("heliograph_group_commit_bytes", "Bytes in each group.", stats.group_bytes),
        _histogram("heliograph_group_commit_seconds", "Time to write and sync a group.", stats.sync_seconds),
        _histogram("heliograph_event_loop_lag_seconds", "Lag of timers on the event loop.", lag.seconds),
        Block(
            "heliograph_limits_reached_total",
            "counter",
            [("", labels(limit=limit), number) for limit, number in broker.metrics.limits_reached.items()],
            "Requests refused because a maximum was reached.",
        ),
        _gauge("heliograph_store_pending_bytes", "Bytes accepted and not yet durable.", store.writer.pending_bytes),
        _gauge(
            "heliograph_store_live_bytes",
            "Bytes of messages that are stored and not deleted.",
            store.segments.live_bytes(),
        ),
        Block(
            "heliograph_store_full_groups_total",
            "counter",
            [("", "", store.space.shortage.groups)],
            "Groups that a full disk refused.",
        ),
        Block(
            "heliograph_store_full_entries_total",
            "counter",
            [("", "", store.space.shortage.entries)],
            "Entries in groups that a full disk refused; their producers got an error.",
        ),
        _gauge(
            "heliograph_quarantined_ledgers",
            "Ledgers on disk that no topic refers to; they are kept.",
            len(store.ledgers.quarantined),
        ),
        _gauge(
            "heliograph_quarantined_bytes",
            "Bytes of messages in ledgers that no topic refers to.",
            sum(store.ledgers.quarantined.values()),
        ),
        _gauge(
            "heliograph_unreadable_records",
            "Records of topics, subscriptions or policies that could not be read and are kept aside.",
            broker.metrics.unreadable_records,
        ),
        _gauge(
            "heliograph_damaged_segments",
            "Damaged payload files, which are kept but not read.",
            len(store.segments.files.damaged),
        ),
        _gauge(
            "heliograph_lost_entries",
            "Entries that should be stored but are lost with a missing or damaged segment.",
            store.segments.missing.entries(),
        ),
        _gauge(
            "heliograph_scrub_progress",
            "Share of the data that the current scrub has read; 1 if none is running.",
            scrub.progress,
        ),
        _gauge(
            "heliograph_scrub_damaged_ranges", "Ranges of damaged entries that the scrub has found.", len(scrub.damaged)
        ),
        Block(
            "heliograph_scrub_bytes_total",
            "counter",
            [("", "", scrub.bytes_read)],
            "Bytes that the scrub has verified.",
        ),
        Block("heliograph_scrub_passes_total", "counter", [("", "", scrub.passes)], "Scrubs completed."),
        _gauge("heliograph_store_disk_bytes", "Disk space the data directory takes.", disk.used),
        _gauge("heliograph_store_disk_free_bytes", "Disk space that is free where the data is.", disk.free),
        _gauge("heliograph_store_disk_full", "1 if new messages are refused.", int(store.space.full)),
        _gauge("heliograph_tail_cache_bytes", "Recent entries in memory, overhead included.", cache.used_bytes),
        _gauge(
            "heliograph_tail_cache_limit_bytes", "Limit of heliograph_tail_cache_bytes.", broker.config.tail_cache_bytes
        ),
    ]
    blocks += _connection_blocks(broker.metrics.binary_connections, broker.metrics.http_connections)
    reached: list[Sample] = [("", labels(limit=limit), count) for limit, count in broker.metrics.role_limits.items()]
    text = "Producers and consumers refused, and rates reached, because of a role's limit."
    blocks.append(Block("heliograph_role_limits_reached_total", "counter", reached, text))
    blocks += _tls_blocks(broker.metrics.tls)
    blocks += [
        _gauge(
            "heliograph_connection_memory_bytes",
            "Unread answers and unfinished frames of all connections of the binary port.",
            broker.metrics.connection_bytes(),
        ),
        _gauge(
            "heliograph_connection_memory_limit_bytes",
            "Limit of heliograph_connection_memory_bytes; 0: none.",
            broker.config.connection_memory_bytes,
        ),
    ]
    authentications: list[Sample] = [
        ("", labels(method=method, outcome="success" if succeeded else "failure"), number)
        for (method, succeeded), number in sorted(broker.metrics.authentications.items())
    ]
    if authentications:
        text = "Clients and requests that showed who they are, or failed to."
        blocks.append(Block("heliograph_authentications_total", "counter", authentications, text))
    blocks += _issuer_blocks(broker.metrics.key_fetches())
    anonymous = anonymous_bytes()
    if anonymous is not None:
        name = "heliograph_process_anonymous_memory_bytes"
        blocks.append(_gauge(name, "Resident memory without mapped files.", anonymous))
    return blocks


def _issuer_blocks(issuers: Sequence[tuple[str, int, int, float | None]]) -> list[Block]:
    """Return the families of issuers of tokens, which a broker without any does not have."""
    fetches: list[Sample] = [
        ("", labels(issuer=issuer, outcome=outcome), number)
        for issuer, succeeded, failed, _ in issuers
        for outcome, number in (("success", succeeded), ("failure", failed))
    ]
    ages: list[Sample] = [("", labels(issuer=issuer), age_s) for issuer, *_, age_s in issuers if age_s is not None]
    blocks = [
        Block("heliograph_issuer_key_fetches_total", "counter", fetches, "Fetches of the keys of an issuer of tokens."),
        Block("heliograph_issuer_keys_age_seconds", "gauge", ages, "Time since the keys in use were fetched."),
    ]
    return [block for block in blocks if block.samples]


def process_metrics(broker: Broker, lag: LoopLag, disk: DiskUsage, openmetrics: bool) -> str:
    """Return these families in the format asked for, without an end mark."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    if openmetrics:
        process: bytes = generate_openmetrics(registry)  # type: ignore[no-untyped-call]
    else:
        process = generate_text(registry)
    blocks = "".join(write_block(block, openmetrics) for block in process_blocks(broker, lag, disk))
    return process.removesuffix(_EOF).decode() + blocks
