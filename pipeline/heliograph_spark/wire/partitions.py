"""The partitions that a query reads, where each begins and ends, and where the query begins and ends in it."""

from __future__ import annotations

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.options import ReadOptions
from heliograph_spark.plan.positions import BEGINNING, Edge, Position
from heliograph_spark.plan.side_by_side import for_each
from heliograph_spark.plan.topics import find_topics, of_topic

from .brokers import Brokers
from .entry_reader import EARLIEST, EntryReader, Start

#: Time (s) within which a broker gives the first of the entries that it says are stored.
_FIRST_WITHIN_S = 30.0


def find_partitions(brokers: Brokers, options: ReadOptions) -> list[str]:
    """Return the partitions (or topics without any) that the query reads, sorted by name; as :func:`find_topics`."""
    found = for_each(find_topics(options), brokers.partition_names)
    return sorted({partition for partitions in found for partition in partitions})


def first_position(brokers: Brokers, topic: str, at_ms: int | None = None) -> Position | None:
    """Return the place before the first stored entry, or the first published from ``at_ms`` on; None without any."""
    start = EARLIEST if at_ms is None else Start.published(at_ms)
    # One entry is enough: no more of them are asked for.
    with EntryReader(brokers, topic, start, {"receiver_queue_size": 1}) as reader:
        if reader.begins_at_end():
            return None
        entries = reader.read(_FIRST_WITHIN_S)
        if not entries:
            raise PulsarSourceError(f"finding where {topic} begins: nothing came in {_FIRST_WITHIN_S:g} s")
        return Position(entries[0].ledger, entries[0].entry).before()


def last_position(brokers: Brokers, topic: str, options: ReadOptions) -> Position | None:
    """Return the last message that is stored, or that the compacted view has if that is read; None without any."""
    with EntryReader(brokers, topic, EARLIEST, options.one_by_one) as reader:
        return reader.last_position()


def start_of(brokers: Brokers, topic: str, options: ReadOptions, default: Edge) -> Position:
    """Return the position after which the query begins to read a partition."""
    place = of_topic(options.starting, topic)
    if isinstance(place, Position):
        return place.before()
    if place is None:
        place = "earliest" if isinstance(options.starting, dict) else default
    if place == "latest":
        return last_position(brokers, topic, options) or BEGINNING
    if place == "earliest" and options.reads_compacted:
        # The compacted view has messages from before the first one that is stored.
        return BEGINNING
    found = first_position(brokers, topic, None if place == "earliest" else place)
    if found is None and place != "earliest":
        found = last_position(brokers, topic, options)
    return found or BEGINNING


def end_of(brokers: Brokers, topic: str, options: ReadOptions) -> Position | None:
    """Return the last message that a batch query reads of a partition; None if there is none."""
    place = of_topic(options.ending, topic)
    if isinstance(place, Position):
        return place
    if isinstance(place, int) and (before := first_position(brokers, topic, place)) is not None:
        return before
    return last_position(brokers, topic, options)
