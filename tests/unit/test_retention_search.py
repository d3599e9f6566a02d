"""Offsets looked up by what only grows along a topic: the search against asking every entry."""

from __future__ import annotations

from pathlib import Path

from heliograph_broker.messaging.log.retention import first_received_after

from tests.support.core import Core


def test_the_first_entry_received_after_a_time_is_found_in_any_ledger(tmp_path: Path) -> None:
    core = Core(tmp_path / "d", ledger_max_entries=7)
    topic = core.topic()
    # A subscription keeps them.
    topic.create_subscription("s")
    producer = core.producer(topic)
    received: list[int] = []
    for number in range(60):
        # Some at the same time, some later.
        core.clock.advance_ms(number % 3)
        received.append(core.clock.now_ms())
        core.publish(producer, b"m%d" % number)
        core.commit()
    assert len(topic.log.ledgers) > 5
    assert topic.log.end_offset == 60
    for low in (0, 1, 6, 7, 8, 30, 59, 60):
        for time_ms in range(received[0] - 2, received[-1] + 2):
            expected = next((offset for offset in range(low, 60) if received[offset] > time_ms), 60)
            assert first_received_after(topic.log, low, time_ms) == expected, (low, time_ms)
    core.close()
