"""A disk that is full by turns while official clients have many messages in flight: they are stored in order.

The entries that were refused are sent again, and none of their producer's that came later is stored before them.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pulsar
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.rotation_clients import IN_FLIGHT, RotationClient

from .test_full_disk import TOPIC, WITHIN_S, Neighbour, broker, readiness, small_disk

__all__ = ["broker", "small_disk"]

#: How often the disk is full only for moments, between two times for longer.
MOMENTS = 30


def stored(broker: BrokerProcess) -> list[int]:
    """Return the numbers that the subscription ``s`` has, in order."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(TOPIC, "s")
    found = []
    try:
        while True:
            message = consumer.receive(3000)
            found.append(int(message.data().split()[0]))
            consumer.acknowledge_cumulative(message)
    except pulsar.Timeout:
        return found
    finally:
        client.close()


@pytest.mark.timeout(1750)
@pytest.mark.parametrize("language", IN_FLIGHT)
def test_messages_in_flight_keep_their_order_on_a_disk_that_is_full_by_turns(
    language: str, broker: BrokerProcess, small_disk: Path, tmp_path: Path
) -> None:
    command = IN_FLIGHT[language](tmp_path)
    consumer = pulsar.Client(broker.service_url)
    consumer.subscribe(TOPIC, "s")
    consumer.close()
    neighbour, rng = Neighbour(small_disk), Random(language)
    client = RotationClient(command, broker.service_url, TOPIC)
    try:
        for _ in range(3):
            client.does_more("sent", 1000)
            for _ in range(MOMENTS):
                neighbour.take_everything()
                # Long enough for some entries to be refused, and mostly too short for their client to hear of it.
                time.sleep(rng.random() * 0.02)
                neighbour.give_back()
                time.sleep(rng.random() * 0.02)
            client.does_more("sent", 1000)
            neighbour.take_everything()
            eventually(lambda: "full" in readiness(broker), within_s=WITHIN_S, what="the disk being full")
            # Longer than a client waits for the answer to a request.
            time.sleep(4)
            neighbour.give_back()
            client.does_more("sent", 1000)
    finally:
        neighbour.give_back()
        client.finish()
    sent = client.numbers["sent"]
    assert sent == list(range(len(sent)))
    # Those sent again may be there twice.
    found = stored(broker)
    assert list(dict.fromkeys(found)) == sent
    log = broker.log_path.read_text(errors="replace")
    assert "the disk is full" in log
    assert "Traceback" not in log, broker.log_tail()
