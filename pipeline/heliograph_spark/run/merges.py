"""Replaces files of an archived topic by others, at one moment for all that read through :mod:`.archived`.

``_merging-<number>.json`` is there while the new files ``merged-<number>-<file>.parquet`` come into their places; these
are not read. ``_merged-<number>.json`` names the files that the new ones replace, which are not read from then on and
are deleted. It stays until the next one is written, so that a reader detects any replacement from the names of these
records: it reads them before and after it lists the files, and lists them again if there are others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from heliograph_spark.plan.errors import JobError, MissingFileError

from .files import Directory

_RECORD = re.compile(r"_(merging|merged)-(\d{8})\.json")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Merges:
    """The records of a topic's directory at one time.

    ``coming`` is how the names of files begin that are not read yet, None if there are none; ``replaced`` are the names
    of files (without their days) that are not read any more.
    """

    records: Sequence[str]
    coming: str | None
    replaced: Collection[str]

    def hides(self, file: str) -> bool:
        """Whether a file is not read, by its name below the topic's directory."""
        name = file.rpartition("/")[2]
        return name in self.replaced or (self.coming is not None and name.startswith(self.coming))


def _records(directory: Directory) -> list[str]:
    return [name for name in directory.names() if _RECORD.fullmatch(name)]


def merges(directory: Directory) -> Merges:
    """Return the records of a topic's directory."""
    missing: str | None = None
    while True:
        names = _records(directory)
        coming, last = _last(names, "merging"), _last(names, "merged")
        try:
            replaced = [] if last is None else [each.rpartition("/")[2] for each in _replaced(directory, last)]
        except MissingFileError:
            if missing == names[-1]:
                raise
            # The next one was written since the names were read.
            missing = names[-1]
            continue
        # Both are there if the job was killed, or is, right after the moment that counts.
        hidden = None if coming is None or (last is not None and last >= coming) else _files_of(coming)
        return Merges(names, hidden, frozenset(replaced))


def consistently(directory: Directory, listed: Callable[[Merges], _T]) -> _T:
    """Return what ``listed`` makes of a listing of the directory, during which no replacement began or ended."""
    while True:
        before = merges(directory)
        found = listed(before)
        if merges(directory).records == before.records:
            return found


def replace_files(
    root: Directory, topic: Directory, below: str, day: str, old: Sequence[str], new: Sequence[str]
) -> None:
    """Replace files of a day (``date=…``) of a topic by staged ones, whose names are below ``root``.

    ``below`` is the name of the topic's directory there. The caller holds the topic's subscription and has called
    :func:`finish_merge`.
    """
    names = _records(topic)
    last = max((number for kind in ("merging", "merged") if (number := _last(names, kind)) is not None), default=-1)
    number = last + 1
    _write(topic, f"_merging-{number:08}.json", old)
    placed = [f"{day}/{_files_of(number)}{place:05}.parquet" for place in range(len(new))]
    for file, name in zip(new, placed, strict=True):
        root.rename(file, f"{below}/{name}")
    # When the record counts, nobody else has the messages.
    topic.sync(*placed)
    _write(topic, f"_merged-{number:08}.json", old)
    finish_merge(topic)


def finish_merge(topic: Directory) -> None:
    """Complete the last replacement, or undo it if it does not count yet; a killed job left it."""
    names = _records(topic)
    coming, last = _last(names, "merging"), _last(names, "merged")
    if coming is None:
        return
    if last is not None and last >= coming:
        for file in _replaced(topic, last):
            topic.delete(file)
    else:
        for file in topic.matching(f"*/{_files_of(coming)}*"):
            topic.delete(file)
    for name in names:
        if name != f"_merged-{last if last is not None else -1:08}.json":
            topic.delete(name)


def _files_of(number: int) -> str:
    return f"merged-{number:08}-"


def _last(names: Sequence[str], kind: str) -> int | None:
    found = [match for match in map(_RECORD.fullmatch, names) if match is not None and match[1] == kind]
    return max((int(match[2]) for match in found), default=None)


def _write(topic: Directory, name: str, old: Sequence[str]) -> None:
    topic.write_whole(name, json.dumps({"replaced": list(old)}))


def _replaced(topic: Directory, number: int) -> list[str]:
    name = f"_merged-{number:08}.json"
    try:
        return [str(each) for each in json.loads(topic.read_text(name))["replaced"]]
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{topic.path}/{name}: the record of merged files cannot be read: {error}") from error
