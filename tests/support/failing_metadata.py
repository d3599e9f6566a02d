"""Commits of metadata that fail by an error of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from heliograph_broker.storage.disk.metadata import Metadata


@contextmanager
def failing_metadata(error: Exception) -> Iterator[list[dict[bytes, bytes | None]]]:
    """While it is entered, every write of metadata raises ``error``; yields what was to be written each time."""
    asked: list[dict[bytes, bytes | None]] = []

    def fail(_: Metadata, records: Mapping[bytes, bytes | None]) -> None:
        asked.append(dict(records))
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Metadata, "write", fail)
        yield asked
