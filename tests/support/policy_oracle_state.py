"""The state of the policy oracle: messages, entries, subscriptions and topics as plain lists and sets."""

from __future__ import annotations

from dataclasses import dataclass, field

#: When a ledger is closed: entries, bytes, ms.
LEDGER_ENTRIES, LEDGER_BYTES, LEDGER_AGE = 5, 900, 4000

REFUSE, HOLD, EVICT = "producer_exception", "producer_request_hold", "consumer_backlog_eviction"
#: Subscription types of which one consumer gets everything in order.
IN_ORDER = ("Exclusive", "Failover")


class Disagreement(AssertionError):
    """The broker did what the texts do not allow; the text says what."""


def require(condition: bool, output: str) -> None:
    if not condition:
        raise Disagreement(output)


def valid_ttl(text: str) -> bool:
    """Whether a message may carry this as its own TTL: the decimal text of a whole number of ms from 0 on."""
    return text != "" and all(digit in "0123456789" for digit in text) and int(text) < 2**63


@dataclass
class Message:
    """One message as published; ``died_in`` are the topics it expired in, the oldest first."""

    text: str
    ttl: str | None = None
    died_in: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)


@dataclass
class StoredEntry:
    """An entry: one message, or a client's batch of several."""

    number: int
    size: int
    received: int
    deliver_at: int
    messages: list[Message]
    batch: bool
    key: str | None
    #: Whether the messages' own TTLs counted when it was published.
    own_ttls: bool


@dataclass
class OracleSubscription:
    """The unacknowledged messages by consumer; ``unacked`` holds the batch indexes still to come of each entry."""

    name: str
    durable: bool
    unacked: dict[int, set[int]]
    kind: str | None = None
    permits: dict[int, int] = field(default_factory=dict)
    #: entry -> consumer that holds it
    held: dict[int, int] = field(default_factory=dict)
    #: entry -> the messages of it that the consumer was sent
    sent: dict[int, set[int]] = field(default_factory=dict)
    returned: dict[int, int] = field(default_factory=dict)
    #: Entries that were delivered and came back.
    spent: set[int] = field(default_factory=set)
    expired: int = 0
    dead_lettered: int = 0
    loops: int = 0
    #: Over a quota since the last tick, at least.
    overdue: bool = False

    def forget(self, number: int) -> None:
        """All of the entry is acknowledged."""
        self.unacked.pop(number, None)
        self.held.pop(number, None)
        self.returned.pop(number, None)


@dataclass
class Letter:
    """A copy of an expired message that must arrive in its dead letter topic."""

    target: str
    source: str
    subscription: str
    entry: int
    index: int | None
    message: Message
    key: str | None
    time: int


@dataclass
class OracleTopic:
    name: str
    entries: list[StoredEntry] = field(default_factory=list)
    #: Entries before this number are gone.
    first: int = 0
    subscriptions: dict[str, OracleSubscription] = field(default_factory=dict)
    #: Messages that must have been deleted by the next tick.
    overdue_trim: int = 0
    refused_size: int = 0
    refused_age: int = 0
    evicted_size: int = 0
    evicted_age: int = 0
    #: Size of the entry that was refused last, while that matters; and whether its producer waits for an answer.
    wanted: int = 0
    held: bool = False
    overdue_answer: bool = False
    #: Producers connected, and when somebody connected, left, or declared the topic last.
    producers: int = 0
    used: int = 0

    #: Numbers of the entries that begin a ledger.
    ledgers: list[int] = field(default_factory=list)
    #: Whether the broker has started since the newest one began: the next entry begins another.
    restarted: bool = False

    def ledger_is_closed(self, now: int) -> bool:
        """Whether the newest ledger is full, or old enough, for the next entry to begin another one."""
        ledger = self.entries[self.ledgers[-1] :]
        full = len(ledger) >= LEDGER_ENTRIES or sum(entry.size for entry in ledger) >= LEDGER_BYTES
        return full or now - ledger[0].received >= LEDGER_AGE

    def add(self, entry: StoredEntry) -> None:
        """An entry is published."""
        if not self.ledgers or self.restarted or self.ledger_is_closed(entry.received):
            self.ledgers.append(entry.number)
            self.restarted = False
        self.entries.append(entry)

    def kept(self) -> list[StoredEntry]:
        return self.entries[self.first :]

    def durable(self) -> list[OracleSubscription]:
        return [subscription for subscription in self.subscriptions.values() if subscription.durable]
