"""Defects put back into the broker, each by replacing what keeps it away, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from heliograph_broker.server.session import Session
from heliograph_broker.storage.group_commit import GroupCommit

from tests.simulation.disk import SimulatedDisk


class Defect(NamedTuple):
    """``owner.name`` is replaced by ``broken``; :func:`unittest.mock.patch` refuses a name that is not there."""

    owner: Any
    name: str
    broken: Any


def _close_instead(self: Any, *reason: Any) -> None:
    self.close(str(reason[-1]))


_open = SimulatedDisk.open_environment


def _open_without_sync(self: Any, path: Any, map_bytes: int, **how: Any) -> Any:
    return _open(self, path, map_bytes, **{**how, "sync": False})


_seal = GroupCommit._seal


def _seal_forgetting(self: Any) -> None:
    self._carried.clear()
    _seal(self)


DEFECTS: dict[str, list[Defect]] = {
    "a silent peer is closed when it has read everything": [Defect(Session, "abort", _close_instead)],
    "receipts go out before the sync": [Defect(SimulatedDisk, "open_environment", _open_without_sync)],
    "metadata of a group that failed is forgotten": [Defect(GroupCommit, "_seal", _seal_forgetting)],
    "names are never synced": [Defect(SimulatedDisk, "sync_directory", lambda self, path: None)],
}


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """Run with a defect. Raises :class:`AttributeError` if what it replaces is not there any more."""
    patches = [patch.object(one.owner, one.name, one.broken) for one in DEFECTS[name]]
    try:
        for one in patches:
            one.start()
        yield
    finally:
        patch.stopall()
