"""Keeps a flood of events out of the log: the first ones of a while are logged, and the others counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

_WHILE_S: Final = 10.0
_MOST: Final = 10
_MOST_KEYS: Final = 1024
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class EventFlood:
    """Counts events of one kind, which clients can cause as often as they want. ``now`` returns seconds."""

    __slots__ = ("_events", "_now", "_until")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until = 0.0
        self._events = 0

    def log(
        self,
        write: Callable[..., object],
        event: str,
        further: str,
        about: Mapping[str, object] = _NOTHING,
        **fields: object,
    ) -> None:
        """Count an event, and log it by ``write`` unless there were many just now, with ``about`` and its own fields.

        The number of those that a while before left out is logged as ``further``, with ``about``.
        """
        logged, left_out = self._count()
        if left_out:
            write(further, number=left_out, **about)
        if logged:
            write(event, **about, **fields)

    def _count(self) -> tuple[bool, int]:
        """Count an event. Return whether to log it, and how many of the while that has just ended were not logged."""
        now = self._now()
        left_out = 0
        if now >= self._until:
            left_out = max(0, self._events - _MOST)
            self._until, self._events = now + _WHILE_S, 0
        self._events += 1
        return self._events <= _MOST, left_out


class EventFloods:
    """A flood for each key, such as a role, so that one hides nothing of another. Those heard last are remembered."""

    __slots__ = ("_floods", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._floods: OrderedDict[str, EventFlood] = OrderedDict()

    def of(self, key: str) -> EventFlood:
        """Return the flood of the events of a key."""
        flood = self._floods.setdefault(key, EventFlood(self._now))
        self._floods.move_to_end(key)
        if len(self._floods) > _MOST_KEYS:
            self._floods.popitem(last=False)
        return flood
