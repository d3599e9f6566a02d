"""Lists of a namespace's topics for pattern subscriptions: filter, hash, and watchers told of changes (PIP-145)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable

import re2
from crc32c import crc32c

from .errors import PreconditionFailed


def topics_hash(topics: Iterable[str]) -> str:
    """Return the hash clients compare lists by: CRC32-C of the sorted names joined by commas, little-endian hex."""
    return struct.pack("<I", crc32c(",".join(sorted(topics)).encode())).hex()


class TopicPattern:
    """A client's regular expression over topic names, matched without the ``persistent://`` part, as Pulsar does.

    RE2 matches in linear time, so that no client's pattern can hold up the event loop. Raises
    :class:`PreconditionFailed` if it is not a regular expression.
    """

    __slots__ = ("_compiled",)

    def __init__(self, pattern: str) -> None:
        _, separator, rest = pattern.partition("://")
        source = rest if separator else pattern
        try:
            self._compiled = re2.compile(_without_java_quotes(source))
        except re2.error as error:
            raise PreconditionFailed(f"topics pattern '{pattern}' is not a regular expression: {error}") from error

    def matches(self, topic: str) -> bool:
        return self._compiled.fullmatch(topic.partition("://")[2]) is not None


def _without_java_quotes(pattern: str) -> str:
    return re.sub(r"\\Q(.*?)(?:\\E|$)", lambda quoted: re.escape(quoted.group(1)), pattern, flags=re.DOTALL)


class TopicListWatcher:
    """A client that wants to hear of topics matching its pattern appear and disappear."""

    __slots__ = ("namespace", "pattern", "topics", "update")

    def __init__(
        self,
        namespace: str,
        pattern: TopicPattern,
        topics: Iterable[str],
        update: Callable[[list[str], list[str], str], None],
    ) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.topics = set(topics)
        #: called with new topics, deleted topics, and the hash of the list after the change
        self.update = update

    def topic_created(self, namespace: str, topic: str) -> None:
        if namespace == self.namespace and topic not in self.topics and self.pattern.matches(topic):
            self.topics.add(topic)
            self.update([topic], [], topics_hash(self.topics))

    def topic_deleted(self, namespace: str, topic: str) -> None:
        if namespace == self.namespace and topic in self.topics:
            self.topics.discard(topic)
            self.update([], [topic], topics_hash(self.topics))
