"""Names of topics, namespaces and subscriptions as Pulsar writes them.

A topic is ``persistent://tenant/namespace/topic`` or ``non-persistent://…``; ``orders`` and ``tenant/namespace/orders``
are short for persistent topics. Partition 2 of a topic is the topic called ``…/orders-partition-2``.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote, unquote, unquote_plus

from .quoting import quoted

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"

COMPACTION = "__compaction"
"""The durable subscription that keeps entries that are not compacted yet; it is the broker's own."""
MAX_TOPIC_NAME_BYTES = 240
"""Longest full topic name, without the suffix of a partition, in bytes of UTF-8."""
MAX_SUBSCRIPTION_NAME_BYTES = 240
"""Longest subscription name in bytes of UTF-8. A cursor is stored under topic and subscription together, and the
store's keys end at 511 bytes: both limits and a partition's suffix fit."""

DOMAINS = (PERSISTENT, NON_PERSISTENT)
_PART = re.compile(r"[-=:.\w]+", re.ASCII)
# Nine digits: a partition's index is a 32-bit integer on the wire.
_PARTITION = re.compile(r"(?s:(.+))-partition-(0|[1-9][0-9]{0,8})", re.ASCII)
# Pulsar's system topics of any namespace, and the end of those of a subscription; in these other places all are.
_SYSTEM_TOPICS = frozenset(
    {
        "__change_events",
        "__transaction_buffer_snapshot",
        "__transaction_buffer_snapshot_segments",
        "__transaction_buffer_snapshot_indexes",
    }
)
_PENDING_ACKS = "__transaction_pending_ack"
_SUBSCRIPTION = "/subscription"
_SYSTEM_TENANT = "pulsar"
_SYSTEM_NAMESPACE = "system"
# Control characters, halves of surrogate pairs (they have no UTF-8), line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def base_name(name: str) -> str:
    """Return the name of a topic, in whatever form, without the number of a partition."""
    found = _PARTITION.fullmatch(name) if "-partition-" in name else None
    return name if found is None else found[1]


class InvalidName(ValueError):
    """The text is not a name; the message says why and what would be valid."""


@dataclass(frozen=True, slots=True, eq=False)
class TopicName:
    """A full topic name; make it with :meth:`parse`. Names are equal, and hash alike, when their texts are equal.

    ``local`` is the topic's own name (with ``-partition-N``, if it is a partition), never URL-encoded.
    """

    domain: str
    tenant: str
    namespace: str
    local: str
    namespace_name: str = field(init=False)
    partition: int = field(init=False)
    """The index of the partition this names; -1 for a topic that is not a partition."""
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        match = _PARTITION.fullmatch(self.local)
        object.__setattr__(self, "namespace_name", f"{self.tenant}/{self.namespace}")
        object.__setattr__(self, "partition", int(match.group(2)) if match else -1)
        object.__setattr__(self, "_text", f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}")

    @staticmethod
    @lru_cache(maxsize=65536)
    def parse(text: str) -> TopicName:
        """Return the name ``text`` stands for, short forms completed. Raises :class:`InvalidName`."""
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = PERSISTENT, text
            parts = rest.split("/")
            if len(parts) == 1:
                parts = ["public", "default", rest]
            elif len(parts) == 4:
                raise InvalidName(
                    f"Invalid topic name {quoted(text)}: names with a cluster (tenant/cluster/namespace/topic) are not"
                    " supported; valid: topic or tenant/namespace/topic"
                )
            elif len(parts) != 3:
                raise InvalidName(f"Invalid short topic name {quoted(text)}; valid: topic or tenant/namespace/topic")
        else:
            if domain not in DOMAINS:
                raise InvalidName(f"Invalid topic domain {quoted(domain)}; valid: persistent or non-persistent")
            parts = rest.split("/", 2)
            if len(parts) != 3:
                raise InvalidName(f"Invalid topic name {quoted(text)}; valid: {domain}://tenant/namespace/topic")
        return TopicName.of(domain, *parts)

    @staticmethod
    def of(domain: str, tenant: str, namespace: str, local: str) -> TopicName:
        """Return the name made of these parts, ``local`` as it is (not URL-encoded). Raises :class:`InvalidName`."""
        if domain not in DOMAINS:
            raise InvalidName(f"Invalid topic domain {quoted(domain)}; valid: persistent or non-persistent")
        check_part("tenant", tenant)
        check_part("namespace", namespace)
        check_local("topic", local)
        name = TopicName(domain, tenant, namespace, local)
        # The base of a partition is a topic name too, hence held to the same rules.
        base = local.rpartition("-partition-")[0] if name.partition >= 0 else local
        if base is not local:
            check_local("topic", base)
        size = len(str(name).encode()) - len(local.encode()) + len(base.encode())
        if size > MAX_TOPIC_NAME_BYTES:
            raise InvalidName(
                f"Invalid topic name {quoted(str(name))}: it has {size} bytes; valid: at most {MAX_TOPIC_NAME_BYTES}"
            )
        return name

    @staticmethod
    def from_path(domain: str, tenant: str, namespace: str, encoded: str) -> TopicName:
        """Return the name a REST path stands for, whose last part is URL-encoded. Raises :class:`InvalidName`."""
        return TopicName.of(domain, tenant, namespace, decode_local(encoded))

    @property
    def is_persistent(self) -> bool:
        """Whether messages of the topic are stored."""
        return self.domain == PERSISTENT

    @property
    def is_system(self) -> bool:
        """Whether the name is one of Pulsar's system topics, which only a broker may create."""
        if self.tenant == _SYSTEM_TENANT and (self.namespace == _SYSTEM_NAMESPACE or ":" in self.namespace):
            # These namespaces hold nothing else: that of transactions and load balancing, and "host:port" of a broker.
            return True
        local = self.local if self.partition < 0 else self.local.rpartition("-partition-")[0]
        return local in _SYSTEM_TOPICS or local.endswith(_PENDING_ACKS)

    @property
    def base(self) -> TopicName:
        """The partitioned topic this is a partition of; any other topic itself."""
        if self.partition < 0:
            return self
        return TopicName.parse(self._text.rpartition("-partition-")[0])

    def with_partition(self, index: int) -> TopicName:
        """Return the name of this topic's partition ``index`` (0 and up)."""
        if not 0 <= index < 10**9:
            raise InvalidName(f"Invalid partition {index} of {self._text}; valid: 0 to {10**9 - 1}")
        return TopicName.parse(f"{self._text}-partition-{index}")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"TopicName({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicName) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class NamespaceName:
    """A namespace's full name, ``tenant/namespace``; make it with :meth:`parse`."""

    tenant: str
    local: str

    @staticmethod
    def parse(text: str) -> NamespaceName:
        """Return the namespace ``text`` names. Raises :class:`InvalidName`."""
        parts = text.split("/")
        if len(parts) == 3:
            raise InvalidName(
                f"Invalid namespace name {quoted(text)}: names with a cluster (tenant/cluster/namespace) are not"
                " supported; valid: tenant/namespace"
            )
        if len(parts) != 2:
            raise InvalidName(f"Invalid namespace name {quoted(text)}; valid: tenant/namespace")
        check_part("tenant", parts[0])
        check_part("namespace", parts[1])
        return NamespaceName(parts[0], parts[1])

    def __str__(self) -> str:
        return f"{self.tenant}/{self.local}"


