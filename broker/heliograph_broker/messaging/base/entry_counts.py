"""The counts of one stored entry in backlogs and quotas."""

from __future__ import annotations

import msgspec


class EntryCounts(msgspec.Struct, frozen=True, gc=False):
    """The messages and bytes of one entry, and of its topic up to and including it."""

    offset: int
    messages: int
    size: int
    total_messages: int
    total_bytes: int
