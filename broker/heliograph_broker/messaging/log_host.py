"""The broker, as a topic's log knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph_broker.clock import Clock
    from heliograph_broker.config import BrokerConfig
    from heliograph_broker.storage.store import LedgerStore

    from .containment import Containment
    from .figures import BrokerFigures
    from .tail_cache import TailCache


class LogHost:
    """What a log needs of the broker around it."""

    store: LedgerStore
    clock: Clock
    config: BrokerConfig
    tail_cache: TailCache
    figures: BrokerFigures
    containment: Containment
