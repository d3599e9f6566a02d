"""The core that compaction is tested on: small ledgers, and nothing retained that is acknowledged."""

from __future__ import annotations

import pytest

from tests.support.core import Core


@pytest.fixture
def core_settings() -> dict[str, int]:
    return {"ledger_max_entries": 7}


@pytest.fixture
def core(core: Core) -> Core:
    core.keep_nothing()
    return core
