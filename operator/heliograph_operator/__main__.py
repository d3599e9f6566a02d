"""Runs ``python -m heliograph_operator``."""

from __future__ import annotations

from .cli import main

main()
