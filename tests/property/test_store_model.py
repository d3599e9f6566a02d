"""The ledger store against a dictionary: appends, trims, drops, rewriting and reopening in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from heliograph_broker.clock import VirtualClock
from heliograph_broker.storage.base.entry import Entry
from heliograph_broker.storage.store import InlineScheduler, LedgerStore
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

_SEGMENT_BYTES = 100_000


def _facts(entry_id: int) -> tuple[int, int, int, int, int, int]:
    """Receive, publish and delivery time, TTL, messages and hash; some with what does not fit narrow rows."""
    jump = entry_id % 31
    return (
        entry_id,
        1 << 40 if jump == 7 else 1000 - jump,
        5 if jump == 13 else 0,
        60_000 if jump == 19 else -1,
        1 + jump,
        jump * 2000,
    )


class _Sink:
    def __init__(self) -> None:
        self.durable: list[tuple[int, int]] = []

    def entries_durable(self, entries: list[Entry]) -> None:
        self.durable += [(entry.ledger_id, entry.entry_id) for entry in entries]

    def entries_failed(self, entries: list[Entry], error: Exception) -> None:
        raise AssertionError(f"not stored: {error}")


class StoreMachine(RuleBasedStateMachine):
    """Three ledgers, each with dense entry ids; the model is what should be readable. Ids are never used again."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.sink = _Sink()
        self.kept: dict[int, dict[int, bytes]] = {1: {}, 2: {}, 3: {}}
        self.ids = {1: 1, 2: 2, 3: 3}
        self.next_entry = {1: 0, 2: 0, 3: 0}
        self.totals = {1: 0, 2: 0, 3: 0}
        self.metadata: dict[bytes, bytes] = {}
        self.ledger_ids: set[int] = set()
        self.clock = VirtualClock()

    @initialize()
    def open(self) -> None:
        self.store = LedgerStore.open(
            Path(self._directory.name) / "d",
            self.clock,
            scheduler=InlineScheduler(),
            segment_bytes=_SEGMENT_BYTES,
            disk_reserve_bytes=0,
        )

    @rule(ledger=st.integers(1, 3), sizes=st.lists(st.integers(0, 15_000), min_size=1, max_size=8))
    def append(self, ledger: int, sizes: list[int]) -> None:
        expected = []
        for size in sizes:
            entry_id = self.next_entry[ledger]
            frame = bytes([entry_id % 251]) * size
            self.totals[ledger] += size
            entry = Entry(self.ids[ledger], entry_id, *_facts(entry_id), entry_id + 1, self.totals[ledger], frame)
            self.store.writer.append(self.sink, entry)
            self.kept[ledger][entry_id] = frame
            expected.append((self.ids[ledger], entry_id))
            self.next_entry[ledger] += 1
        assert self.store.writer.pending_bytes == sum(sizes)
        self.store.writer.commit()
        assert self.sink.durable[-len(expected) :] == expected
        assert self.store.writer.pending_bytes == 0

    @rule(key=st.binary(min_size=1, max_size=6), value=st.binary(max_size=40))
    def put(self, key: bytes, value: bytes) -> None:
        self.store.writer.put(b"m/" + key, value)
        self.store.writer.commit()
        self.metadata[b"m/" + key] = value

    @precondition(lambda self: self.metadata)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.metadata)))
        self.store.writer.delete(key)
        self.store.writer.commit()
        del self.metadata[key]

    @rule(ledger=st.integers(1, 3), share=st.floats(0, 1))
    def trim(self, ledger: int, share: float) -> None:
        below = int(self.next_entry[ledger] * share)
        self.store.segments.trim(self.ids[ledger], below)
        self.kept[ledger] = {entry: frame for entry, frame in self.kept[ledger].items() if entry >= below}

    @rule(ledger=st.integers(1, 3))
    def drop(self, ledger: int) -> None:
        self.store.ledgers.delete(self.ids[ledger])
        self.store.writer.commit()
        self.kept[ledger] = {}
        self.ids[ledger] = max(self.ids.values()) + 1
        self.next_entry[ledger] = self.totals[ledger] = 0

    @rule(times=st.integers(1, 3), seconds=st.integers(0, 20))
    def maintain(self, times: int, seconds: int) -> None:
        self.clock.advance_ms(seconds * 1000)
        for _ in range(times):
            self.store.maintain()
            self.store.writer.commit()

    @rule(ledger=st.integers(1, 3), share=st.floats(0, 1))
    def search(self, ledger: int, share: float) -> None:
        if entries := self.kept[ledger]:
            low, high = min(entries), max(entries) + 1
            # The receive time is the entry id here.
            wanted = low + int((high - low) * share)
            assert (
                self.store.reader.first_entry_where(
                    self.ids[ledger], low, high, lambda header: header.receive_ms >= wanted
                )
                == wanted
            )

    @rule(groups=st.integers(2, 6), share=st.floats(0.3, 0.95))
    def churn(self, groups: int, share: float) -> None:
        """Ledgers in turn, so that every segment has some of each; then let most of each go."""
        for group in range(groups):
            for ledger in self.kept:
                self.append(ledger, [12_000 + 500 * group] * 2)
        for ledger, entries in self.kept.items():
            below = min(entries) + int(len(entries) * share)
            self.store.segments.trim(self.ids[ledger], below)
            self.kept[ledger] = {entry: frame for entry, frame in entries.items() if entry >= below}
        self.maintain(3, 20)

    @rule()
    def new_ledger_id(self) -> None:
        ledger_id = self.store.ledger_ids.next()
        assert ledger_id not in self.ledger_ids
        self.ledger_ids.add(ledger_id)
        self.store.writer.commit()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()
        self.store.ledgers.retain(
            {
                self.ids[ledger]: min(entries) if entries else self.next_entry[ledger]
                for ledger, entries in self.kept.items()
            }
        )

    @rule(ledger=st.integers(1, 3), max_bytes=st.integers(1, 100_000))
    def read_all(self, ledger: int, max_bytes: int) -> None:
        wanted = self.kept[ledger]
        found: dict[int, bytes] = {}
        at = min(wanted) if wanted else self.next_entry[ledger]
        while at < self.next_entry[ledger]:
            result: list[list[Entry] | Exception] = []
            self.store.reader.read(self.ids[ledger], at, self.next_entry[ledger] - 1, max_bytes, result.append)
            (entries,) = result
            assert isinstance(entries, list)
            assert entries
            for entry in entries:
                assert entry.entry_id == at
                assert entry.total_messages == at + 1
                facts = (entry.receive_ms, entry.publish_ms, entry.deliver_at_ms, entry.ttl_ms)
                assert (*facts, entry.messages, entry.key_hash) == _facts(at)
                found[at] = entry.frame
                at += 1
        assert found == wanted

    @invariant()
    def metadata_is_kept(self) -> None:
        if hasattr(self, "store"):
            assert dict(self.store.metadata.scan(b"m/")) == self.metadata

    @invariant()
    def live_bytes_are_exact(self) -> None:
        if hasattr(self, "store"):
            live = sum(len(frame) for entries in self.kept.values() for frame in entries.values())
            assert self.store.segments.live_bytes() == live

    @invariant()
    def headers_are_found(self) -> None:
        for ledger, entries in self.kept.items():
            if entries and hasattr(self, "store"):
                last = max(entries)
                header = self.store.reader.header(self.ids[ledger], last)
                assert header is not None
                assert header.size == len(entries[last])
                assert header.total_bytes == self.totals[ledger]
                bounds = self.store.segments.bounds(self.ids[ledger])
                assert bounds is not None
                assert bounds[0] <= min(entries)
                assert bounds[1] == last

    def teardown(self) -> None:
        self.store.close()
        self._directory.cleanup()


TestStoreModel = StoreMachine.TestCase
TestStoreModel.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
