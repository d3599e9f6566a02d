"""Limits that policies set for each entry of a client: size, delay, encryption. Refusals begin with Pulsar's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph_broker.messaging.base.errors import BrokerError, InvalidRequestMetadata, NotAllowed

if TYPE_CHECKING:
    from heliograph_api.policies.policies import Policies
    from heliograph_api.protocol import wire_pb2 as wire


class EntryRules:
    """The limits in force for the entries of one topic; a topic without any has no object of this class."""

    __slots__ = ("_encrypted", "_max_delay_ms", "_max_size")

    def __init__(self, max_size: int | None, max_delay_ms: int | None, encrypted: bool) -> None:
        self._max_size = max_size
        self._max_delay_ms = max_delay_ms
        self._encrypted = encrypted

    @staticmethod
    def of(policies: Policies) -> EntryRules | None:
        """Return the rules of a topic's effective policies, None if there are none."""
        delay = policies.max_delivery_delay_ms if policies.delayed_delivery is not False else None
        if policies.max_message_size is None and delay is None and not policies.encryption_required:
            return None
        return EntryRules(policies.max_message_size, delay, bool(policies.encryption_required))

    def refusal(self, metadata: wire.MessageMetadata, payload_bytes: int) -> BrokerError | None:
        """Return why an entry is not taken, None if it is. A chunk may be as large as the broker allows any entry."""
        limit = self._max_size
        if limit is not None and payload_bytes > limit and not metadata.HasField("num_chunks_from_msg"):
            return NotAllowed(f"Exceed maximum message size: {payload_bytes} bytes, {limit} are allowed")
        delay = self._max_delay_ms
        if delay is not None and metadata.HasField("deliver_at_time"):
            wanted = metadata.deliver_at_time - metadata.publish_time
            if wanted > delay:
                return NotAllowed(
                    f"Exceeds max allowed delivery delay of {delay} milliseconds: {wanted} were asked for"
                )
        if self._encrypted and not metadata.encryption_keys:
            return InvalidRequestMetadata("Messages must be encrypted")
        return None
