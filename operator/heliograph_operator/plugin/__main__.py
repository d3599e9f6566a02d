"""Runs the command: ``python -m heliograph_operator.plugin``."""

from .command import main

main()
