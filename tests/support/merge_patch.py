"""JSON merge patches (RFC 7396), as the API server applies them."""

from __future__ import annotations

from typing import Any


def merge_patched(now: Any, patch: Any) -> Any:
    """Return a value after a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    after = dict(now) if isinstance(now, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merge_patched(after.get(name), value)
    return after
