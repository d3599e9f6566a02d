"""Reads the command before each entry. No I/O.

The commands of one ledger's entries differ in the entry id only, so most are compared with the one before instead of
decoded, which takes three times as long.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.varints import varint

_MESSAGE = wire.BaseCommand.MESSAGE

#: What MESSAGE says of an entry: consumer id, ledger id, entry id, redelivery count, and an ``ack_set``, which is empty
#: or has a bit for each message that is not acknowledged. A tuple, as one is made for each entry.
MessageHead = tuple[int, int, int, int, tuple[int, ...]]


class MessageHeads:
    """Reads commands, and remembers the bytes around the entry id of the last one."""

    __slots__ = ("_before", "_known", "_place", "_previous", "_size")

    def __init__(self) -> None:
        #: The bytes before and after the entry id, and everything but the entry id.
        self._known: tuple[bytes, int, int, int, tuple[int, ...]] = (b"", 0, 0, 0, ())
        self._before = b""
        #: Where the first and the last byte of the entry id are.
        self._place = (0, 0)
        #: 0 while nothing is remembered: no command is so short.
        self._size = 0
        self._previous: tuple[int, int] | None = None

    def read(self, command: bytes) -> MessageHead | None:
        """Return what a command says if it is a MESSAGE, else None. Raises ``DecodeError`` if it is no command."""
        if len(command) == self._size and command.startswith(self._before):
            after, consumer_id, ledger, redelivery_count, ack_set = self._known
            if command.endswith(after):
                at, end = self._place
                entry = command[at]
                if entry > 127:
                    entry &= 127
                    shift = 7
                    while at < end:
                        at += 1
                        digit = command[at]
                        entry |= (digit & 127) << shift
                        if digit < 128:
                            break
                        shift += 7
                if at == end and command[at] < 128:
                    return consumer_id, ledger, entry, redelivery_count, ack_set
        found = _decoded(command)
        if found is not None:
            place = found[:2]
            # Remembering takes longer than decoding: only where the commands of one consumer follow each other.
            if place == self._previous:
                self._remember(command, found)
            self._previous = place
        return found

    def _remember(self, command: bytes, found: MessageHead) -> None:
        consumer_id, ledger, entry, redelivery_count, ack_set = found
        encoded_ledger, encoded_entry = b"\x08" + varint(ledger) + b"\x10", varint(entry)
        before, found_both, after = command.partition(encoded_ledger + encoded_entry)
        if not found_both:
            return
        before += encoded_ledger
        # Whether these bytes are the entry id shows another one in their place.
        other = consumer_id, ledger, entry ^ 1, redelivery_count, ack_set
        try:
            if _decoded(before + varint(entry ^ 1) + after) != other:
                return
        except DecodeError:
            return
        begin, end = len(before), len(before) + len(encoded_entry)
        self._before, self._place, self._size = before, (begin, end - 1), len(command)
        self._known = after, consumer_id, ledger, redelivery_count, ack_set


def _decoded(command: bytes) -> MessageHead | None:
    parsed = wire.BaseCommand.FromString(command)
    if parsed.type != _MESSAGE:
        return None
    message = parsed.message
    place = message.message_id
    ack_set = tuple(message.ack_set)
    return message.consumer_id, place.ledgerId, place.entryId, message.redelivery_count, ack_set
