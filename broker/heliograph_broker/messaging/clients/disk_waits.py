"""Producers that come back while the disk is full wait until it has room, on each topic in a room of its own.

An entry that could not be stored closes its producer, and its client comes back with all that it keeps. Without this
it would do so again and again while the disk is full.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from .waiting_room import Resume, WaitingRoom

if TYPE_CHECKING:
    from heliograph_api.values.names import TopicName

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
        #: The rooms in which somebody waits.
        self._rooms: _Rooms = OrderedDict()

    @property
    def needed(self) -> bool:
        """Whether a producer that comes back has to wait."""
        refused_at = self._space.refused_at
        return self._space.full or (refused_at is not None and self._clock.monotonic() - refused_at < _AFTER_REFUSAL_S)

    def room_of(self, topic: ClientTopic) -> WaitingRoom:
        """Return the room in which the producers of a topic wait."""
        return self._rooms.get(topic.name) or _TopicRoom(self._rooms, topic.name)

    def held_producers(self, topic: ClientTopic) -> int:
        """Return the number of producers of a topic that wait."""
        room = self._rooms.get(topic.name)
        return 0 if room is None else room.held_producers

    def run(self) -> bool:
        """Let producers ask again if the disk has room; return whether more are to ask at once."""
        asked = 0
        while self._rooms and not self.needed:
            if asked == _AT_A_TIME:
                return True
            asked += 1
            # One by one: if it raises, the others still wait.
            next(iter(self._rooms.values())).take_first()()
        return False


class _TopicRoom(WaitingRoom):
    """The room of one topic, which is among the ``rooms`` as long as somebody waits in it.

    A topic that was created for the producer is gone as soon as that has to wait: a room that stayed without anybody
    would stay until the disk has room, one for each attempt.
    """

    __slots__ = ("_name", "_rooms")

    def __init__(self, rooms: _Rooms, name: TopicName) -> None:
        super().__init__()
        self._rooms = rooms
        self._name = name

    def hold(self, resume: Resume) -> None:
        # Another one may have been given to a producer that has begun to wait meanwhile.
        WaitingRoom.hold(self._rooms.setdefault(self._name, self), resume)

    def drop_held(self, resume: Resume) -> None:
        room = self._rooms.get(self._name)
        if room is not None:
            WaitingRoom.drop_held(room, resume)
            room._leave_if_empty()

    def take_first(self) -> Resume:
        first = super().take_first()
        self._leave_if_empty()
        return first

    def take_held(self) -> list[Resume]:
        taken = super().take_held()
        self._leave_if_empty()
        return taken

    def _leave_if_empty(self) -> None:
        if not self._held:
            self._rooms.pop(self._name, None)


#: By the topics' names: a topic that is created again is another one, and in use while a producer waits for it.
_Rooms = OrderedDict["TopicName", _TopicRoom]
