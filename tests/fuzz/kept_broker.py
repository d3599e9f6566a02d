"""A broker that several inputs get one after the other, as long as each leaves it as it found it.

To start a broker takes as long as most inputs. What an input does must still be its own doing: one that shows a defect
on a broker that others had before gets a new one, so that the finding is one of this input alone or names the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from .broker_log import no_unhandled_errors
from .target import Finding


class Closing(Protocol):
    def close(self) -> None: ...


B = TypeVar("B", bound=Closing)
#: Then there is a new one anyway: what a broker keeps in memory does not grow forever.
_INPUTS = 100


class KeptBroker(Generic[B]):
    """Makes brokers by ``start``; ``attack`` gives one an input and returns whether the next one may have it, too."""

    def __init__(self, start: Callable[[], B], attack: Callable[[B, bytes], bool]) -> None:
        self._start = start
        self._attack = attack
        self._broker: B | None = None
        #: The inputs that the broker has had.
        self._had: list[bytes] = []

    def run(self, data: bytes) -> None:
        """Give an input to the broker. Raises what shows a defect, and :class:`Finding` if it takes earlier inputs."""
        had = list(self._had)
        try:
            self._give(data)
        except Exception as error:
            if had:
                self._give(data)
                raise Finding(f"after the inputs {had}, by {data!r}: {error!r}") from error
            raise

    def _give(self, data: bytes) -> None:
        left = False
        try:
            with no_unhandled_errors():
                if self._broker is None:
                    self._broker = self._start()
                self._had.append(data)
                as_before = self._attack(self._broker, data)
            left = as_before
        finally:
            if not left or len(self._had) >= _INPUTS:
                self.end()

    def end(self) -> None:
        """Let the next input have a new broker."""
        broker, self._broker = self._broker, None
        self._had.clear()
        if broker is not None:
            broker.close()
