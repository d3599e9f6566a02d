"""An idle broker does next to nothing."""

from __future__ import annotations

import time

import psutil

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually

#: Processor time an idle broker may take: a loop that never ends takes all of one processor.
IDLE_WINDOW_S = 1.0
IDLE_CPU_S = 0.5


def check_idle(broker: BrokerProcess) -> None:
    """Raise :class:`AssertionError` if it stays busy; by its processor time, so that other processes do not matter.

    It first finishes the work that the last clients caused, which takes a slow machine a while.
    """
    process = psutil.Process(broker.pid)

    def idle() -> bool:
        before = sum(process.cpu_times()[:2])
        time.sleep(IDLE_WINDOW_S)
        return bool(sum(process.cpu_times()[:2]) - before < IDLE_CPU_S)

    eventually(idle, what=f"less than {IDLE_CPU_S} s of processor time in {IDLE_WINDOW_S} s")
