"""Many topics whose messages expire all at once: how long until they are gone, and what publishers elsewhere notice.

Run it with ``benchmarks/run-expiry``; see its ``--help``.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
import uvloop
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import encode_command_with_entry

from tests.support.broker_process import BrokerProcess

from .wire_load import Connection, WireJob, WireResult, make_batched_entry

_RATE = 1000.0
_NAMESPACE = "public/default"
_OTHER = "bystanders/ns/steady"
_QUIET_S = 8
_AFTER_S = 10
_LEAD_S = 3.0
#: Receipts outstanding while the topics are filled.
_WINDOW = 2000


class _Filler(Connection):
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


def _topic(index: int) -> str:
    return f"persistent://{_NAMESPACE}/due-{index:05d}"


async def _prepare(service_url: str, topics: int, messages: int, payload_bytes: int) -> None:
    """Give every topic a subscription and its messages."""
    address = urlsplit(service_url)
    assert address.hostname is not None
    assert address.port is not None
    entry = make_batched_entry(payload_bytes, 1)
    loop = asyncio.get_running_loop()
    _, filler = await loop.create_connection(lambda: _Filler(entry), address.hostname, address.port)
    commands = []
    for index in range(topics):
        subscribe = wire.CommandSubscribe(
            topic=_topic(index),
            subscription="slow",
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=index,
            request_id=2 * index,
        )
        producer = wire.CommandProducer(topic=_topic(index), producer_id=index, request_id=2 * index + 1)
        commands += [
            wire.BaseCommand(type=wire.BaseCommand.SUBSCRIBE, subscribe=subscribe),
            wire.BaseCommand(type=wire.BaseCommand.PRODUCER, producer=producer),
        ]
    await filler.opened(*commands)
    await filler.fill(topics, messages)
    filler.close()


def _request(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{broker.http_url}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def _expired(broker: BrokerProcess) -> int:
    """Return the messages expired so far, summed over all topics, from the namespace's metrics."""
    with urllib.request.urlopen(f"{broker.http_url}/metrics", timeout=60) as response:
        text = response.read().decode()
    name = "heliograph_expired_messages_total{"
    return sum(int(float(line.rpartition(" ")[2])) for line in text.splitlines() if line.startswith(name))


def _steady(broker: BrokerProcess, seconds: float) -> subprocess.Popen[bytes]:
    job = WireJob(broker.service_url, _OTHER, 1024, int(_RATE * seconds), consume=False, rate=_RATE)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.wire_load", msgspec.json.encode(job).decode()], stdout=subprocess.PIPE
    )


def _result(process: subprocess.Popen[bytes]) -> WireResult:
    output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"the publisher ended with {process.returncode}")
    return msgspec.json.decode(output, type=WireResult)


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100]


def main(
    topics: Annotated[int, typer.Option(min=1, help="Topics that have messages due.")] = 1000,
    messages: Annotated[int, typer.Option(min=1, help="Messages due in each.")] = 1000,
    payload: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 100,
    directory: Annotated[Path | None, typer.Option(help="Where the broker keeps its data.")] = None,
) -> None:
    """Fill topics, let all of it expire by one change of policy, and measure a publisher of another namespace.

    The publisher sends 1,000 messages of 1 KiB a second to a topic of its own. Printed are the p99 of its latencies
    when all is quiet and in the second after the change, and how long until nothing that is due is left.
    """
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-benchmark-", dir=directory) as scratch,
        BrokerProcess(Path(scratch) / "data") as broker,
    ):
        _request(broker, "PUT", "/admin/v2/tenants/bystanders", {"adminRoles": [], "allowedClusters": ["standalone"]})
        _request(broker, "PUT", "/admin/v2/namespaces/bystanders/ns")
        began = time.monotonic()
        uvloop.run(_prepare(broker.service_url, topics, messages, payload))
        print(f"filled {topics} topics with {messages} messages each in {time.monotonic() - began:.0f} s", flush=True)
        time.sleep(2)
        quiet = _result(_steady(broker, _QUIET_S))
        publisher = _steady(broker, _LEAD_S + _AFTER_S)
        time.sleep(_LEAD_S)
        changed = time.monotonic()
        _request(broker, "POST", f"/admin/v2/namespaces/{_NAMESPACE}/messageTTL", 1)
        polled = 0.05
        while True:
            sample = _request(broker, "GET", f"/admin/v2/persistent/{_NAMESPACE}/due-{topics - 1:05d}/stats")
            if sample["subscriptions"]["slow"]["msgBacklog"] == 0:
                break
            if time.monotonic() - changed > _AFTER_S:
                raise RuntimeError("the last topic's messages did not expire")
            time.sleep(polled)
        last = time.monotonic() - changed
        busy = _result(publisher)
        total = _expired(broker)
        if total != topics * messages:
            raise RuntimeError(f"{total} messages expired, not {topics * messages}")
    first = int((changed - busy.began) * _RATE)
    second = busy.publish_ms[first : first + int(_RATE)]
    calm, in_it = _p99(quiet.publish_ms[1000:]), _p99(second)
    print(f"expired {total} messages; the last topic's {last:.2f} s after the change of policy")
    print(
        f"publish latency of a bystander: p99 {calm:.1f} ms quiet, {in_it:.1f} ms in that second "
        f"({in_it / calm:.1f} times), maximum {max(second):.1f} ms"
    )


if __name__ == "__main__":
    typer.run(main)
