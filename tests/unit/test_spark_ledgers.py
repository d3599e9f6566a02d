"""Deleted entries as the ledgers of a partition show them, in histories in which every entry is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from heliograph_spark.plan.ledgers import Ledger, Ledgers, Loss, within
from heliograph_spark.plan.positions import BEGINNING, Position, read_offsets, write_offsets
from hypothesis import event, given
from hypothesis import strategies as st


@dataclass
class Partition:
    """A partition whose every entry is known; ``exact`` brokers delete by entry and never begin to count again."""

    exact: bool
    #: By ledger: the number of entries added to it. The last one is open.
    ledgers: dict[int, int] = field(default_factory=lambda: {7: 0})
    #: The stored entries, in order.
    stored: list[tuple[int, int]] = field(default_factory=list)
    added: int = 0

    def add(self, count: int) -> None:
        ledger = max(self.ledgers)
        for entry in range(self.ledgers[ledger], self.ledgers[ledger] + count):
            self.stored.append((ledger, entry))
        self.ledgers[ledger] += count
        self.added += count

    def roll(self) -> None:
        last = max(self.ledgers)
        if not self.exact and not self.ledgers[last]:
            # Pulsar discards an empty ledger.
            del self.ledgers[last]
        self.ledgers[last + 3] = 0

    def delete(self, count: int) -> None:
        """Delete the first ``count`` entries, or as many whole ledgers as lie within them."""
        kept = self.stored[count:]
        if not self.exact:
            first = kept[0][0] if kept else max(self.ledgers)
            kept = [place for place in self.stored if place[0] >= first]
        self.stored = kept
        front = kept[0][0] if kept else max(self.ledgers)
        self.ledgers = {number: entries for number, entries in self.ledgers.items() if number >= front}

    def load(self) -> None:
        """The topic is loaded again, as after a restart of its broker."""
        if not self.exact:
            self.roll()
            self.added = 0

    @property
    def listed(self) -> Ledgers:
        found = []
        for number, entries in self.ledgers.items():
            kept = [entry for ledger, entry in self.stored if ledger == number]
            found.append(Ledger(number, len(kept), 10 * len(kept), kept[0] if kept else entries if self.exact else 0))
        return Ledgers(tuple(found), self.added, recounts=not self.exact)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("delete"), st.integers(1, 9)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 9)),
        st.tuples(st.just("load"), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)


@given(st.booleans(), STEPS)
def test_a_query_finds_what_was_deleted_before_it_was_read_and_nothing_else(
    exact: bool, steps: list[tuple[str, int]]
) -> None:
    partition = Partition(exact)
    offset = partition.listed.counted_beginning(BEGINNING)
    lost: list[tuple[int, int]] = []
    loaded = False
    for step, number in steps:
        match step:
            case "add":
                partition.add(number)
            case "roll":
                if exact or partition.ledgers[max(partition.ledgers)]:
                    partition.roll()
            case "delete":
                before = partition.stored
                partition.delete(number)
                lost += [place for place in before if place not in partition.stored and place > offset.entry_key]
            case "load":
                partition.load()
                loaded = loaded or not exact
            case "read":
                listed = partition.listed
                found = listed.lost_after(offset)
                if found is not None and found.entries is None:
                    # Only a ledger that is gone, at a broker that has begun to count again, leaves it open.
                    assert loaded
                    assert offset.ledger not in partition.ledgers
                    event("open")
                elif not loaded:
                    assert (found.entries if found is not None else 0) == len(lost)
                elif found is not None:
                    # The number may be that of another beginning.
                    assert found.entries is not None
                    assert 0 < found.entries <= len(lost)
                elif lost:
                    # As many entries are gone of those that were counted as were counted before.
                    assert offset.added == partition.added - len(partition.stored) > 0
                if found is not None and partition.stored:
                    unread = [place for place in partition.stored if place > offset.entry_key]
                    assert found.before == (Position(*unread[0]) if unread else None)
                event("lost" if lost else "whole")
                unread = [place for place in partition.stored if place > offset.entry_key][: number or None]
                if unread:
                    offset = listed.counted(Position(*unread[-1]))
                    assert offset.added is not None
                    kept = read_offsets(write_offsets({"t": offset}))["t"]
                    assert (kept.added, kept.since) == (offset.added, offset.since)
                    lost = []
                    loaded = False


def test_a_subscription_that_a_ttl_moved_over_the_rest_of_a_ledger_has_lost_it() -> None:
    read = Ledgers((Ledger(1033, 11, 1100),), 111).counted(Position(1033, 10))
    assert read.added == 111
    now = Ledgers((Ledger(1035, 1, 100),), 301)
    assert now.lost_after(read) == Loss(read, Position(1035, 0), 189)
    assert "after 1033:10 and before 1035:0 are gone, 189 entries" in str(now.lost_after(read))


def test_a_stream_that_had_read_all_of_a_ledger_has_lost_nothing_with_it() -> None:
    read = Ledgers((Ledger(3, 5, 500),), 5).counted(Position(3, 4))
    assert Ledgers((Ledger(4, 2, 200),), 7).lost_after(read) is None
    # Nobody can tell if the position comes from an offset without a count.
    unknown = Ledgers((Ledger(4, 2, 200),), 7).lost_after(Position(3, 4))
    assert unknown is not None
    assert unknown.entries is None
    assert "nothing says how many entries ledger 3 had" in str(unknown)


def test_a_position_before_all_that_is_counted_is_not_compared_with_another_beginning() -> None:
    # The broker loaded the topic after 3:4, and again after the entries of ledger 6, which are deleted.
    read = Ledgers((Ledger(3, 5, 500), Ledger(6, 0, 0)), 0, recounts=True).counted(Position(3, 4))
    assert (read.added, read.since) == (0, 6)
    lost = Ledgers((Ledger(9, 0, 0),), 0, recounts=True).lost_after(read)
    assert lost == Loss(read, None, None)
    assert Ledgers((Ledger(6, 2, 200),), 2, recounts=True).lost_after(read) is None
    assert Ledgers((Ledger(7, 2, 200),), 6, recounts=True).lost_after(read) == Loss(read, Position(7, 0), 4)


@given(st.booleans(), st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_entries_that_go_while_a_range_is_read_are_missed_and_others_are_not(
    exact: bool, shape: list[int], data: st.DataObject
) -> None:
    partition = Partition(exact)
    for entries in shape:
        partition.add(entries)
        partition.roll()
    whole = list(partition.stored)
    start = data.draw(st.integers(-1, len(whole) - 1))
    found = data.draw(st.integers(start + 1, len(whole))) if start + 1 < len(whole) else len(whole)
    read = Position(*whole[start]) if start >= 0 else BEGINNING
    planned = within(partition.listed.stored, read, Position(*whole[-1]))
    # Some entries between the two are stored and were not received, because they hold no message.
    partition.delete(data.draw(st.integers(0, found)))
    between = whole[start + 1 : found]
    gone = [place for place in between if place not in partition.stored]
    seen = Position(*whole[found]) if found < len(whole) else Position(whole[-1][0], whole[-1][1] + 1)
    assert partition.listed.lost_between(read, seen, planned) == len(gone)


@given(STEPS, st.randoms(use_true_random=False))
def test_the_lost_entries_of_ranges_that_follow_each_other_are_counted_once(
    steps: list[tuple[str, int]], random: Random
) -> None:
    partition = Partition(exact=True)
    every: list[tuple[int, int]] = []
    offset = partition.listed.counted_beginning(BEGINNING)
    read: set[tuple[int, int]] = set()
    for step, number in [*steps, ("add", 1), ("read", 0)]:
        match step:
            case "add":
                partition.add(number)
                every += partition.stored[-number:]
            case "roll":
                partition.roll()
            case "delete":
                partition.delete(number)
            case "read":
                # Also up to an entry that was there when the end of the query was chosen, and is deleted now.
                unread = [place for place in every if place > offset.entry_key and place[0] in partition.ledgers]
                if not unread:
                    continue
                end = Position(*(random.choice(unread) if number else unread[-1]))
                listed = partition.listed
                lost = offset.lost + listed.lost_up_to(offset, end)
                read |= {place for place in partition.stored if offset.entry_key < place <= end.entry_key}
                offset = read_offsets(write_offsets({"t": listed.counted(end).with_lost(lost)}))["t"]
                assert offset.lost == len([p for p in every if p <= offset.entry_key and p not in read])
                event("lost" if lost else "whole")
    assert offset.entry_key == every[-1]


def test_an_offset_keeps_its_numbers_and_older_ones_have_fewer() -> None:
    for position in (Position(3, 4), Position(3, 4, 5, added=-2), Position(3, -1, lost=7), Position(3, 4, 0, 9, 8)):
        kept = read_offsets(write_offsets({"t": position}))["t"]
        assert (kept, kept.added, kept.lost) == (position, position.added, position.lost)
    assert write_offsets({"t": Position(3, 4, added=9)}) == {"t": "3:4#9"}
    assert write_offsets({"t": Position(3, 4, added=-2, since=5, lost=1)}) == {"t": "3:4#-2@5~1"}
