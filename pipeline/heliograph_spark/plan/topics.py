"""Finds the partitions that a query reads, and their start and end, by asking the broker before anything is read."""

from __future__ import annotations

import re
import time
from typing import Any

from .connection import ask_admin, topic_path
from .errors import OptionError, PulsarSourceError
from .ledgers import Ledger, Ledgers
from .options import Connection, ReadOptions, full_name
from .side_by_side import for_each

#: Suffix of a partition's name after its topic's.
PARTITION = re.compile(r"-partition-\d+$")


def topic_of(partition: str) -> str:
    """Return the topic's name without the number of the partition."""
    return PARTITION.sub("", partition)


def find_topics(options: ReadOptions) -> list[str]:
    """Return the whole names of the topics that the query reads, a partitioned one by the name of the whole, in order.

    With ``admin.url`` a topic that is not there is refused; without it the client would create it. A pattern does not
    find the dead-letter topics of the query. Raises :class:`OptionError` for one that is read by its name, and
    :class:`PulsarSourceError`, naming the topic.
    """
    rule = options.dead_letters
    if options.pattern is not None:
        found = _matching(options.connection, options.pattern)
        return [each for each in found if rule is None or not rule.takes(each)]
    if rule is not None:
        whole = list(map(topic_of, options.topics))
        if both := sorted({rule.topic_for(each) for each in whole} & {*whole}):
            raise OptionError(f"deadLetterTopic: {both[0]} is one of the topics that are read")
    if options.connection.admin_url is not None:
        for_each(options.topics, lambda topic: _check_is_there(options, topic))
    return list(options.topics)


def _matching(connection: Connection, pattern: str) -> list[str]:
    whole = (
        pattern
        if "://" in pattern
        else "persistent://" + (pattern if pattern.count("/") >= 2 else f"public/default/{pattern}")
    )
    namespace = "/".join(whole.split("://", 1)[1].split("/")[:2])
    listed = ask_admin(connection, f"persistent/{namespace}")
    if listed is None:
        raise PulsarSourceError(f"topicsPattern: there is no namespace {namespace!r}, in which {pattern!r} looks")
    topics = {topic_of(each) for each in listed}
    return sorted(each for each in topics if re.fullmatch(whole, each))


def is_there(connection: Connection, topic: str) -> bool:
    """Whether the broker has the topic, partitioned or not, by its whole name. Raises :class:`PulsarSourceError`."""
    path = topic_path(topic)
    parts = ask_admin(connection, f"{path}/partitions") or {}
    return bool(parts.get("partitions")) or ask_admin(connection, f"{path}/stats") is not None


def deduplicates(connection: Connection, topic: str) -> bool:
    """Whether the topic drops messages that a producer sent before. Raises :class:`PulsarSourceError`."""
    return ask_admin(connection, f"{topic_path(topic)}/deduplicationEnabled?applied=true") is True


def _check_is_there(options: ReadOptions, topic: str) -> None:
    deadline = time.monotonic() + options.poll_timeout_ms / 1000
    while not is_there(options.connection, topic):
        if not options.wait_for_topic:
            raise PulsarSourceError(f"there is no topic {topic}")
        if time.monotonic() > deadline:
            raise PulsarSourceError(
                f"there is no topic {topic}, {options.poll_timeout_ms} ms after asking (pollTimeoutMs)"
            )
        time.sleep(0.2)


def of_topic(place: Any, topic: str) -> Any:
    """Return what offsets or times, of all topics or by topic, say of one; None if they do not name it."""
    if not isinstance(place, dict):
        return place
    return place.get(topic, place.get(topic_of(topic)))


def check_named_topics(options: ReadOptions, partitions: list[str]) -> None:
    """Raise :class:`OptionError` for offsets or times of a topic that the query does not read."""
    read = {*partitions, *map(topic_of, partitions)}
    for name, place in (("starting", options.starting), ("ending", options.ending)):
        if isinstance(place, dict) and (others := sorted(place.keys() - read)):
            raise OptionError(f"{name}Offsets or {name}Time: {', '.join(others)} is not among the topics read")


def ledgers_of(connection: Connection, topic: str) -> Ledgers:
    """Return the ledgers of a partition. Raises :class:`PulsarSourceError` if it is gone."""
    stats = _internal_stats(connection, topic)
    listed = stats["ledgers"]
    found = [Ledger(each["ledgerId"], each["entries"], each["size"], each.get("firstEntry", 0)) for each in listed]
    added: int | None = stats["entriesAddedCounter"]
    recounts = any("firstEntry" not in each for each in listed)
    if recounts:
        # Pulsar's: it has the ledger that is written to apart, and reads one number after the other.
        if found and found[-1].entries == 0:
            found[-1] = Ledger(found[-1].id, stats["currentLedgerEntries"], stats["currentLedgerSize"])
        if _internal_stats(connection, topic)["entriesAddedCounter"] != added:
            added = None
    return Ledgers(tuple(found), added, recounts)


def _internal_stats(connection: Connection, topic: str) -> Any:
    stats = ask_admin(connection, f"{topic_path(full_name(topic))}/internalStats")
    if stats is None:
        raise PulsarSourceError(f"there is no topic {topic}")
    return stats
