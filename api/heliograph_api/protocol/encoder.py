"""Encodes the broker's commands: returns the bytes of frames and writes them nowhere. No I/O.

Answers that one request has, such as that to a lookup, are filled in where the request is handled and encoded with
:func:`encode_command`. What sessions send by themselves, and for every message, has a method of :class:`Encoder`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from .ack_sets import ack_set_of
from .wire_pb2 import BaseCommand

_TWO_U32 = struct.Struct(">II")
_UINT64 = 0xFFFFFFFFFFFFFFFF
#: The request id of what answers no request.
NO_REQUEST = _UINT64


def encode_command(command: BaseCommand) -> bytes:
    """Return the simple frame of ``command``."""
    body = command.SerializeToString()
    size = len(body)
    return _TWO_U32.pack(size + 4, size) + body


def encode_command_with_entry(command: BaseCommand, entry_size: int) -> bytes:
    """Return the head of a payload frame; the caller writes the ``entry_size`` bytes of the entry right after it."""
    body = command.SerializeToString()
    size = len(body)
    return _TWO_U32.pack(size + 4 + entry_size, size) + body


class Encoder:
    """Encodes for all sessions: the commands of messages and receipts are objects that are filled in each time.

    Offsets before the first entry of a ledger are -1, which is 2^64 - 1 on the wire.
    """

    __slots__ = ("_message", "_receipt")

    def __init__(self) -> None:
        self._message = BaseCommand(type=BaseCommand.MESSAGE)
        self._receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)

    def message_head(
        self,
        consumer_id: int,
        ledger_id: int,
        entry_id: int,
        partition: int,
        redelivery_count: int,
        consumer_epoch: int,
        remaining: int | None,
        entry_size: int,
    ) -> bytes:
        """Return the head of a MESSAGE frame; the ``entry_size`` bytes of the entry follow it.

        ``partition`` is -1 for a topic without partitions. ``remaining`` has a bit for each message of a batch that is
        not acknowledged, None if that is all of them.
        """
        command = self._message
        message = command.message
        message.consumer_id = consumer_id
        position = message.message_id
        position.ledgerId = ledger_id & _UINT64
        position.entryId = entry_id
        if partition >= 0:
            position.partition = partition
        else:
            position.ClearField("partition")
        message.redelivery_count = redelivery_count
        if consumer_epoch:
            message.consumer_epoch = consumer_epoch
        else:
            message.ClearField("consumer_epoch")
        if remaining is not None:
            message.ack_set.extend(ack_set_of(remaining))
        body = command.SerializeToString()
        if remaining is not None:
            message.ClearField("ack_set")
        size = len(body)
        return _TWO_U32.pack(size + 4 + entry_size, size) + body

    def receipts(self, producer_id: int, receipts: Iterable[tuple[int, int, int, int]]) -> bytes:
        """Return the SEND_RECEIPT frames of entries: sequence id, highest sequence id, ledger and entry id of each."""
        command = self._receipt
        receipt = command.send_receipt
        position = receipt.message_id
        receipt.producer_id = producer_id
        encode = encode_command
        frames = []
        for sequence_id, highest_sequence_id, ledger_id, entry_id in receipts:
            receipt.sequence_id = sequence_id
            receipt.highest_sequence_id = highest_sequence_id
            position.ledgerId = ledger_id & _UINT64
            position.entryId = entry_id & _UINT64
            frames.append(encode(command))
        return b"".join(frames)

    def send_error(self, producer_id: int, sequence_id: int, server_error: int, message: str) -> bytes:
        """Return the SEND_ERROR of an entry that is refused."""
        command = BaseCommand(type=BaseCommand.SEND_ERROR)
        refusal = command.send_error
        refusal.producer_id = producer_id
        refusal.sequence_id = sequence_id
        refusal.error = server_error  # type: ignore[assignment]
        refusal.message = message
        return encode_command(command)

    def success(self, request_id: int) -> bytes:
        """Return the SUCCESS of a request."""
        command = BaseCommand(type=BaseCommand.SUCCESS)
        command.success.request_id = request_id
        return encode_command(command)

    def error(self, request_id: int, server_error: int, message: str) -> bytes:
        """Return the ERROR of a request, or of none (:data:`NO_REQUEST`)."""
        command = BaseCommand(type=BaseCommand.ERROR)
        command.error.request_id = request_id
        command.error.error = server_error  # type: ignore[assignment]
        command.error.message = message
        return encode_command(command)

    def producer_success(
        self,
        request_id: int,
        name: str,
        last_sequence_id: int,
        schema_version: bytes,
        topic_epoch: int | None,
        *,
        ready: bool,
    ) -> bytes:
        """Return the PRODUCER_SUCCESS of a request; while a producer waits for exclusive access it is not ``ready``."""
        command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        success = command.producer_success
        success.request_id = request_id
        success.producer_name = name
        success.last_sequence_id = last_sequence_id
        success.schema_version = schema_version
        success.producer_ready = ready
        if topic_epoch is not None:
            success.topic_epoch = topic_epoch
        return encode_command(command)

    def close_producer(self, producer_id: int) -> bytes:
        """Return the CLOSE_PRODUCER by which a client learns that the broker closed its producer."""
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer_id
        command.close_producer.request_id = NO_REQUEST
        return encode_command(command)

    def close_consumer(self, consumer_id: int) -> bytes:
        """Return the CLOSE_CONSUMER by which a client learns that the broker closed its consumer."""
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer_id
        command.close_consumer.request_id = NO_REQUEST
        return encode_command(command)

    def active_consumer_change(self, consumer_id: int, *, active: bool) -> bytes:
        """Return the ACTIVE_CONSUMER_CHANGE of a Failover or Exclusive consumer."""
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = consumer_id
        command.active_consumer_change.is_active = active
        return encode_command(command)

    def end_of_topic(self, consumer_id: int) -> bytes:
        """Return the REACHED_END_OF_TOPIC of a consumer that has read all of a terminated topic."""
        command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = consumer_id
        return encode_command(command)

    def ping(self) -> bytes:
        """Return a PING."""
        command = BaseCommand(type=BaseCommand.PING)
        command.ping.SetInParent()
        return encode_command(command)

    def pong(self) -> bytes:
        """Return a PONG."""
        command = BaseCommand(type=BaseCommand.PONG)
        command.pong.SetInParent()
        return encode_command(command)
