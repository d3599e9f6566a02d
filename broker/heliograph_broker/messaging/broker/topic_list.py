"""Lists of a namespace's topics for pattern subscriptions: filter, hash, and updates for watchers (PIP-145).

The hash is of the whole list, so that a change costs as much as the list is long. It is computed once for all changes
of a tick and all watchers of a pattern: five hundred new partitions and twenty watchers cost one hash.

A new topic is matched by all patterns at once, but for those that take long: these match it in turns, of which a tick
has time for some. So hundreds of slow patterns delay their own watchers, and nobody else.
"""

from __future__ import annotations

import re
import struct
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import re2
from crc32c import crc32c
from heliograph_api.values.names import base_name
from heliograph_api.values.quoting import quoted

from heliograph_broker.messaging.base.errors import InvalidTopicName

#: Called with new topics, deleted topics, and the hash of the list after the changes.
Update = Callable[[list[str], list[str], str], None]


MAX_PATTERN: Final = 4096
"""The most characters of a pattern."""
#: The most bytes of what RE2 compiles of a pattern, and of its states.
_MAX_COMPILED: Final = 64 * 1024
#: CPU time (s) for all topics of a namespace, and for each of them, above both of which a pattern is given up. Those
#: that people write take some microseconds for each.
_MOST_S: Final = 0.1
_MOST_PER_TOPIC_S: Final = 50e-6
_CHECK_EVERY: Final = 32
#: CPU time (s) that a tick has for patterns that take long.
_TURNS_S: Final = 10e-3
#: A name of a length that is usual at the most, by which patterns are measured before there are topics.
_SPECIMEN: Final = "ab" * 50
#: Begins RE2's words for a pattern that takes more.
_TOO_LARGE: Final = "pattern too large"


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _MAX_COMPILED
    # Groups would be found by slower algorithms, and the log is not the client's.
    options.never_capture = True
    options.log_errors = False
    return options


_OPTIONS: Final = _options()


class PatternTooLarge(InvalidTopicName):
    """A client's regular expression would take too long to match."""


def topics_hash(topics: Iterable[str]) -> str:
    """Return the hash clients compare lists by: CRC32-C of the sorted names joined by commas, little-endian hex."""
    return struct.pack("<I", crc32c(",".join(sorted(topics)).encode())).hex()


class TopicPattern:
    """A client's regular expression over topic names, matched as Pulsar does: without ``persistent://`` and partition.

    So the pattern of one partitioned topic's name finds its partitions, by which the Java client looks for them. RE2
    matches in linear time, but also proportional to the size of what it compiles, which a few characters can make large
    (``(.{0,100}){0,10}``). So that is limited, too, and no client's pattern takes more than about a millisecond for a
    topic. For many topics, one that is far slower than those that people write is given up. Raises
    :class:`PatternTooLarge`, or :class:`InvalidTopicName` if it is not a regular expression.
    """

    __slots__ = ("_compiled", "slow", "source")

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise PatternTooLarge(
                f"topics pattern {quoted(pattern)} has {len(pattern)} characters; valid: at most {MAX_PATTERN}"
            )
        self.source = pattern
        #: Whether the match that was measured last took long.
        self.slow = False
        before, separator, rest = pattern.partition("://")
        # A quotation goes on where it began with the domain.
        source = ("\\Q" if "\\Q" in before else "") + rest if separator else pattern
        try:
            self._compiled = re2.compile(_without_java_quotes(source), _OPTIONS)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace")
            if reason.startswith(_TOO_LARGE):
                raise self._too_slow() from error
            raise InvalidTopicName(f"topics pattern {quoted(pattern)} is not a regular expression: {reason}") from error

    def of(self, topics: Iterable[str]) -> list[str]:
        """Return the topics that match. Raises :class:`PatternTooLarge` for a pattern that takes too long for all."""
        found: list[str] = []
        began = time.thread_time()
        for number, topic in enumerate(topics, 1):
            if self.matches(topic):
                found.append(topic)
            if not number % _CHECK_EVERY:
                took_s = time.thread_time() - began
                if took_s > _MOST_S and took_s > number * _MOST_PER_TOPIC_S:
                    raise self._too_slow()
        return found

    def _too_slow(self) -> PatternTooLarge:
        return PatternTooLarge(
            f"topics pattern {quoted(self.source)} takes too long to match; valid: one with fewer or shorter"
            " repetitions and alternatives"
        )

    def measured(self, topic: str) -> bool:
        """Return whether a topic matches, and measure that."""
        began = time.thread_time()
        found = self.matches(topic)
        self.slow = time.thread_time() - began > _MOST_PER_TOPIC_S
        return found

    def matches(self, topic: str) -> bool:
        return self._compiled.fullmatch(base_name(topic.partition("://")[2])) is not None


def _without_java_quotes(pattern: str) -> str:
    return re.sub(r"\\Q(.*?)(?:\\E|$)", lambda quoted: re.escape(quoted.group(1)), pattern, flags=re.DOTALL)


class TopicListWatcher:
    """A client that is notified when topics that match its pattern appear or disappear."""

    __slots__ = ("list", "update")

    def __init__(self, watched: WatchedList, update: Update) -> None:
        self.list = watched
        self.update = update


