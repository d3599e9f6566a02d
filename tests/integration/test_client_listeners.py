"""Advertised listeners: lookups answer as Pulsar's, by name and by port, and official clients connect there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest

from tests.support import java_client
from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, connect, publish
from tests.support.listener_questions import answers_of
from tests.support.ports import free_ports

#: Asked of a Pulsar 4.2.4 that was started with these settings: see tests/support/listener_questions.py.
PULSARS = json.loads((Path(__file__).parent / "pulsar_4_2_4_listeners.json").read_text())
#: Nothing listens there: who is sent there by a lookup gets no further.
NOWHERE = "pulsar://127.0.0.1:1"
PERF_WITHIN_S = 120.0


class Place(NamedTuple):
    """A broker whose internal listener leads nowhere; ``main`` and ``external`` are the ports that it has."""

    service_url: str
    http_url: str
    external: str


def _started(make: Callable[..., BrokerProcess], internal: str = "") -> tuple[BrokerProcess, str, str]:
    main, external = free_ports(2)
    urls = f"pulsar://127.0.0.1:{main}", f"pulsar://localhost:{external}"
    broker = make(
        arguments=["--broker-port", str(main)],
        environment={
            "HELIOGRAPH_ADVERTISED_LISTENERS": f"internal:{internal or urls[0]},external:{urls[1]}",
            "HELIOGRAPH_INSECURE": "true",
            "HELIOGRAPH_BIND_ADDRESSES": f"external:pulsar://*:{external}",
        },
    )
    broker.start()
    return broker, *urls


def test_lookups_answer_as_pulsar_does(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker, internal, external = _started(broker_factory)
    found = answers_of(internal, external, broker.http_url)
    # A listener that is not there is not found over HTTP; Pulsar's server answers that with an error of its own.
    assert found == {question: [404] if answer == [500] else answer for question, answer in PULSARS.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made: list[BrokerProcess] = []

    def make(**options: object) -> BrokerProcess:
        made.append(BrokerProcess(tmp_path_factory.mktemp("listeners") / "data", **options))  # type: ignore[arg-type]
        return made[-1]

    try:
        broker, main, external = _started(make, NOWHERE)
        yield Place(main, broker.http_url, external)
    finally:
        for broker in made:
            broker.close()


def _exchanges(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client, topic, [b"through"])
    assert consumer.receive(DEADLINE_MS).data() == b"through"
    client.close()


@pytest.mark.parametrize("port", ["service_url", "external"])
def test_the_python_client_connects_to_the_listener_it_names(place: Place, topic: str, port: str) -> None:
    # Over HTTP this client asks for no listener by name, whatever it is given.
    _exchanges(connect(getattr(place, port), listener_name="external"), topic)


def test_the_python_client_stays_at_the_listener_it_came_in_by(place: Place, topic: str) -> None:
    _exchanges(connect(place.external), topic)


@pytest.mark.parametrize(("port", "name"), [("service_url", None), ("external", "internal"), ("external", "absent")])
def test_the_python_client_is_sent_where_the_lookup_says(place: Place, topic: str, port: str, name: str | None) -> None:
    client = connect(getattr(place, port), listener_name=name, operation_timeout_seconds=1)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()


@pytest.mark.timeout(PERF_WITHIN_S + 60)
@pytest.mark.skipif(java_client.missing() is not None, reason=f"the Java client is not tested: {java_client.missing()}")
def test_the_java_client_connects_to_the_listener_it_names(place: Place, topic: str, tmp_path: Path) -> None:
    command = f"produce {topic} --num-messages 20 --rate 1000 --listener-name external"
    process = java_client.start_perf(place, tmp_path, command)
    try:
        output, _ = process.communicate(timeout=PERF_WITHIN_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    sent = re.search(r"Aggregated throughput stats --- (\d+) records sent", output)
    assert sent is not None, output
    assert int(sent[1]) >= 20, output
