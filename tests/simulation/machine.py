"""A machine with a disk and clocks, and the broker on it: started, stopped, killed, and without power."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.server import listener
from heliograph_broker.standalone import Standalone
from heliograph_broker.storage.base.scheduler import Scheduler
from heliograph_broker.storage.store import LedgerStore

from .disk import SimulatedDisk
from .loop import SimulatedClock, SimulatedLoop, SimulatedScheduler

DATA = Path("/volume/data")
#: Sizes at which everything that happens to large ones happens to the few messages of a simulation.
CONFIG = {
    "data_dir": str(DATA),
    "ledger_max_entries": 8,
    "ledger_max_age_ms": 60_000,
    "keep_alive_interval_s": 30.0,
    "max_connection_write_bytes": 32 * 1024,
    "tail_cache_bytes": 8 * 1024,
    "disk_reserve_bytes": 16 * 1024,
    "deduplication_inactivity_ms": 3_600_000,
    "max_unacked_per_consumer": 40,
    "max_unacked_per_subscription": 120,
}
#: Below what a configuration may say: a segment is closed after some tens of messages.
SEGMENT_BYTES = 48 * 1024


class SimulatedAcceptor:
    """A port of the simulated network in place of one of the machine's."""

    port = 6650

    def __init__(
        self, loop: Any, limits: object, protocol: Callable[[Callable[[], None]], Any], refusal: object, _: object
    ) -> None:
        self._loop = cast(SimulatedLoop, loop)
        self._protocol = protocol

    async def listen(self, host: str, port: int) -> None:
        self._loop.accept = lambda: self._protocol(lambda: None)

    def stop(self) -> None:
        self._loop.accept = None


class SimulatedBroker(Standalone):
    """The program, but for the HTTP port and the threads."""

    def _make_scheduler(self) -> Scheduler:
        return SimulatedScheduler(cast(SimulatedLoop, self._loop))

    async def _start_http(self) -> None:
        self.broker_url = "pulsar://127.0.0.1:6650"
        self.http_url = "http://127.0.0.1:8080"

    def _settle_memory(self) -> None:
        """Others live in this process."""

    @property
    def store(self) -> LedgerStore:
        return self._store


class Machine:
    """``broker`` is there between :meth:`start` and :meth:`stop` or :meth:`crash`."""

    def __init__(self, rng: random.Random, capacity: int, settings: dict[str, bool]) -> None:
        self.rng = rng
        #: The broker's settings that differ from :data:`CONFIG`, the same at every start.
        self.settings = settings
        self.clock = SimulatedClock()
        self.disk = SimulatedDisk(random.Random(rng.getrandbits(64)), capacity)
        self.disk.make_directory(DATA.parent)
        self.disk.root.sync()
        self.loop = SimulatedLoop(self.clock, random.Random(rng.getrandbits(64)))
        self.program: SimulatedBroker | None = None
        self.ticks = 0

    @property
    def broker(self) -> Broker:
        assert self.program is not None
        return self.program.broker

    @property
    def scheduler(self) -> SimulatedScheduler:
        assert self.loop.scheduler is not None
        return self.loop.scheduler

    def start(self) -> None:
        """Start the program. Raises what it raises, and :class:`~.disk.Crashed`."""
        config = BrokerConfig(**CONFIG, **self.settings)  # type: ignore[arg-type]
        msgspec.structs.force_setattr(config, "segment_bytes", SEGMENT_BYTES)
        program = SimulatedBroker(config, [], self.clock, disk=self.disk, rng=random.Random(self.rng.getrandbits(64)))
        with patch.object(listener, "Acceptor", SimulatedAcceptor):
            self.loop.run(program.start())
        self.program = program
        self._count_ticks(program.broker)

    def _count_ticks(self, broker: Broker) -> None:
        tick = broker.ticks.run

        def counted(*args: Any, **named: Any) -> bool:
            self.ticks += 1
            return tick(*args, **named)

        broker.ticks.run = counted  # type: ignore[method-assign]

    def stop(self) -> None:
        """Stop in good order; the disk is as the next process finds it."""
        assert self.program is not None
        self.loop.run(self.program.stop())
        self._next_process(power_lost=False)

    def crash(self, *, power_lost: bool) -> None:
        """The process is killed, or the machine loses its power, at this moment or at the one it just met."""
        self.disk.crash()
        self._next_process(power_lost=power_lost)

    def _next_process(self, *, power_lost: bool) -> None:
        if self.loop.scheduler is not None:
            self.loop.scheduler.kill()
        self.program = None
        failures = self.disk.failures
        self.disk = self.disk.reboot(power_lost=power_lost)
        self.disk.failures = failures
        self.loop = SimulatedLoop(self.clock, random.Random(self.rng.getrandbits(64)))
