"""A broker whose wall clock others may set while it runs: ``python -m tests.faults.shifted_broker OFFSET-FILE …``.

The file holds eight bytes, the ms by which the broker's wall clock is ahead of the machine's; its monotonic clock is
the machine's. The remaining arguments are those of ``heliograph standalone`` for the directory and the ports.
"""

from __future__ import annotations

import argparse
import asyncio
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

import uvloop
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.logging_setup import configure_logging
from heliograph_broker import clock
from heliograph_broker.standalone import Standalone

from tests.support.broker_process import BrokerProcess

#: Time (s) before this broker believes a wall clock that was set.
CONFIRM_S = 5.0
_OFFSET = struct.Struct("<q")


class ShiftedClock:
    """The machine's clocks, the wall clock moved by what the file says."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), _OFFSET.size)

    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(_OFFSET.unpack_from(self._offset)[0])


class ShiftedBroker(BrokerProcess):
    """Such a broker as a process; :meth:`set_clock` moves its wall clock at once."""

    def __init__(self, data_dir: Path, environment: dict[str, str]) -> None:
        super().__init__(data_dir, environment=environment)
        self._offset_path = data_dir.with_name("clock-offset")
        self._offset_path.write_bytes(_OFFSET.pack(0))

    @property
    def command(self) -> list[str]:
        found = super().command
        options = found[found.index("standalone") + 1 :]
        return [sys.executable, "-m", "tests.faults.shifted_broker", str(self._offset_path), *options]

    def set_clock(self, ahead_ms: int) -> None:
        with self._offset_path.open("r+b") as file:
            file.write(_OFFSET.pack(ahead_ms))

    def now_ms(self) -> int:
        """Return what its wall clock says."""
        return time.time_ns() // 1_000_000 + int(_OFFSET.unpack(self._offset_path.read_bytes())[0])


async def _serve(config: BrokerConfig, moved: ShiftedClock) -> None:
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    broker = Standalone(config, [], clock=moved)
    await broker.start()
    print("ready", *broker.urls, flush=True)
    await ending.wait()
    await broker.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("offset", type=Path)
    parser.add_argument("--data-dir")
    parser.add_argument("--broker-port", type=int)
    parser.add_argument("--http-port", type=int)
    parser.add_argument("--broker-tls-port", type=int)
    parser.add_argument("--https-port", type=int)
    given = vars(parser.parse_args())
    configure_logging()
    # A test cannot wait as long as a broker does before it believes a clock that was set.
    clock.CONFIRM_S = CONFIRM_S
    shifted = ShiftedClock(given.pop("offset"))
    uvloop.run(_serve(BrokerConfig.from_environment(os.environ, **given), shifted))
