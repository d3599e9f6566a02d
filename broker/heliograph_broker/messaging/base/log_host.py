"""The part of the broker that a topic's log uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_api.broker_config import BrokerConfig

    from heliograph_broker.clock import Clock
    from heliograph_broker.storage.store import LedgerStore

    from .containment import Containment
    from .histograms import BrokerMetrics
    from .tail_cache import TailCache


class LogHost:
    """The services of the broker that a log uses."""

    store: LedgerStore
    clock: Clock
    config: BrokerConfig
    tail_cache: TailCache
    metrics: BrokerMetrics
    containment: Containment
