"""The compiled modules, where they are built."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def built(name: str) -> Any:
    """Return the compiled module of this package with that name, None if it is not there."""
    try:
        return import_module(f"heliograph_spark.decode.{name}")
    except ImportError:
        return None
