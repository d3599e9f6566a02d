"""What an operation of a history does: to whom, about which topic, and with what it draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import World

Action = Callable[["World", "SimulatedClient", int, random.Random], None]
