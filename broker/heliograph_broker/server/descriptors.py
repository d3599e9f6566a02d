"""File descriptors of the process: as many as it may have, and some of them never given to connections.

Every connection takes one, and so does every payload file of the store. The system gives the lowest that is free: a
connection that gets one of the last shows that all before it are taken.
"""

from __future__ import annotations

import resource

#: Nobody needs more, and some programs that the process may start visit each possible one.
_ENOUGH = 1 << 20


def raise_descriptor_limit() -> int:
    """Let the process have as many descriptors as its hard limit allows; return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()


def descriptor_limit() -> int:
    """Return how many descriptors the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def reserve_of(limit: int, wanted: int) -> int:
    """Return how many of ``limit`` descriptors connections leave to others: ``wanted``, but at most half of them."""
    return min(wanted, limit // 2)
