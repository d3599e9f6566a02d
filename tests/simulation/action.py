"""An operation of a history: its actor, its topic, and its random draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

Action = Callable[["World", "SimulatedClient", int, random.Random], None]
