"""The memory that the bodies of one role's requests may take together."""

from __future__ import annotations

import asyncio

from heliograph_broker.http.base.bodies import FREE_BYTES, LARGEST_ROLE_BODY_BYTES, ROOM_BYTES, BodyRoom


class Sender:
    """Has a body of a role under way from when there is room until :meth:`end`."""

    def __init__(self, room: BodyRoom, role: str, size: int | None) -> None:
        self.under_way = False
        self._ended = asyncio.Event()
        self.task = asyncio.ensure_future(self._send(room, role, size))

    async def _send(self, room: BodyRoom, role: str, size: int | None) -> None:
        async with room.taken(role, size):
            self.under_way = True
            await self._ended.wait()

    async def end(self) -> None:
        self._ended.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bodies_of_a_role_wait_for_each_other_and_for_no_other_role() -> None:
    room = BodyRoom()
    # One whose size is not known counts as the largest.
    full = [Sender(room, "billing", size) for size in (None, *[LARGEST_ROLE_BODY_BYTES] * 15)]
    first, gone, second = (Sender(room, "billing", LARGEST_ROLE_BODY_BYTES) for _ in range(3))
    usual, other = Sender(room, "billing", FREE_BYTES), Sender(room, "shipping", None)
    await settle()
    assert all(each.under_way for each in (*full, usual, other))
    assert not first.under_way
    gone.task.cancel()
    await full[0].end()
    await settle()
    assert (first.under_way, second.under_way) == (True, False)
    # One that is broken off leaves its room, too.
    full[1].task.cancel()
    await settle()
    assert second.under_way
    for each in (*full[2:], first, second, usual, other):
        await each.end()
    assert await asyncio.wait_for(_fits(room), 10)


async def _fits(room: BodyRoom) -> bool:
    """Return once everything that a role may have at a time has room."""
    senders = [Sender(room, "billing", LARGEST_ROLE_BODY_BYTES) for _ in range(ROOM_BYTES // LARGEST_ROLE_BODY_BYTES)]
    await settle()
    found = all(each.under_way for each in senders)
    for each in senders:
        await each.end()
    return found
