"""Why a subscription gets no message now: the one reason, since when it holds, and what would end it.

Every dispatch that ends leaves its subscription in exactly one of these states. The reason is derived from the
dispatcher's state when somebody asks (:mod:`.explanation`), so that deliveries cost nothing for it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer


class DeliveryReason(StrEnum):
    """The reasons, by their names in the REST API."""

    #: Every stored message is acknowledged.
    ALL_ACKNOWLEDGED = "allAcknowledged"
    #: Consumers have every message that is not acknowledged.
    ALL_DELIVERED = "allDelivered"
    NO_CONSUMER = "noConsumer"
    #: The subscription is being moved, and its consumers are to come back afterwards.
    SEEKING = "seeking"
    #: The cursor of compaction, which reads the topic itself.
    COMPACTION = "compaction"
    #: A duty of the broker raised, and is tried again after a pause.
    SUSPENDED = "suspended"
    #: The next entries are being read from the disk.
    READING = "readingEntries"
    UNACKED_LIMIT_OF_SUBSCRIPTION = "unackedLimitOfSubscription"
    UNACKED_LIMIT_OF_CONSUMER = "unackedLimitOfConsumer"
    DISPATCH_RATE = "dispatchRate"
    NO_PERMITS = "noPermits"
    #: The client does not read what was sent to it.
    CONNECTION_FULL = "connectionFull"
    #: Another consumer takes the messages: the active one, or one of a higher priority.
    STANDBY = "standby"
    #: Messages of a key wait until the consumer that has earlier ones of it acknowledges these.
    KEY_HELD = "keyHeld"
    #: No consumer declared a range with the hash of the key.
    KEY_WITHOUT_CONSUMER = "keyWithoutConsumer"
    #: Chunks wait until the consumer with the other chunks of their message takes more.
    CHUNK_WAITS = "chunkWaits"
    DELAYED = "delayed"
    #: The messages left have expired: consumers do not get them any more, and they are about to be acknowledged.
    EXPIRED = "expired"
    #: Nothing: the next event delivers. No dispatch ends so.
    NONE = "none"


#: The reasons with which nothing is left to deliver.
CAUGHT_UP = frozenset({DeliveryReason.ALL_ACKNOWLEDGED, DeliveryReason.ALL_DELIVERED})

_ENDS = {
    DeliveryReason.ALL_ACKNOWLEDGED: "a producer publishes a message",
    DeliveryReason.ALL_DELIVERED: (
        "a producer publishes a message, or a consumer gives one back: negative acknowledgment, or it disconnects"
    ),
    DeliveryReason.NO_CONSUMER: "a consumer subscribes",
    DeliveryReason.SEEKING: "the seek is stored, and a consumer reconnects",
    DeliveryReason.COMPACTION: "compaction runs and moves the cursor",
    DeliveryReason.SUSPENDED: "the next attempt succeeds, or the cause named here is removed",
    DeliveryReason.READING: "the disk answers",
    DeliveryReason.UNACKED_LIMIT_OF_SUBSCRIPTION: (
        "consumers acknowledge messages, one that holds some disconnects, or max-unacked-messages-on-subscription "
        "is raised"
    ),
    DeliveryReason.UNACKED_LIMIT_OF_CONSUMER: (
        "the consumer acknowledges messages, another one takes over, or max-unacked-messages-on-consumer is raised"
    ),
    DeliveryReason.DISPATCH_RATE: "time passes, or the dispatch rate is raised",
    DeliveryReason.NO_PERMITS: (
        "the application receives the messages in the client's queue, or a consumer with room subscribes"
    ),
    DeliveryReason.CONNECTION_FULL: "the client reads its connection again, or disconnects",
    DeliveryReason.STANDBY: "the consumer that takes the messages disconnects or has no room",
    DeliveryReason.KEY_HELD: "the consumer acknowledges its messages of the key, gives them back, or disconnects",
    DeliveryReason.KEY_WITHOUT_CONSUMER: "a consumer subscribes that declares the hash range of the key",
    DeliveryReason.CHUNK_WAITS: "the consumer with the other chunks takes more, or disconnects",
    DeliveryReason.DELAYED: "the time of the next delayed message comes",
    DeliveryReason.EXPIRED: "their expiry is recorded; with a dead-letter topic, once that has stored them",
    DeliveryReason.NONE: "the next event",
}


class Explanation(NamedTuple):
    """A reason in detail. Times are wall-clock ms, 0 where none is known.

    ``consumer`` is the one that the reason is about, ``position`` (ledger id, entry id) the message.
    """

    reason: DeliveryReason
    since_ms: int
    text: str
    consumer: Consumer | None = None
    position: tuple[int, int] | None = None
    until_ms: int = 0

    @property
    def ends(self) -> str:
        """The event that would end it, as the rest of a sentence."""
        return _ENDS[self.reason]