@dataclass(frozen=True, slots=True)
class SubscriptionName:
    """A subscription of a topic; its text is that of the topic with ``/subscription/NAME``, the name URL-encoded."""

    topic: TopicName
    local: str

    @staticmethod
    def parse(text: str) -> SubscriptionName:
        """Return the subscription that ``text`` names. Raises :class:`InvalidName`."""
        path, _, encoded = text.rpartition("/")
        if not path.endswith(_SUBSCRIPTION):
            valid = f"persistent://tenant/namespace/topic{_SUBSCRIPTION}/NAME"
            raise InvalidName(f"Invalid subscription name {quoted(text)}; valid: {valid}")
        local = decode_local(encoded)
        check_subscription(local)
        return SubscriptionName(TopicName.parse(path.removesuffix(_SUBSCRIPTION)), local)

    def __str__(self) -> str:
        return f"{self.topic}{_SUBSCRIPTION}/{quote(self.local, safe='')}"


def check_part(what: str, text: str) -> None:
    """Check the name of a tenant or namespace. Raises :class:`InvalidName` if ``text`` cannot be one."""
    if not _PART.fullmatch(text):
        raise InvalidName(f"Invalid {what} name {quoted(text)}; valid: letters, digits and the characters - = : . _")


def check_local(what: str, text: str) -> None:
    """Check the local name of a topic. Raises :class:`InvalidName` if ``text`` cannot be one."""
    if not text:
        raise InvalidName(f"Invalid {what} name: it is empty")
    if text != text.strip():
        raise InvalidName(f"Invalid {what} name {quoted(text)}: it begins or ends with white space")
    # Most names are plain ASCII: one quick test instead of a test of every character.
    if not (text.isascii() and text.isprintable()) and any(
        unicodedata.category(character) in _UNPRINTABLE for character in text
    ):
        raise InvalidName(f"Invalid {what} name {quoted(text)}: it has characters that cannot be printed")


def check_subscription(text: str) -> None:
    """Check the name of a subscription. Raises :class:`InvalidName` if ``text`` cannot be one."""
    check_local("subscription", text)
    size = len(text.encode())
    if size > MAX_SUBSCRIPTION_NAME_BYTES:
        raise InvalidName(
            f"Invalid subscription name {quoted(text)}: it has {size} bytes;"
            f" valid: at most {MAX_SUBSCRIPTION_NAME_BYTES}"
        )


def decode_local(encoded: str) -> str:
    """Return a topic's own name from its URL-encoded form in a path (``a%2Fb``; a plus sign is a plus sign).

    For raw paths only: most HTTP libraries decode the parts of a path themselves. Raises :class:`InvalidName`.
    """
    try:
        return unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise InvalidName(f"Invalid topic name {quoted(encoded)}: what it encodes is not UTF-8") from None


def decode_subscription(part: str) -> str:
    """Return a subscription's name from a part of a path that was decoded once.

    Java's admin client encodes it twice, and Pulsar decodes it twice. Without an escape it is the name, a plus sign
    too. Raises :class:`InvalidName`.
    """
    if re.search("%[0-9A-Fa-f]{2}", part) is None:
        return part
    try:
        return unquote_plus(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidName(f"Invalid subscription name {quoted(part)}: what it encodes is not UTF-8") from None
