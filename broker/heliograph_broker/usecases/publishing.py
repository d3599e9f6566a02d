"""A client publishes an entry: what is checked of it before its topic takes it.

Dead letters, which the broker publishes itself, were checked when they were published first: they begin at
``Topic.publish``, whose rules hold for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heliograph_api.protocol.ack_sets import MAX_BATCH_MESSAGES
from heliograph_api.protocol.frames import ChecksumMismatch, EntryError, parse_entry

from heliograph_broker.messaging.base.errors import ChecksumFailed, MalformedEntry, NotAllowed, ProducerFenced
from heliograph_broker.messaging.messages.batches import COUNTED_BELOW_BYTES, BatchError, check_count

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.producer import Producer

#: Pulsar's text where there is no coordinator, for what belongs to a transaction.
NO_TRANSACTIONS: Final = "Transactions are not enabled."


def publish(
    producer: Producer, sequence_id: int, highest_sequence_id: int, entry: bytes, is_chunk: bool, max_bytes: int
) -> int:
    """Verify an entry and hand it to the producer's topic, which answers by receipt or error.

    ``max_bytes`` is the broker's limit of a payload. A refusal has its turn after the receipts of what came before,
    except that of a producer that was fenced, which has no turn any more. Return the number of messages that the topic
    was handed, 0 for a refusal.
    """
    topic = producer.topic
    if not topic.producer_registry.may_publish(producer):
        error = ProducerFenced("producer was fenced")
        producer.sink.send_publish_error(producer.producer_id, sequence_id, error)
        return 0
    try:
        metadata, payload_offset = parse_entry(entry)
    except ChecksumMismatch as error:
        topic.refuse(producer, sequence_id, ChecksumFailed(str(error)))
        return 0
    except EntryError as error:
        topic.refuse(producer, sequence_id, MalformedEntry(str(error)))
        return 0
    messages = metadata.num_messages_in_batch
    refusal = ""
    payload_bytes = len(entry) - payload_offset
    if not 0 < messages <= MAX_BATCH_MESSAGES:
        refusal = f"a batch of {messages} messages; 1 to {MAX_BATCH_MESSAGES} are allowed"
    elif payload_bytes > max_bytes:
        refusal = f"payload of {payload_bytes} bytes exceeds the maximum message size of {max_bytes} bytes"
    elif metadata.HasField("txnid_most_bits"):
        refusal = NO_TRANSACTIONS
    elif messages * COUNTED_BELOW_BYTES > payload_bytes:
        try:
            check_count(metadata, entry, payload_offset)
        except BatchError as error:
            refusal = str(error)
    if refusal:
        topic.refuse(producer, sequence_id, NotAllowed(refusal))
        return 0
    if topic.entry_rules is not None:
        broken = topic.entry_rules.refusal(metadata, payload_bytes)
        if broken is not None:
            topic.refuse(producer, sequence_id, broken)
            return 0
    if is_chunk:
        producer.chunks_in += 1
    topic.publish(producer, sequence_id, highest_sequence_id, metadata, entry)
    return messages
