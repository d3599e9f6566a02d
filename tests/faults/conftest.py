"""Options of the fault tests: ``pytest tests/faults --rounds 1000`` for a long run."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--rounds", type=int, default=50, help="how often the broker is killed under load (50)")
    group.addoption("--seed", type=int, default=None, help="repeat the random choices of a run that printed its seed")


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A fresh seed, unless one is given; printed, so that a failed run can be repeated."""
    given = request.config.getoption("--seed")
    seed = int.from_bytes(os.urandom(4), "big") if given is None else int(given)
    print(f"--seed {seed}")
    return seed
