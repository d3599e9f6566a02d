"""Producers that come back while the disk is full wait until it has room, on each topic in a room of its own.

An entry that could not be stored closes its producer, and its client comes back with all that it keeps. Without this
it would do so again and again while the disk is full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .waiting_room import WaitingRoom

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.storage.disk.disk_space import DiskSpace

    from .client_topic import ClientTopic

#: Time (s) after an entry was refused for which producers wait, even if there is room: a large entry may not fit yet.
_AFTER_REFUSAL_S = 1.0
#: The number of producers that ask again at a time, so that others get their turn.
_AT_A_TIME = 200


class DiskWaits:
    """See the module."""

    __slots__ = ("_clock", "_rooms", "_space")

    def __init__(self, space: DiskSpace, clock: Clock) -> None:
        self._space = space
        self._clock = clock
        #: The rooms in which somebody waits, or has waited since there was room last.
        self._rooms: dict[ClientTopic, WaitingRoom] = {}

    @property
    def needed(self) -> bool:
        """Whether a producer that comes back has to wait."""
        refused_at = self._space.refused_at
        return self._space.full or (refused_at is not None and self._clock.monotonic() - refused_at < _AFTER_REFUSAL_S)

    def room_of(self, topic: ClientTopic) -> WaitingRoom:
        """Return the room in which the producers of a topic wait."""
        return self._rooms.setdefault(topic, WaitingRoom())

    def held_producers(self, topic: ClientTopic) -> int:
        """Return the number of producers of a topic that wait."""
        room = self._rooms.get(topic)
        return 0 if room is None else room.held_producers

    def run(self) -> bool:
        """Let producers ask again if the disk has room; return whether more are to ask at once."""
        asked = 0
        while self._rooms and not self.needed:
            topic, room = next(iter(self._rooms.items()))
            if not room.held_producers:
                del self._rooms[topic]
            elif asked == _AT_A_TIME:
                return True
            else:
                asked += 1
                # One by one: if it raises, the others still wait.
                room.take_first()()
        return False
