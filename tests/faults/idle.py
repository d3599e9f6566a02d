"""An idle broker does next to nothing."""

from __future__ import annotations

import time

import psutil

from tests.support.broker_process import BrokerProcess

#: Processor time an idle broker may take: a loop that never ends takes all of one processor.
IDLE_WINDOW_S = 1.0
IDLE_CPU_S = 0.5
#: The broker first finishes the work that the last clients caused.
_SETTLING_S = 0.3


def check_idle(broker: BrokerProcess) -> None:
    """Raise :class:`AssertionError` if it is busy; by its processor time, so that other processes do not matter."""
    process = psutil.Process(broker.pid)
    time.sleep(_SETTLING_S)
    before = sum(process.cpu_times()[:2])
    time.sleep(IDLE_WINDOW_S)
    taken = sum(process.cpu_times()[:2]) - before
    assert taken < IDLE_CPU_S, f"an idle broker took {taken:.2f} s of processor time in {IDLE_WINDOW_S} s"
