"""Defects by which one topic's or entry's trouble becomes everybody's, or does not end."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol.frames import EntryError
from heliograph_broker.messaging.base.containment import Containment
from heliograph_broker.messaging.delivery import dispatcher
from heliograph_broker.messaging.delivery.dispatcher import Dispatcher
from heliograph_broker.messaging.policies import dead_letter, expiry, expiry_run
from heliograph_broker.messaging.policies.dead_letter import DeadLetters
from heliograph_broker.messaging.policies.expiry import Expiry
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.standalone import _TICK_S, Standalone
from heliograph_broker.usecases import publishing

from .patches import Defect, Patch

# 4: what raises in a tick ends the ticks


def _tick_unguarded(self: Any) -> None:
    self.broker.ticks.run()
    self._tick = self._loop.call_later(_TICK_S, self._on_tick)


def _contain_nothing(self: Any, owner: Any, task: str, error: Exception, again: Any = None) -> None:
    raise error


# 5: a run of dead letters settles as a whole, or not at all

_forward = DeadLetters.forward


def _forward_as_one(
    self: Any, target: str, subscription: Any, expiring: Any, now_ms: int, settle: Any, ended: Any
) -> None:
    settled: list[tuple[Any, int]] = []

    def end(error: str | None, takes_nothing: bool) -> None:
        if error is None:
            for entry, bits in settled:
                settle(entry, bits)
        ended(error, takes_nothing)

    _forward(self, target, subscription, expiring, now_ms, lambda entry, bits: settled.append((entry, bits)), end)


# 7: the totals move before all is checked

_publish = Topic.publish


def _publish_counting_first(
    self: Any, producer: Any, sequence_id: int, highest: int, metadata: Any, frame: bytes
) -> None:
    before = self.log.next_offset
    _publish(self, producer, sequence_id, highest, metadata, frame)
    if self.log.next_offset == before:
        # It was refused after it had been counted.
        self.log.next_messages += metadata.num_messages_in_batch
        self.log.next_bytes += len(frame)


# 8: a poison entry ends the expiry of its subscription


def _raise_poison(subscription: Any, offset: int, reason: str) -> None:
    raise EntryError(reason)


def _stay_running(self: Any, due: Any, error: Exception) -> None:
    """``running`` stays set: nothing runs again."""


# 12: lost entries are waited for, without a pause


def _read_at_once(self: Any, error: Exception) -> None:
    self.notify()


DEFECTS = {
    "tick-unguarded": Defect(
        "4",
        "an exception in a tick is not contained, and ends the ticks",
        (Patch(Standalone, "_on_tick", _tick_unguarded), Patch(Containment, "failed", _contain_nothing)),
    ),
    "letters-as-one": Defect(
        "5",
        "a run of dead letters settles when all of them are stored, or none",
        (Patch(DeadLetters, "forward", _forward_as_one),),
    ),
    "totals-first": Defect(
        "7",
        "a message that is refused has moved the totals",
        (
            Patch(Topic, "publish", _publish_counting_first),
            Patch(publishing, "check_count", lambda metadata, entry, offset: None),
        ),
    ),
    "expiry-stuck": Defect(
        "8",
        "an entry that cannot be read keeps its subscription's expiry running forever",
        (
            Patch(expiry, "skip_entry", _raise_poison),
            Patch(expiry_run, "skip_entry", _raise_poison),
            Patch(dead_letter, "skip_entry", _raise_poison),
            Patch(Expiry, "suspend", _stay_running),
        ),
    ),
    "reads-at-once": Defect(
        "12",
        "a read that brings nothing is repeated at once",
        (
            Patch(Dispatcher, "failed_to_read", _read_at_once),
            Patch(dispatcher, "lost_range", lambda topic, first, result: None),
        ),
    ),
}
