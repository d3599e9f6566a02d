"""When an operator has nothing to do: by its refreshes, not by time."""

from __future__ import annotations

from tests.support.operator_process import OperatorProcess

from .resources import Resources


def listings(operator: OperatorProcess) -> float:
    """Return how often it has listed a broker: once in a refresh."""
    return operator.metric("heliograph_operator_broker_requests_total", operation="state")


def wait_until_at_rest(operator: OperatorProcess, served: Resources) -> None:
    """Wait until it has written nothing in two whole refreshes."""
    written, since = -1.0, 0.0

    def rested() -> bool:
        nonlocal written, since
        if (now := operator.writes()) != written:
            written, since = now, listings(operator)
        # The first of them may have begun before.
        return listings(operator) >= since + 3

    served.wait("nothing is written any more", rested)


def wait_for_refreshes(operator: OperatorProcess, served: Resources, count: int) -> None:
    """Wait until it has listed the broker ``count`` more times."""
    before = listings(operator)
    served.wait(f"{count} refreshes", lambda: listings(operator) >= before + count)
