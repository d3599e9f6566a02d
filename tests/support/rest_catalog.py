"""Iceberg's own REST catalog with its tables as files, where ``scripts/java-tools rest-catalog`` has fetched it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import java_tools

_SOURCE = java_tools.ROOT / "tests" / "spark" / "java" / "rest-catalog" / "RestCatalog.java"
_JARS = java_tools.FETCHED / "rest-catalog"


def missing() -> str | None:
    """Return what keeps the catalog from running here, None if nothing does."""
    reason = java_tools.missing("rest-catalog")
    return reason and f"Iceberg's REST catalog: {reason}"


@contextmanager
def rest_catalog(warehouse: Path, spark_jars: Path) -> Iterator[str]:
    """Run a catalog with its tables below ``warehouse`` and Spark's jars; yield its address."""
    command = [*java_tools.QUICK, f"{_JARS}/*:{spark_jars}/*", str(_SOURCE), warehouse.as_uri()]
    log = warehouse / "catalog.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, log.read_text()
        yield address
    finally:
        # It ends with its input.
        try:
            server.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()
