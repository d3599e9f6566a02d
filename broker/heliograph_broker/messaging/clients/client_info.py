"""The client of a producer or consumer, as statistics show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The address of a client, the time (ms) it connected at, and its own reports."""

    address: str = ""
    #: The name and version of its library.
    version: str = ""
    #: Free text that it attaches.
    metadata: dict[str, str] = field(default_factory=dict)
    connected_ms: int = 0


#: A client of which nothing is known.
UNKNOWN_CLIENT: Final = ClientInfo()
