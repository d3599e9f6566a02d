"""A target of fuzzing, and what targets make of an input's bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Finding(AssertionError):
    """The code under test does not do what its interface promises."""


class Target(NamedTuple):
    """``run`` raises for an input that shows a defect, whatever it raises; ``seeds`` are inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    #: The largest input (bytes) that the fuzzer makes.
    max_bytes: int = 2048
    #: Words of the input's language, for the fuzzer to put in.
    words: Sequence[str] = ()


class Source:
    """Reads values from an input in order; behind its end there are zeros and no bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, or as many as there are."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def number(self, size: int = 1) -> int:
        """Return an unsigned number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def sized(self) -> bytes:
        """Return bytes after their length, which has two bytes."""
        return self.take(self.number(2))

    def choose(self, choices: Sequence[T]) -> T:
        return choices[self.number() % len(choices)]


def sized(data: bytes) -> bytes:
    """Return what :meth:`Source.sized` reads as ``data``."""
    return len(data).to_bytes(2, "big") + data
