"""The hash of a message's key: by it Key_Shared chooses a consumer, and a dead letter its partition."""

from __future__ import annotations

from base64 import b64decode

import mmh3
from heliograph_api.protocol.wire_pb2 import MessageMetadata

#: Number of hash slots; slot 0 means "no hash", as in Pulsar 4.
SLOTS = 65536


def sticky_hash(metadata: MessageMetadata) -> int:
    """Return the slot 1..65535 of an entry: murmur3 of its ordering key, else of its key; 0 if it has neither.

    Without a key, the chunks of a message go by the message's name, so that they stay together.
    """
    if metadata.HasField("ordering_key"):
        key = metadata.ordering_key
    elif metadata.HasField("partition_key"):
        if metadata.partition_key_b64_encoded:
            try:
                key = b64decode(metadata.partition_key)
            except ValueError:
                key = metadata.partition_key.encode()
        else:
            key = metadata.partition_key.encode()
    elif metadata.num_chunks_from_msg > 1:
        key = metadata.uuid.encode()
    else:
        return 0
    return (mmh3.hash(key, 0, False) & 0x7FFFFFFF) % SLOTS or 1


def spread(offset: int) -> int:
    """Return a slot 1..65535 for an entry without a key: such entries go round all consumers."""
    return (offset * 40503) % (SLOTS - 1) + 1
