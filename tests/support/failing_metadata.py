"""Commits of metadata that fail by an error of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from heliograph_broker.storage.commit.group import Group
from heliograph_broker.storage.commit.group_commit import GroupCommit


@contextmanager
def failing_metadata(error: Exception) -> Iterator[list[dict[bytes, bytes | None]]]:
    """While it is entered, every write of metadata raises ``error``; yields what was to be written each time."""
    asked: list[dict[bytes, bytes | None]] = []

    def fail(_: GroupCommit, group: Group) -> None:
        asked.append(dict(group.metadata))
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupCommit, "_write_metadata", fail)
        yield asked
