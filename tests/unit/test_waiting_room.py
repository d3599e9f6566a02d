"""Producers that wait for room: the work that those who give up or ask again cause."""

from __future__ import annotations

from heliograph_broker.messaging.clients.waiting_room import WaitingRoom


class _Resume:
    """Counts how often one is compared with another."""

    compared = 0

    def __call__(self) -> None:
        raise AssertionError("nobody is asked here")

    def __eq__(self, other: object) -> bool:
        _Resume.compared += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_one_that_gives_up_is_not_searched_among_all_that_wait() -> None:
    room = WaitingRoom()
    first, last = [_Resume() for _ in range(100)], [_Resume() for _ in range(100)]
    for resume in first + last:
        room.hold(resume)
    _Resume.compared = 0
    for resume in last:
        room.drop_held(resume)
    # One that has given up may do so again.
    room.drop_held(last[0])
    assert _Resume.compared <= len(last)
    assert room.held_producers == len(first)
    assert room.take_first() is first[0]
    assert [id(resume) for resume in room.take_held()] == [id(resume) for resume in first[1:]]
    assert room.held_producers == 0
