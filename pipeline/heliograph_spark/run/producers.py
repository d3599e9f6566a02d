"""Opens producers, and waits for a name that is still in use."""

from __future__ import annotations

import sys
import time

from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.wire.producer import NameBusy, Producer

#: A broker keeps the producer of a dead connection for up to two keep-alive intervals of 30 s by default; seconds.
_BUSY_FOR_S = 90.0
_TELL_AFTER_S = 10.0


def open_producer(producer: Producer, busy_for_s: float = _BUSY_FOR_S) -> Producer:
    """Open a producer and return it.

    While its name is in use, as by a run that was killed, this waits up to ``busy_for_s`` and says so on stderr.
    Raises :class:`PulsarSourceError`.
    """
    began = time.monotonic()
    printed_at = began
    while True:
        try:
            producer.open()
        except NameBusy as error:
            now = time.monotonic()
            if now - began > busy_for_s:
                raise PulsarSourceError(
                    f"writing to {producer.topic}: the producer name {producer.name} has been in use for"
                    f" {busy_for_s:.0f} s; only one query can use it at a time"
                ) from error
            if printed_at == began or now - printed_at > _TELL_AFTER_S:
                printed_at = now
                text = f"waiting for the producer name {producer.name} on {producer.topic}, which is in use"
                print(text, file=sys.stderr, flush=True)
            time.sleep(1)
        else:
            return producer
