"""Whichever entries a disk refuses while others are in flight: those of a producer are stored in order, none is lost.

Clients are as the official ones: they send ahead of the answers, and after a connection or a producer was closed they
register again and send all that has no receipt. Without deduplication an entry may be stored twice; a later one is
never stored before an earlier one.
"""

from __future__ import annotations

import tempfile
from collections import deque
from contextlib import nullcontext
from pathlib import Path

from heliograph_api.policies.policies import Policies
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import peek_metadata
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import Core
from tests.support.entries import make_frame
from tests.support.virtual_connection import FarSide, VirtualServer
from tests.support.wire_client import Type

_TOPIC = "t"


class _Publisher:
    """One producer on one connection, which it closes on an error if it ``leaves``; else it waits for the broker."""

    def __init__(self, server: VirtualServer, name: str, *, leaves: bool) -> None:
        self.name = name
        self._server = server
        self._leaves = leaves
        self._next = 0
        self._epoch = -1
        #: What has no receipt, in order, and how much of that was sent since the producer was registered.
        self.pending: deque[int] = deque()
        self.receipted: list[int] = []
        self._connect()

    def _connect(self) -> None:
        self._connection: FarSide = self._server.connect()
        self._register()

    def _register(self) -> None:
        self._open = False
        self._epoch += 1
        self._connection.send(
            Type.PRODUCER, request_id=1, producer_id=1, topic=_TOPIC, producer_name=self.name, epoch=self._epoch,
            user_provided_producer_name=True,
        )  # fmt: skip

    def send(self, count: int) -> None:
        """Publish so many messages; they go out now if the client believes that its producer is registered."""
        for _ in range(count):
            self.pending.append(self._next)
            if self._open:
                self._send(self._next)
            self._next += 1

    def _send(self, number: int) -> None:
        _, entry = make_frame(b"%d" % number, producer=self.name, sequence_id=number)
        self._connection.send(Type.SEND, entry, producer_id=1, sequence_id=number, num_messages=1)

    def hear(self) -> None:
        """Take what the broker has sent, and react to it."""
        for frame in self._connection.take():
            kind, body = frame.command.type, frame.body
            if kind == Type.SEND_RECEIPT:
                # An earlier one's, sent again after its receipt was under way, is no news.
                if self.pending and body.sequence_id == self.pending[0]:
                    self.receipted.append(self.pending.popleft())
            elif kind == Type.SEND_ERROR:
                assert body.error == wire.PersistenceError
                if self._leaves:
                    self._connection.abort()
                    self._connect()
                    return
            elif kind == Type.CLOSE_PRODUCER:
                self._register()
            elif kind == Type.PRODUCER_SUCCESS:
                self._open = True
                for number in self.pending:
                    self._send(number)
            else:
                assert kind != Type.ERROR, body


_SENDS = st.tuples(st.just("send"), st.integers(0, 2), st.integers(1, 6))
_HEARS = st.tuples(st.just("hear"), st.integers(0, 2), st.just(0))
_COMMITS = st.tuples(st.sampled_from(["store", "store", "fail"]), st.just(0), st.just(0))
_WAITS = st.tuples(st.just("wait"), st.just(0), st.sampled_from([60, 600, 1200]))
_SWITCHES = st.tuples(st.just("switch"), st.just(0), st.just(0))
_STEPS = st.lists(st.one_of(_SENDS, _SENDS, _HEARS, _COMMITS, _COMMITS, _WAITS, _SWITCHES), max_size=60)


@settings(deadline=None)
@given(steps=_STEPS, leaves=st.tuples(st.booleans(), st.booleans(), st.booleans()), deduplicated=st.booleans())
def test_entries_of_a_producer_keep_their_order_over_failed_stores(
    steps: list[tuple[str, int, int]], leaves: tuple[bool, bool, bool], deduplicated: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        core = Core(Path(directory) / "data")
        core.broker.namespaces.set_policies("public/default", Policies(deduplication=deduplicated))
        server = VirtualServer(core)
        topic = core.topic()
        core.commit()
        switched = False
        publishers = [_Publisher(server, name, leaves=leave) for name, leave in zip("abc", leaves, strict=True)]
        for kind, actor, number in steps:
            if kind == "send":
                publishers[actor].send(number)
            elif kind == "hear":
                publishers[actor].hear()
            elif kind == "wait":
                server.advance(number)
            elif kind == "switch":
                switched = True
                core.broker.namespaces.set_policies(
                    "public/default", Policies(deduplication=topic.deduplication is None)
                )
            else:
                with core.full_disk() if kind == "fail" else nullcontext():
                    core.commit()
        for _ in range(10):
            server.advance(600)
            for publisher in publishers:
                publisher.hear()
        found: dict[str, list[int]] = {publisher.name: [] for publisher in publishers}
        for entry in core.read_all(topic):
            metadata = peek_metadata(memoryview(entry.frame))
            found[metadata.producer_name].append(metadata.sequence_id)
        for publisher in publishers:
            stored = found[publisher.name]
            assert not publisher.pending
            assert publisher.receipted == list(range(len(publisher.receipted)))
            # No receipt without its entry, and in the order in which they were sent.
            assert list(dict.fromkeys(stored)) == publisher.receipted
            assert switched or not deduplicated or stored == publisher.receipted
        core.close()
