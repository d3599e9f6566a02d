"""Producers that come back to a topic and wait to be answered until it can take what they send again.

Refused, a client would come back at once and send all that it keeps; as long as it waits, it does not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: Lets a producer that waited ask again.
Resume = Callable[[], None]


class WaitingRoom:
    """See the module. The owner of the room knows when there is room again, and lets those who wait ask again then."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        #: In the order in which they came. A connection that ends may have held thousands: each is found by its hash.
        self._held: OrderedDict[Resume, None] = OrderedDict()

    @property
    def held_producers(self) -> int:
        """Producers that wait to be answered until there is room."""
        return len(self._held)

    def hold(self, resume: Resume) -> None:
        """Call ``resume``, which is not held yet, when there is room again."""
        self._held[resume] = None

    def drop_held(self, resume: Resume) -> None:
        """Drop a held producer that gave up."""
        self._held.pop(resume, None)

    def take_first(self) -> Resume:
        """Remove and return the one who has waited longest; there must be one."""
        return self._held.popitem(last=False)[0]

    def take_held(self) -> list[Resume]:
        """Remove and return all who wait."""
        taken = list(self._held)
        self._held.clear()
        return taken
