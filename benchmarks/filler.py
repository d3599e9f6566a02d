"""Fills many topics in turn over one connection, and asks a broker's admin REST: what benchmarks of policies share."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import msgspec
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command_with_entry

from tests.support.broker_process import BrokerProcess

from .wire_load import Connection, WireJob, WireResult, make_batched_entry

NAMESPACE = "public/default"
#: The topic of :func:`steady`, and its rate (messages of 1 KiB a second).
BYSTANDER = "bystanders/ns/steady"
RATE = 1000.0
#: Receipts outstanding while the topics are filled.
_WINDOW = 2000


class Filler(Connection):
    """Publishes the same entry to many topics of one connection in turn."""

    def __init__(self, entry: bytes) -> None:
        super().__init__()
        self._entry = entry
        self._outstanding = 0
        self._room = asyncio.Event()

    async def fill(self, topics: int, messages: int) -> None:
        send = wire.BaseCommand(type=wire.BaseCommand.SEND)
        for sequence_id in range(messages):
            for producer_id in range(topics):
                while self._outstanding >= _WINDOW:
                    self._room.clear()
                    await self._room.wait()
                send.send.producer_id = producer_id
                send.send.sequence_id = sequence_id
                self.write([encode_command_with_entry(send, len(self._entry)), self._entry])
                self._outstanding += 1
        while self._outstanding:
            self._room.clear()
            await self._room.wait()

    def receipted(self, count: int) -> None:
        self._outstanding -= count
        self._room.set()

    def delivered(self, messages: list[tuple[bytes, int, int]]) -> None:
        raise RuntimeError("nothing here consumes")


def topic_name(index: int) -> str:
    """Return the full name of one of the topics that are filled."""
    return f"persistent://{NAMESPACE}/due-{index:05d}"


async def fill(service_url: str, topics: int, messages: int, payload_bytes: int, subscription: str | None) -> None:
    """Give every topic a subscription, if one is named, and its messages."""
    address = urlsplit(service_url)
    assert address.hostname is not None
    assert address.port is not None
    entry = make_batched_entry(payload_bytes, 1)
    loop = asyncio.get_running_loop()
    _, filler = await loop.create_connection(lambda: Filler(entry), address.hostname, address.port)
    commands = []
    for index in range(topics):
        if subscription is not None:
            subscribe = wire.CommandSubscribe(
                topic=topic_name(index),
                subscription=subscription,
                subType=wire.CommandSubscribe.Exclusive,
                consumer_id=index,
                request_id=2 * index,
            )
            commands.append(wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE, subscribe=subscribe))
        producer = wire.CommandProducer(topic=topic_name(index), producer_id=index, request_id=2 * index + 1)
        commands.append(wire.BaseCommand(type=wire.BaseCommand.PRODUCER, producer=producer))
    await filler.opened(*commands)
    await filler.fill(topics, messages)
    filler.close()


def request(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    """Ask the admin REST and return the decoded answer, None if it is empty. Raises :class:`urllib.error.HTTPError`."""
    asked = urllib.request.Request(
        f"{broker.http_url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def metric(broker: BrokerProcess, name: str) -> float:
    """Return the sum over all labels of one family in the broker's metrics."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as response:
        text = response.read().decode()
    found = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    if not found:
        raise RuntimeError(f"the metrics have no {name}")
    return sum(float(line.rpartition(" ")[2]) for line in found)


def make_bystanders(broker: BrokerProcess) -> None:
    """Create the tenant and the namespace of :func:`steady`."""
    tenant, namespace, _ = BYSTANDER.split("/")
    request(broker, "PUT", f"/admin/v2/tenants/{tenant}", {"adminRoles": [], "allowedClusters": ["standalone"]})
    request(broker, "PUT", f"/admin/v2/namespaces/{tenant}/{namespace}")


def steady(broker: BrokerProcess, seconds: float) -> subprocess.Popen[bytes]:
    """Start a publisher at the fixed rate, for some seconds, to a topic of a namespace of its own."""
    job = WireJob(broker.service_url, BYSTANDER, 1024, int(RATE * seconds), consume=False, rate=RATE)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire_load", msgspec.json.encode(job).decode()], stdout=subprocess.PIPE
    )


def result(process: subprocess.Popen[bytes]) -> WireResult:
    """Wait for a publisher of :func:`steady`. Raises :class:`RuntimeError` if it failed."""
    output, _ = process.communicate(timeout=180)
    if process.returncode:
        raise RuntimeError(f"the publisher ended with {process.returncode}")
    return msgspec.json.decode(output, type=WireResult)
