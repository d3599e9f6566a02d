"""A broker that several inputs of the fuzzer get hides no defect and lays none at another input's door."""

from __future__ import annotations

import pytest
import structlog

from tests.fuzz.kept_broker import KeptBroker
from tests.fuzz.target import Finding


class Broker:
    """Breaks at ``break``, and at the second ``wear``; ``change`` leaves something behind."""

    def __init__(self) -> None:
        self.had: list[bytes] = []
        self.closed = False
        STARTED.append(self)

    def close(self) -> None:
        self.closed = True


STARTED: list[Broker] = []


def attack(broker: Broker, data: bytes) -> bool:
    broker.had.append(data)
    if data == b"break" or broker.had.count(b"wear") == 2:
        raise RuntimeError(data)
    if data == b"log":
        try:
            raise KeyError("swallowed")
        except KeyError:
            structlog.get_logger().exception("unhandled")
    return data != b"change"


@pytest.fixture
def kept() -> KeptBroker[Broker]:
    STARTED.clear()
    return KeptBroker(Broker, attack)


def had() -> list[list[bytes]]:
    return [broker.had for broker in STARTED]


def test_inputs_share_a_broker_until_one_changes_it(kept: KeptBroker[Broker]) -> None:
    for data in (b"a", b"b", b"change", b"c"):
        kept.run(data)
    assert had() == [[b"a", b"b", b"change"], [b"c"]]
    assert [broker.closed for broker in STARTED] == [True, False]


def test_a_broker_does_not_last_forever(kept: KeptBroker[Broker]) -> None:
    for _ in range(250):
        kept.run(b"a")
    assert [len(inputs) for inputs in had()] == [100, 100, 50]


def test_a_defect_is_that_of_the_input_alone_if_a_new_broker_shows_it(kept: KeptBroker[Broker]) -> None:
    kept.run(b"a")
    with pytest.raises(RuntimeError, match="break"):
        kept.run(b"break")
    assert had() == [[b"a", b"break"], [b"break"]]
    kept.run(b"b")
    assert had()[2:] == [[b"b"]]
    assert [broker.closed for broker in STARTED] == [True, True, False]


def test_a_defect_that_takes_several_inputs_names_them(kept: KeptBroker[Broker]) -> None:
    kept.run(b"wear")
    kept.run(b"a")
    with pytest.raises(Finding, match=r"after the inputs \[b'wear', b'a'\], by b'wear': RuntimeError"):
        kept.run(b"wear")


def test_an_error_that_is_only_logged_ends_the_broker_too(kept: KeptBroker[Broker]) -> None:
    kept.run(b"a")
    with pytest.raises(Finding, match="the broker logged unhandled"):
        kept.run(b"log")
    assert had() == [[b"a", b"log"], [b"log"]]
