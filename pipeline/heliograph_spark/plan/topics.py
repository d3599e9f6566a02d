"""Finds the partitions that a query reads, and their start and end, by asking the broker before anything is read."""

from __future__ import annotations

import re
import time
from typing import Any

import pulsar

from .connection import ask_admin, topic_path
from .errors import OptionError, PulsarSourceError, named
from .ledgers import Ledger, Ledgers
from .options import Connection, ReadOptions, full_name
from .positions import BEGINNING, Edge, Position

#: A broker that says something can be read gives it within this time.
_FIRST_WITHIN_MS = 30_000
#: Suffix of a partition's name after its topic's.
PARTITION = re.compile(r"-partition-\d+$")


def topic_of(partition: str) -> str:
    """Return the topic's name without the number of the partition."""
    return PARTITION.sub("", partition)


def find_topics(options: ReadOptions) -> list[str]:
    """Return the whole names of the topics that the query reads, a partitioned one by the name of the whole, in order.

    With ``admin.url`` a topic that is not there is refused; without it the client would create it. Raises
    :class:`PulsarSourceError`, naming the topic.
    """
    if options.pattern is not None:
        return _matching(options.connection, options.pattern)
    if options.connection.admin_url is not None:
        for topic in options.topics:
            _check_is_there(options, topic)
    return list(options.topics)


def find_partitions(client: pulsar.Client, options: ReadOptions) -> list[str]:
    """Return the partitions (or topics without any) that the query reads, sorted by name; as :func:`find_topics`."""
    partitions = set()
    for topic in find_topics(options):
        with named(f"looking up {topic}"):
            partitions.update(client.get_topic_partitions(topic))
    return sorted(partitions)


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


def _first(reader: pulsar.Reader) -> pulsar.Message | None:
    if not reader.has_message_available():
        return None
    return reader.read_next(_FIRST_WITHIN_MS)


def first_position(client: pulsar.Client, topic: str, at_ms: int | None = None) -> Position | None:
    """Return the place before the first stored message, or the first published from ``at_ms`` on; None without any."""
    with named(f"finding where {topic} begins"):
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=1)
        try:
            if at_ms is not None:
                reader.seek(at_ms)
            message = _first(reader)
        finally:
            reader.close()
    return None if message is None else Position.of(message.message_id()).before()


def last_position(client: pulsar.Client, topic: str) -> Position | None:
    """Return the last message stored; None if there is none."""
    with named(f"finding where {topic} ends"):
        reader = client.create_reader(
            topic, pulsar.MessageId.latest, receiver_queue_size=1, start_message_id_inclusive=True
        )
        try:
            found: Position | None = None
            while reader.has_message_available():
                place = Position.of(reader.read_next(_FIRST_WITHIN_MS).message_id())
                if found is not None and place.entry_key != found.entry_key:
                    # Published since: following a topic that is written to fast would have no end.
                    break
                found = place
        finally:
            reader.close()
    return found


def _of_topic(place: Any, topic: str) -> Any:
    if not isinstance(place, dict):
        return place
    return place.get(topic, place.get(topic_of(topic)))


def check_named_topics(options: ReadOptions, partitions: list[str]) -> None:
    """Raise :class:`OptionError` for offsets or times of a topic that the query does not read."""
    read = {*partitions, *map(topic_of, partitions)}
    for name, place in (("starting", options.starting), ("ending", options.ending)):
        if isinstance(place, dict) and (others := sorted(place.keys() - read)):
            raise OptionError(f"{name}Offsets or {name}Time: {', '.join(others)} is not among the topics read")


def start_of(client: pulsar.Client, topic: str, options: ReadOptions, default: Edge) -> Position:
    """Return the position after which the query begins to read a partition."""
    place = _of_topic(options.starting, topic)
    if isinstance(place, Position):
        return place.before()
    if place is None:
        place = "earliest" if isinstance(options.starting, dict) else default
    if place == "latest":
        return last_position(client, topic) or BEGINNING
    found = first_position(client, topic, None if place == "earliest" else place)
    if found is None and place != "earliest":
        found = last_position(client, topic)
    return found or BEGINNING


def end_of(client: pulsar.Client, topic: str, options: ReadOptions) -> Position | None:
    """Return the last message that a batch query reads of a partition; None if there is none."""
    place = _of_topic(options.ending, topic)
    if isinstance(place, Position):
        return place
    if isinstance(place, int) and (before := first_position(client, topic, place)) is not None:
        return before
    return last_position(client, topic)


def ledgers_of(connection: Connection, topic: str) -> Ledgers:
    """Return the ledgers of a partition. Raises :class:`PulsarSourceError` if it is gone."""
    stats = _internal_stats(connection, topic)
    listed = stats["ledgers"]
    found = [Ledger(each["ledgerId"], each["entries"], each["size"], each.get("firstEntry", 0)) for each in listed]
    added: int | None = stats["entriesAddedCounter"]
    if any("firstEntry" not in each for each in listed):
        # Pulsar's: it has the ledger that is written to apart, and reads one number after the other.
        if found and found[-1].entries == 0:
            found[-1] = Ledger(found[-1].id, stats["currentLedgerEntries"], stats["currentLedgerSize"])
        if _internal_stats(connection, topic)["entriesAddedCounter"] != added:
            added = None
    return Ledgers(tuple(found), added)


def _internal_stats(connection: Connection, topic: str) -> Any:
    stats = ask_admin(connection, f"{topic_path(full_name(topic))}/internalStats")
    if stats is None:
        raise PulsarSourceError(f"there is no topic {topic}")
    return stats
