"""Names of topics and namespaces as Pulsar writes them."""

from __future__ import annotations

import re
from functools import lru_cache

_PART = re.compile(r"[-=:.\w]+")
_PARTITION = re.compile(r"^(.+)-partition-(0|[1-9][0-9]*)$", re.DOTALL)
_DOMAINS = ("persistent", "non-persistent")


class InvalidName(ValueError):
    """The text is not a name; the message says why and what a name looks like."""


class TopicName:
    """A full topic name; make it with :meth:`parse`. Equal names are equal objects' values and hash alike."""

    __slots__ = ("_text", "domain", "local", "namespace", "namespace_name", "partition", "tenant")

    def __init__(self, domain: str, tenant: str, namespace: str, local: str) -> None:
        self.domain = domain
        self.tenant = tenant
        self.namespace = namespace
        self.local = local
        self.namespace_name = f"{tenant}/{namespace}"
        match = _PARTITION.match(local)
        self.partition = int(match.group(2)) if match else -1
        self._text = f"{domain}://{tenant}/{namespace}/{local}"

    @staticmethod
    @lru_cache(maxsize=65536)
    def parse(text: str) -> TopicName:
        """Return the name ``text`` stands for, short forms completed. Raises :class:`InvalidName`."""
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            parts = rest.split("/")
            if len(parts) == 1:
                parts = ["public", "default", parts[0]]
            elif len(parts) != 3:
                raise InvalidName(f"Invalid short topic name '{text}': it should be 'topic' or 'tenant/namespace/topic'")
        else:
            if domain not in _DOMAINS:
                raise InvalidName(f"Invalid topic domain '{domain}': it should be persistent or non-persistent")
            parts = rest.split("/", 2)
            if len(parts) != 3:
                raise InvalidName(f"Invalid topic name '{text}': it should be {domain}://tenant/namespace/topic")
        tenant, namespace, local = parts
        check_part("tenant", tenant)
        check_part("namespace", namespace)
        if not local or local != local.strip() or any(ord(c) < 32 or ord(c) == 127 for c in local):
            raise InvalidName(f"Invalid topic name '{text}': the topic's own name is empty or has control characters")
        return TopicName(domain, tenant, namespace, local)

    @property
    def is_persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def base(self) -> TopicName:
        """The partitioned topic this is a partition of; any other topic itself."""
        if self.partition < 0:
            return self
        return TopicName.parse(f"{self.domain}://{self.namespace_name}/{self.local.rpartition('-partition-')[0]}")

    def with_partition(self, index: int) -> TopicName:
        return TopicName.parse(f"{self._text}-partition-{index}")

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"TopicName({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicName) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def check_part(what: str, text: str) -> None:
    """Raises :class:`InvalidName` unless ``text`` may name a tenant or namespace."""
    if not _PART.fullmatch(text):
        raise InvalidName(f"Invalid {what} name '{text}': letters, digits and -=:._ are allowed")
