"""The answers of a broker to the entries of one producer, between its link and its sender. No I/O."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

#: Sequence id, ledger id and entry id of a stored entry; the ids of one that was dropped as a duplicate are -1.
Receipt = tuple[int, int, int]

_SIGNED = 1 << 63


def read_receipt(command: bytes) -> tuple[int, Receipt]:
    """Return the producer's id and the receipt in a SEND_RECEIPT."""
    receipt = wire.BaseCommand.FromString(command).send_receipt
    place = receipt.message_id
    ledger, entry = place.ledgerId, place.entryId
    if ledger >= _SIGNED:
        ledger = entry = -1
    return receipt.producer_id, (receipt.sequence_id, ledger, entry)


class Outbox:
    """The answers that have arrived for one producer, in order. The link appends; only the sender takes them."""

    __slots__ = ("answers", "assigned", "closed")

    def __init__(self) -> None:
        self.answers: list[Receipt | wire.CommandSendError] = []
        #: Whether nothing more will come.
        self.closed = False
        #: The URL of the broker that has the topic now, if the one that closed the producer said so.
        self.assigned = ""

    def take(self) -> list[Receipt | wire.CommandSendError]:
        """Return what has arrived, and forget it."""
        taken = self.answers[:]
        del self.answers[: len(taken)]
        return taken
