"""Summarizes latencies, wherever they were measured."""

from __future__ import annotations


def quantiles(latencies_ms: list[float]) -> tuple[float, float, float] | None:
    """Return p50, p99 and the maximum, None of none."""
    if not latencies_ms:
        return None
    ordered = sorted(latencies_ms)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1]


def p99(latencies_ms: list[float]) -> float:
    """Return the p99 of at least one latency."""
    found = quantiles(latencies_ms)
    assert found is not None
    return found[1]


def shown(latencies_ms: list[float]) -> str:
    """Return p50, p99 and the maximum as a cell of a table, which is empty if there are none."""
    return " / ".join(f"{ms:.1f}" for ms in quantiles(latencies_ms) or ())
