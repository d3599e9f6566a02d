"""``python -m heliograph_broker`` is the ``heliograph`` command."""

from __future__ import annotations

from heliograph_broker.cli.main import main

main()
