"""A catalog of tables in a database, in a test's directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_spark.jobs.archiving.options import Tables
from pyiceberg.catalog import Catalog, load_catalog


def lake(path: Path) -> Tables:
    """Return the options that name it."""
    return Tables("lake", {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": path.as_uri()})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """The catalog, in which the archive's namespace is there."""
    found = load_catalog("lake", **lake(tmp_path).properties)
    found.create_namespace("archive")
    yield found
    found.close()
