"""Whatever is sent again, lost, failed or killed: everything receipted is stored once, in order, and answered once."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from contextlib import nullcontext
from pathlib import Path

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_api.protocol.frames import parse_entry
from heliograph_broker.messaging.base.errors import PersistenceError
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.delivery.subscription import AckId
from heliograph_broker.messaging.policies import deduplication

from tests.support.core import Client, Core
from tests.support.subscription_types import EXCLUSIVE

#: sequence id, highest sequence id, chunk and chunks of one SEND
Send = tuple[int, int, int, int]


class _Publisher:
    """A client as the official ones are: it keeps what is not answered and sends that again, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client = Client()
        self.producer: Producer | None = None
        self.next_id = 0
        self.pending: deque[Send] = deque()
        self.sent = 0
        #: Answered: receipted, with what position; every SEND it ever counted on.
        self.receipted: list[Send] = []
        self.seen_receipts = 0

    def connect(self, core: Core) -> None:
        if self.producer is not None:
            self.producer.topic.producer_registry.remove(self.producer)
        self.client, self.seen_receipts, self.sent = Client(), 0, 0
        self.producer = core.producer(core.topic(), self.client, self.name)

    def make(self, rng: random.Random) -> None:
        kind = rng.choice(["one", "one", "batch", "chunks"])
        first = self.next_id
        if kind == "one":
            self.pending.append((first, 0, 0, 1))
        elif kind == "batch":
            self.next_id += rng.randint(1, 5)
            self.pending.append((first, self.next_id, 0, 1))
        else:
            count = rng.randint(2, 3)
            self.pending += [(first, 0, chunk, count) for chunk in range(count)]
        self.next_id += rng.randint(1, 3)

    def flush(self, core: Core) -> None:
        """Send what was not sent on this connection yet."""
        assert self.producer is not None
        for sequence_id, highest, chunk, chunks in list(self.pending)[self.sent :]:
            core.publish(
                self.producer,
                b"%d/%d" % (sequence_id, chunk),
                sequence_id=sequence_id,
                highest_sequence_id=highest,
                messages=max(1, highest - sequence_id + 1),
                chunk=(chunk, chunks) if chunks > 1 else None,
            )
        self.sent = len(self.pending)

    def hear(self) -> bool:
        """Take the receipts, which must be in the order of the SENDs; return whether the connection is still good."""
        for sequence_id, _, _ in self.client.receipts[self.seen_receipts :]:
            assert sequence_id == self.pending[0][0], "receipts are not in order"
            self.receipted.append(self.pending.popleft())
            self.sent -= 1
        self.seen_receipts = len(self.client.receipts)
        assert all(isinstance(error, PersistenceError) for _, error in self.client.errors)
        return not self.client.errors


class _History:
    """A random history of two publishers, and an audit that notes and acknowledges what is stored."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.core = Core(directory / "data", ledger_max_entries=11)
        self.publishers = [_Publisher(name) for name in ("a", "b")]
        #: The producer of the entry at each offset, and its number.
        self.stored: dict[int, tuple[str, Send]] = {}
        self._audit = Client()
        self._rng = rng

    def start(self) -> None:
        self.core.broker.namespaces.set_policies("public/default", Policies(deduplication=True))
        self.core.topic().create_subscription("audit")
        self.core.commit()
        self._connect()

    def step(self) -> None:
        """Do one thing to a publisher, or to the broker."""
        core = self.core
        publisher = self._rng.choice(self.publishers)
        step = self._rng.random()
        if step < 0.45:
            publisher.make(self._rng)
            publisher.flush(core)
        elif step < 0.65:
            self._settle()
        elif step < 0.75:
            # The connection is lost: what was not heard is sent again on the next one.
            self._unheard()
            publisher.connect(core)
            publisher.flush(core)
        elif step < 0.82:
            self._settle(fails=True)
        elif step < 0.9:
            core.advance(1000)
            self._settle()
        else:
            self._restart()

    def finish(self) -> None:
        """Send everything until nothing is left to send."""
        for _ in range(2):
            for publisher in self.publishers:
                publisher.flush(self.core)
            self._settle()

    def _connect(self) -> None:
        self._audit = Client()
        for publisher in self.publishers:
            publisher.connect(self.core)
        self.core.consumer(self.core.topic().subscriptions["audit"], EXCLUSIVE, self._audit, permits=100_000)

    def _restart(self) -> None:
        self._unheard()
        for publisher in self.publishers:
            publisher.producer = None
        self.core.close()
        self.core._open()
        self._connect()
        for publisher in self.publishers:
            publisher.flush(self.core)

    def _settle(self, *, fails: bool = False) -> None:
        with self.core.full_disk() if fails else nullcontext():
            self.core.commit()
        self._note_stored()
        for publisher in self.publishers:
            if not publisher.hear():
                publisher.connect(self.core)

    def _unheard(self) -> None:
        """Perhaps make entries durable, and perhaps let them be trimmed, without their receipts being heard."""
        if self._rng.random() < 0.7:
            self.core.commit()
            self._note_stored()
            if self._rng.random() < 0.5:
                self.core.advance(1000)

    def _note_stored(self) -> None:
        """Note what the audit's consumer got, and acknowledge some of it, so that it is trimmed."""
        subscription = self.core.topic().subscriptions["audit"]
        for _, entry, _, _ in self._audit.take():
            metadata = parse_entry(entry.frame).metadata
            send = (
                metadata.sequence_id,
                metadata.highest_sequence_id,
                metadata.chunk_id,
                max(1, metadata.num_chunks_from_msg),
            )
            known = self.stored.setdefault(entry.offset, (metadata.producer_name, send))
            assert known == (metadata.producer_name, send)
            if self._rng.random() < 0.7:
                subscription.acks.acknowledge(None, [AckId(entry.ledger_id, entry.entry_id)], None)


@pytest.mark.parametrize("seed", range(60))
def test_every_history_leaves_each_message_stored_once_and_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "SNAPSHOT_ENTRIES", 8)
    with tempfile.TemporaryDirectory() as directory:
        history = _History(Path(directory), random.Random(seed))
        if seed % 2:
            history.core.keep_nothing()
        history.start()
        for _ in range(60):
            history.step()
        history.finish()
        for publisher in history.publishers:
            assert not publisher.pending
            stored = [send for _, (name, send) in sorted(history.stored.items()) if name == publisher.name]
            promised = [send for send in publisher.receipted if send[2] == send[3] - 1]
            assert [send for send in stored if send[2] == send[3] - 1] == promised
            assert set(stored) == set(publisher.receipted)
        history.core.close()
