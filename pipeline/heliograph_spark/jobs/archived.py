"""The interface of an archive, in files or in tables, to the jobs that read it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType


class Topics(NamedTuple):
    """The whole names of an archive's topics, sorted, and what there cannot be read, each with its name."""

    names: list[str]
    unreadable: list[str]


class Archived(NamedTuple):
    """The messages of a topic, and a text that another one replaces when the archive has other files of it.

    For tables it is another one as well when they have other columns.
    """

    rows: DataFrame
    made_of: str


class Archive(Protocol):
    """An archive of topics. Each method raises :class:`JobError` for what is no archive or has not this topic."""

    @property
    def name(self) -> str:
        """Its name in errors."""

    def topics(self) -> Topics:
        """Return its topics."""

    def read(self, topic: str) -> Archived:
        """Return the messages of a topic, with the columns of a query of it."""

    def size(self, topic: str) -> tuple[int, int]:
        """Return the number of messages of a topic and the bytes of their files."""


def made_of(files: Iterable[str], columns: StructType | None = None) -> str:
    """Return a text that stands for these files, and these columns if they may change without them."""
    what = [*files] if columns is None else [columns.json(), *files]
    return hashlib.sha256("\n".join(what).encode()).hexdigest()
