"""The command line, and the settings of the brokers that it would run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from heliograph_api import logging_setup
from heliograph_api.broker_config import BrokerConfig
from heliograph_broker.cli.commands import standalone

from tests.support.command_line import CommandLine


@pytest.fixture
def heliograph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    for name in [name for name in os.environ if name.startswith("HELIOGRAPH_")]:
        monkeypatch.delenv(name)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    """The settings of brokers that would have run."""
    found: list[BrokerConfig] = []

    async def serve(config: BrokerConfig, manifests: list[Path]) -> None:
        found.append(config)

    monkeypatch.setattr(standalone, "_serve", serve)
    monkeypatch.setattr(logging_setup, "configure_logging", lambda: None)
    return found
