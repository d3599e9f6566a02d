"""The broker that the integration tests talk to: one real process for the session, and fresh ones on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.closed_broker import ClosedBroker
from tests.support.command_line import CommandLine
from tests.support.tls_broker import TlsBroker
from tests.support.tokens import Signer

from .client_fixtures import client, topic
from .spark_wire_peer import with_peer

#: Variables that would be a command's settings.
_SETTINGS = (
    "HELIOGRAPH_TOKEN",
    "HELIOGRAPH_TOKEN_FILE",
    "HELIOGRAPH_CONTEXT",
    "HELIOGRAPH_HTTP_URL",
    "HELIOGRAPH_SERVICE_URL",
)

__all__ = ["broker", "broker_factory", "client", "topic", "with_peer"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker shared by the session; leave it running. Its first test's failure shows its log."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running
        assert running.running, f"the shared broker ended during the tests; log:\n{running.log_tail()}"
        code = running.terminate()
        assert code == 0, f"the shared broker ended with {code} on SIGTERM; log:\n{running.log_tail()}"


@pytest.fixture
def broker_factory(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Makes brokers (not yet started) of one test's own, ended after it; takes BrokerProcess's keywords."""
    made: list[BrokerProcess] = []

    def make(name: str = "data", **options: object) -> BrokerProcess:
        process = BrokerProcess(tmp_path / name, **options)  # type: ignore[arg-type]
        made.append(process)
        return process

    yield make
    for process in made:
        process.close()


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """A broker with plain ports and with TLS, for the tests of a module."""
    with TlsBroker(tmp_path_factory.mktemp("tls")) as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClosedBroker]:
    """A broker with TLS only that knows every way to authenticate, for the tests of a module."""
    with ClosedBroker(tmp_path_factory.mktemp("closed")) as running:
        yield running


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """Signs the tokens of a module's closed brokers."""
    return Signer(tmp_path_factory.mktemp("keys") / "secret.key")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line of a person without any settings."""
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HELIOGRAPH_CONFIG", str(tmp_path / "config.yaml"))
    return CommandLine(monkeypatch, capsys)
