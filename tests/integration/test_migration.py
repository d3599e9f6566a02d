"""docs/migration.md, followed from Pulsar to Heliograph and back: the application, its scripts and its dashboard."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.pulsar_admin import PulsarAdmin
from tests.support.pulsar_admin import missing as no_admin
from tests.support.real_pulsar import RealPulsar, missing, real_pulsar
from tests.support.rest import call, fetch

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "examples" / "migration"
PARTITIONS = 3
#: Orders that are published to each broker.
COUNT = 1000
#: The time that the application may take for them, on a machine that is busy with other tests.
BILLED_WITHIN_S = 240.0
#: Settings of the namespace that the script makes, as both brokers have to show them.
KEPT = (
    "retention_policies",
    "message_ttl_in_seconds",
    "backlog_quota_map",
    "deduplicationEnabled",
    "max_consumers_per_topic",
    "persistence",
)

pytestmark = pytest.mark.skipif(
    bool(missing() or no_admin()), reason=f"the migration is not tested: {missing() or no_admin()}"
)


class Side(Protocol):
    """One of the two brokers."""

    @property
    def service_url(self) -> str: ...

    @property
    def http_url(self) -> str: ...


class Sides(NamedTuple):
    """Both brokers, and whether the application moves away from Pulsar or back to it."""

    old: Side
    new: Side


@pytest.fixture(scope="module")
def a_pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPulsar]:
    with real_pulsar(tmp_path_factory.mktemp("pulsar")) as running:
        yield running


@pytest.fixture(params=["to Heliograph", "back to Pulsar"])
def sides(
    request: pytest.FixtureRequest, a_pulsar: RealPulsar, broker_factory: Callable[..., BrokerProcess]
) -> Iterator[Sides]:
    """A Pulsar and a broker without the shop."""
    ours = broker_factory()
    ours.start()
    yield Sides(a_pulsar, ours) if request.param == "to Heliograph" else Sides(ours, a_pulsar)
    call(f"{a_pulsar.http_url}/admin/v2/namespaces/shop/payments?force=true", "DELETE")
    call(f"{a_pulsar.http_url}/admin/v2/tenants/shop", "DELETE")


def run_script(side: Side, directory: Path) -> None:
    """Run the admin script as it stands, in one JVM."""
    directory.mkdir()
    commands = re.findall(r"^pulsar-admin (.+)$", (SHOP / "admin.sh").read_text(), re.MULTILINE)
    assert len(commands) > 8
    with PulsarAdmin(directory, side.http_url, side.service_url) as tool:
        for command in commands:
            ran = tool.run(command)
            assert ran.code == 0, f"pulsar-admin {command}: {ran}"


def shown(containing: str) -> list[str]:
    """Return the commands of the page's block that contains this text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / "migration.md").read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return list(block.splitlines())


def environment(sides: Sides) -> dict[str, str]:
    """Return the variables that the page's commands use; on the way back the two brokers change places."""
    return os.environ | {
        "PULSAR": sides.old.service_url,
        "PULSAR_HTTP": sides.old.http_url,
        "HELIOGRAPH": sides.new.service_url,
        "HELIOGRAPH_HTTP": sides.new.http_url,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@contextmanager
def application(command: str, sides: Sides) -> Iterator[subprocess.Popen[str]]:
    """Run a command of the application; it is ended with the block."""
    words = ["bash", "-c", f"exec {command}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=SHOP, env=environment(sides), stdout=pipe, stderr=pipe, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def outcome(program: subprocess.Popen[str]) -> list[int]:
    """Wait for the application's end; return the numbers of the orders it billed."""
    out, err = program.communicate(timeout=400)
    assert program.returncode == 0, err
    lines = out.splitlines()
    others = [line for line in lines if not line.isdecimal()]
    assert not others, f"no numbers of orders: {others}; on the standard error: {err}"
    return [int(line) for line in lines]


def ended(program: subprocess.Popen[str]) -> list[int]:
    """End the application that bills, as a person does; return the numbers of the orders it billed."""
    program.terminate()
    return outcome(program)


def backlog(side: Side, subscription: str) -> int:
    topic = f"{side.http_url}/admin/v2/persistent/shop/payments/orders/partitioned-stats"
    return int(call(topic)["subscriptions"][subscription]["msgBacklog"])


def backlog_is_empty(side: Side) -> bool:
    return backlog(side, "billing") == 0


def settings(side: Side) -> dict[str, Any]:
    document = call(f"{side.http_url}/admin/v2/namespaces/shop/payments")
    return {name: document.get(name) for name in KEPT}


def series(side: Side) -> set[tuple[str, frozenset[str]]]:
    """Return the shop's metrics by name, with the names of their labels."""
    found = set()
    for line in fetch(f"{side.http_url}/metrics/").decode().splitlines():
        named = re.match(r"(pulsar_\w+)\{(.*)\} ", line)
        if named and 'namespace="shop/payments"' in named[2]:
            found.add((named[1], frozenset(re.findall(r'(\w+)="', named[2]))))
    return found


def answered(side: Side) -> list[str]:
    """Return the queries of the dashboard that this broker's metrics can answer."""
    labels: dict[str, set[str]] = {}
    for name, names in series(side):
        labels.setdefault(name, set()).update(names)
    queries = [line for line in (SHOP / "queries.txt").read_text().splitlines() if not line.startswith("#")]
    good = []
    for query in queries:
        (name,) = re.findall(r"pulsar_\w+", query)
        (by,) = re.findall(r"by \((\w+)\)", query) or [""]
        if name in labels and (not by or by in labels[name]):
            good.append(query)
    return good


def test_a_shop_moves_and_bills_every_order_once(sides: Sides, tmp_path: Path) -> None:
    old, new = sides
    run_script(old, tmp_path / "old")
    run_script(new, tmp_path / "new")
    assert settings(new) == settings(old)
    assert None not in settings(new).values()

    bill_old, bill_new, publish_new = shown("orders.py")
    publish_old = publish_new.replace("$HELIOGRAPH", "$PULSAR").replace("--from 1000", "")
    with application(bill_old, sides) as billing, application(bill_new, sides) as later:
        for publish in (publish_old, publish_new):
            with application(publish, sides) as publishing:
                assert outcome(publishing) == []
        for side in sides:
            eventually(partial(backlog_is_empty, side), within_s=BILLED_WITHIN_S, what="every order billed")
        before, after = ended(billing), ended(later)
    # Each order was billed once, by the broker that it was published to.
    assert sorted(before) == list(range(COUNT))
    assert sorted(after) == list(range(COUNT, 2 * COUNT))
    for customer in range(7):
        of_one = [number for number in after if number % 7 == customer]
        assert of_one == sorted(of_one)
    # What no consumer read waits at the old broker, and at the new one, for a consumer that does.
    assert backlog(new, "billing") == 0
    assert backlog(new, "audit") > 0
    dashboard = [line for line in (SHOP / "queries.txt").read_text().splitlines() if not line.startswith("#")]
    assert answered(old) == answered(new) == dashboard


def test_a_namespace_is_created_with_the_document_of_the_other_broker(sides: Sides, tmp_path: Path) -> None:
    old, new = sides
    run_script(old, tmp_path / "old")
    call(f"{new.http_url}/admin/v2/tenants/shop", "PUT", {"allowedClusters": ["standalone"]})
    for command in shown("payments.json"):
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(sides), check=True)
    assert settings(new) == settings(old)
