"""Message ids in requests and answers, as Pulsar's Java classes MessageIdImpl and ResetCursorData write them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from .context import body_as
from .errors import ApiError

#: Ledger and entry id of the latest position; -1 of each is the earliest.
LATEST: Final = 2**63 - 1
_EXAMPLE: Final = '{"ledgerId": 12, "entryId": 3}'

PositionNumber = Annotated[int, msgspec.Meta(ge=-1, le=LATEST)]


class PositionDocument(msgspec.Struct, rename="camel"):
    """A position of a topic: -1 as ledger id is the earliest, 2^63-1 the latest.

    ``batch_index`` is that of a message in a batch, -1 without one; ``excluded`` (or
    ``is_excluded``) means the position right behind.
    """

    ledger_id: PositionNumber
    entry_id: PositionNumber
    partition_index: int = -1
    batch_index: int = -1
    excluded: bool = False
    is_excluded: bool = False
    #: of a subscription that is created there
    properties: dict[str, str] | None = None
    # The rest is what clients know of the batch; the broker knows it better.
    batch_size: int | None = None
    ack_set: list[int] | None = None
    outstanding_acks_in_same_batch: int | None = None
    original_batch_size: int | None = None
    first_chunk_message_id: msgspec.UnsetType | dict[str, int | None] | None = msgspec.UNSET

    @property
    def entries_behind(self) -> int:
        """1 if the position right behind is meant, 0 if the message itself."""
        return int(self.excluded or self.is_excluded)

    @property
    def is_earliest(self) -> bool:
        return self.ledger_id < 0

    @property
    def is_latest(self) -> bool:
        return self.ledger_id == LATEST


_ENDS: Final = {"earliest": PositionDocument(-1, -1), "latest": PositionDocument(LATEST, LATEST)}


class MessageIdAnswer(msgspec.Struct, rename="camel"):
    """Pulsar's MessageIdImpl; entry id -1 is the place before a ledger's first entry, ledger id -1 before any."""

    ledger_id: int
    entry_id: int
    partition_index: int = -1
    batch_index: int = -1
    batch_size: int = 0


#: A position in a body: a document, or the name of an end of the topic.
AnyPosition: Any = PositionDocument | str


async def position_of(request: web.Request) -> PositionDocument | None:
    """Return the position in the body, None without one. Raises :class:`ApiError` 400."""
    body = await body_as(request, AnyPosition)
    if body is None or isinstance(body, PositionDocument):
        return body
    if body not in _ENDS:
        raise ApiError(400, f"Invalid value for the position. Allowed values are [latest, earliest], not '{body}'")
    return _ENDS[body]


async def required_position(request: web.Request) -> PositionDocument:
    """Return the position in the body. Raises :class:`ApiError` 400 saying what one looks like."""
    position = await position_of(request)
    if position is None:
        raise ApiError(400, f"the request needs a JSON body, for example {_EXAMPLE}")
    return position


def number_in_path(request: web.Request, name: str, what: str, *, least: int = 0) -> int:
    """Return a number of the path. Raises :class:`ApiError` 400 saying that it should be ``what``."""
    text = request.match_info[name]
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19:
        number = int(text)
        if least <= number <= LATEST:
            return number
    raise ApiError(400, f"{name} should be {what}, not '{text}'")
