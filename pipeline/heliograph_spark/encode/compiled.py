"""The compiled module, if it is there."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def _built() -> Any:
    try:
        return import_module("heliograph_spark.encode._entries")
    except ImportError:
        return None


#: The module, or None.
native = _built()
COMPILED = native is not None