class WatchedList:
    """The topics of a namespace that match a pattern, shared by all its watchers."""

    __slots__ = ("added", "deleted", "names", "namespace", "pattern", "watchers")

    def __init__(self, namespace: str, pattern: TopicPattern, topics: Iterable[str]) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.names = sorted(topics)
        # The first match of a pattern takes longer than all others.
        for _ in range(2):
            pattern.measured(f"persistent://{namespace}/{_SPECIMEN}")
        #: Changes that watchers were not sent yet.
        self.added: dict[str, None] = {}
        self.deleted: dict[str, None] = {}
        self.watchers: dict[TopicListWatcher, None] = {}

    def created(self, topic: str) -> bool:
        """Note a new topic; return whether that changes the list."""
        at = bisect_left(self.names, topic)
        if self.names[at : at + 1] == [topic] or not self.pattern.measured(topic):
            return False
        self.names.insert(at, topic)
        self.added[topic] = None
        return True

    def add(self, topics: Iterable[str]) -> None:
        """Note topics that are known to match, also those that the pattern has not matched yet."""
        for topic in set(topics).difference(self.names):
            insort(self.names, topic)
            self.added[topic] = None

    def removed(self, topic: str) -> bool:
        """Note a deleted topic; return whether that changes the list."""
        at = bisect_left(self.names, topic)
        if self.names[at : at + 1] != [topic]:
            return False
        del self.names[at]
        if topic in self.added:
            # One that is deleted and recreated is reported as both, and clients take the deletion first.
            del self.added[topic]
        else:
            self.deleted[topic] = None
        return True

    def notify(self) -> None:
        """Send all watchers one update with all changes and one hash."""
        if self.added or self.deleted:
            added, deleted = list(self.added), list(self.deleted)
            self.added.clear()
            self.deleted.clear()
            now = topics_hash(self.names)
            for watcher in list(self.watchers):
                watcher.update(added, deleted, now)


class WaitingTopics:
    """New topics of a namespace that its slow patterns have yet to match, in the order of their creation.

    ``turns`` goes on by one match.
    """

    __slots__ = ("creations", "turns")

    def __init__(self) -> None:
        #: topic -> its creation: it may be deleted and recreated while it waits.
        self.creations: dict[str, object] = {}
        self.turns: Iterator[None] = iter(())


class TopicWatches:
    """All watchers of one broker. Changes are collected until :meth:`run` sends them."""

    __slots__ = ("_changed", "_lists", "_waiting")

    def __init__(self) -> None:
        #: namespace -> pattern -> list
        self._lists: dict[str, dict[str, WatchedList]] = {}
        self._changed: dict[WatchedList, None] = {}
        #: namespace -> its topics that wait; the first one has the next turn
        self._waiting: dict[str, WaitingTopics] = {}

    def watch(self, namespace: str, pattern: TopicPattern, topics: Iterable[str], update: Update) -> TopicListWatcher:
        """Add a watcher that already knows the matching ``topics``; it gets all later changes."""
        lists = self._lists.setdefault(namespace, {})
        watched = lists.get(pattern.source)
        if watched is None:
            watched = lists[pattern.source] = WatchedList(namespace, pattern, topics)
        else:
            # The others hear first what this one knows already.
            if namespace in self._waiting:
                topics = list(topics)
                watched.add(topics)
            watched.notify()
        watcher = TopicListWatcher(watched, update)
        watched.watchers[watcher] = None
        return watcher

    def end(self, watcher: TopicListWatcher) -> None:
        """Remove a watcher: its client has disconnected or closed it."""
        watched = watcher.list
        watched.watchers.pop(watcher, None)
        lists = self._lists.get(watched.namespace, {})
        if not watched.watchers and lists.get(watched.pattern.source) is watched:
            del lists[watched.pattern.source]
            self._changed.pop(watched, None)
            if not lists:
                del self._lists[watched.namespace]

    def created(self, namespace: str, topic: str) -> None:
        """Note a new persistent topic."""
        waits = False
        for watched in self._lists.get(namespace, {}).values():
            if watched.pattern.slow:
                waits = True
            elif watched.created(topic):
                self._changed[watched] = None
        if waits:
            waiting = self._waiting.get(namespace)
            if waiting is None:
                waiting = self._waiting[namespace] = WaitingTopics()
                waiting.turns = self._turns(namespace, waiting.creations)
            waiting.creations[topic] = object()

    def deleted(self, namespace: str, topic: str) -> None:
        """Note a deleted topic."""
        if namespace in self._waiting:
            self._waiting[namespace].creations.pop(topic, None)
        for watched in self._lists.get(namespace, {}).values():
            if watched.removed(topic):
                self._changed[watched] = None

    def run(self) -> None:
        """Let slow patterns have their turns, and send the collected changes."""
        if self._waiting:
            self._take_turns()
        if self._changed:
            changed, self._changed = self._changed, {}
            for watched in changed:
                watched.notify()

    def _take_turns(self) -> None:
        """Match waiting topics for the time of a tick; namespaces take turns."""
        ends = time.thread_time() + _TURNS_S
        while self._waiting and time.thread_time() < ends:
            namespace = next(iter(self._waiting))
            waiting = self._waiting.pop(namespace)
            # None: there was a turn.
            if next(waiting.turns, namespace) is None:
                self._waiting[namespace] = waiting

    def _turns(self, namespace: str, creations: dict[str, object]) -> Iterator[None]:
        while creations:
            topic, creation = next(iter(creations.items()))
            # All lists: those that have matched the topic find it again, and a slow one may have become fast meanwhile.
            for watched in list(self._lists.get(namespace, {}).values()):
                if creations.get(topic) is not creation:
                    break
                if watched.watchers and watched.created(topic):
                    self._changed[watched] = None
                yield
            if creations.get(topic) is creation:
                del creations[topic]
