"""The Rust client ``pulsar``, which is independent of Pulsar's own ones: every case of ``rust`` as a test."""

from __future__ import annotations

import pytest

from tests.support.clients import RunningBroker
from tests.support.rust_client import NotToBeHad, build, case_names, run_cases

# A fresh machine fetches and compiles the client first, if scripts/test has not done it: the first test waits for that.
pytestmark = pytest.mark.timeout(2500)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, broker: RunningBroker) -> dict[str, str]:
    """The outcome of every case that was asked for, all of them run in one process."""
    try:
        build()
    except NotToBeHad as error:
        pytest.skip(f"the Rust client is not tested: {error}")
    asked = {item.name for item in request.session.items}
    return run_cases(broker, [case for case in case_names() if f"test_case[{case}]" in asked])


@pytest.mark.parametrize("case", case_names())
def test_case(outcomes: dict[str, str], case: str) -> None:
    assert outcomes[case] == "passed", outcomes[case]
