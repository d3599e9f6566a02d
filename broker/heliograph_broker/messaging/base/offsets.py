"""Sets of a topic's offsets as compressed bitmaps: the runs in them are found without walking along them."""

from __future__ import annotations

from pyroaring import BitMap64


def run_end(offsets: BitMap64, start: int) -> int:
    """Return the first offset from ``start`` on that is not in ``offsets``; O(log) of the length of the run."""
    if start not in offsets:
        return start
    length = 1
    while offsets.contains_range(start, start + 2 * length):
        length *= 2
    low, high = length, 2 * length
    while high - low > 1:
        middle = (low + high) // 2
        if offsets.contains_range(start, start + middle):
            low = middle
        else:
            high = middle
    return start + low
