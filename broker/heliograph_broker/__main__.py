"""``python -m heliograph_broker`` is the ``heliograph`` command."""

from __future__ import annotations

from .cli import main

main()
