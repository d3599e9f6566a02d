"""A broker's core whose files are in memory: a fresh one for each input takes milliseconds and leaves nothing."""

from __future__ import annotations

import random
from pathlib import Path

from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.storage.store import InlineScheduler, LedgerStore

from tests.simulation.disk import SimulatedDisk
from tests.support.core import Core

_CAPACITY = 1 << 30


class MemoryCore(Core):
    """See the module; the disk never fails."""

    def _open(self) -> None:
        self.disk = disk = SimulatedDisk(random.Random(1), _CAPACITY)
        disk.make_directory(Path(self.directory).parent)
        self.store = LedgerStore.open(
            self.directory,
            self.clock,
            scheduler=InlineScheduler(),
            disk_reserve_bytes=0,
            segment_bytes=self.config.segment_bytes,
            disk=disk,
        )
        self.broker = Broker(self.store, self.clock, self.config, random.Random(7))
        self.broker.load()
        self.store.writer.commit()
