"""A broker without authentication serves this machine only, unless an option says that the network is trusted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.tokens import Signer

Factory = Callable[..., BrokerProcess]
ADVERTISED = {"HELIOGRAPH_ADVERTISED_LISTENERS": "outside:pulsar://127.0.0.1:6699"}


@pytest.mark.parametrize(
    ("arguments", "environment", "named"),
    [
        (["--bind", "*"], {}, r"\*"),
        (["--bind", "0.0.0.0"], {}, "0.0.0.0"),
        (["--bind", "::"], {}, "::"),
        ([], ADVERTISED | {"HELIOGRAPH_BIND_ADDRESSES": "outside:pulsar://0.0.0.0:6699"}, "0.0.0.0"),
    ],
)
def test_it_refuses_to_start_open_for_other_machines(
    broker_factory: Factory, arguments: list[str], environment: dict[str, str], named: str
) -> None:
    broker = broker_factory(arguments=arguments, environment=environment)
    with pytest.raises(AssertionError, match=rf"anybody who reaches {named} could do everything.*--insecure"):
        broker.start()


def test_it_starts_when_it_is_told_that_the_network_is_trusted(broker_factory: Factory) -> None:
    broker_factory(arguments=["--bind", "0.0.0.0", "--insecure"]).start()


def test_it_starts_with_authentication(broker_factory: Factory, tmp_path_factory: pytest.TempPathFactory) -> None:
    signer = Signer(tmp_path_factory.mktemp("key") / "secret.key")
    environment = {"HELIOGRAPH_AUTH": "token", "HELIOGRAPH_TOKEN_SECRET_KEY": str(signer.path)}
    broker_factory(arguments=["--bind", "0.0.0.0"], environment=environment).start()


@pytest.mark.parametrize(("superusers", "warned"), [("", True), ("admin", False)])
def test_it_says_when_nobody_may_administrate_it(
    broker_factory: Factory, tmp_path_factory: pytest.TempPathFactory, superusers: str, warned: bool
) -> None:
    signer = Signer(tmp_path_factory.mktemp("key") / "secret.key")
    broker = broker_factory(environment=signer.settings(superusers=superusers))
    broker.start()
    log = broker.log_path.read_text()
    assert ("no role may create topics or grant rights: name a superuser" in log) is warned


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost"])
def test_it_starts_on_an_address_of_this_machine_only(broker_factory: Factory, host: str) -> None:
    broker_factory(arguments=["--bind", host]).start()
