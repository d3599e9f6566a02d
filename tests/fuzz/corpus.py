"""The kept inputs: for each target a file with an input on each line, in Base64, in the order of their sizes."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path(__file__).with_name("corpus")
RECORDED = "recorded"
"""Frames that the official client sent, as parts of :mod:`.streams`: not a target's, written by :mod:`.record`."""


def path_of(target: str) -> Path:
    return DIRECTORY / f"{target}.b64"


def load(target: str) -> list[bytes]:
    """Return the kept inputs of a target, none if there is no file."""
    path = path_of(target)
    if not path.exists():
        return []
    return [base64.b64decode(line) for line in path.read_text("ascii").splitlines()]


def save(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the kept inputs of a target."""
    ordered = sorted(set(inputs), key=lambda data: (len(data), data))
    path_of(target).write_text("".join(base64.b64encode(data).decode() + "\n" for data in ordered), "ascii")
