"""``benchmarks/run-bad-tokens``: see its ``--help``."""

from __future__ import annotations

import http.client
import multiprocessing
import tempfile
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.token_specimens import pair, signed, verifying
from tests.support.tokens import Signer
from tests.support.wire_client import WireClient

from .latencies import quantiles
from .scenarios import cpu_seconds

_CONNECTIONS: Final = 4
_PUBLISHED_A_S: Final = 200


class Found(NamedTuple):
    """Latencies (ms) of a publisher that waits for each receipt, and the share of a core that the broker took."""

    p50: float
    p99: float
    processor: float


def _attack(url: str, tokens: list[str], rate: int, ended: Event, refused: multiprocessing.Queue[int]) -> None:
    """Send requests with these tokens, so many a second in total, until told to end; report how many were refused."""

    def send(counts: list[int]) -> None:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        due, turn = time.monotonic(), 0
        while not ended.is_set():
            connection.request(
                "GET", "/admin/v2/tenants", headers={"Authorization": f"Bearer {tokens[turn % len(tokens)]}"}
            )
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 401
            turn += 1
            due += _CONNECTIONS / rate
            time.sleep(max(0.0, due - time.monotonic()))
        counts.append(turn)

    counts: list[int] = []
    threads = [threading.Thread(target=send, args=(counts,)) for _ in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused.put(sum(counts))


def _publish(broker: BrokerProcess, token: str, seconds: float) -> Found:
    with WireClient(broker.service_url, connect=False) as client:
        client.authenticate(token)
        producer = client.producer("persistent://public/default/healthy")
        times: list[float] = []
        before = cpu_seconds(broker.pid)
        due = started = time.monotonic()
        for number in range(int(seconds * _PUBLISHED_A_S)):
            began = time.perf_counter()
            client.publish(producer, make_entry(bytes(1024), sequence_id=number), sequence_id=number)
            times.append((time.perf_counter() - began) * 1000)
            due += 1 / _PUBLISHED_A_S
            time.sleep(max(0.0, due - time.monotonic()))
        used, lasted = cpu_seconds(broker.pid) - before, time.monotonic() - started
    found = quantiles(times)
    assert found is not None
    return Found(found[0], found[1], used / lasted)


def main(
    rate: Annotated[int, typer.Option(min=1, help="Bad tokens a second.")] = 1000,
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each measurement.")] = 15,
) -> None:
    """Measure a healthy publisher while unknown clients send tokens of foreign keys, as HTTP requests."""
    context = multiprocessing.get_context("spawn")
    table = Table("bad tokens", "refused a second", "publish ms p50 / p99", "broker's share of a core")
    with tempfile.TemporaryDirectory(prefix="heliograph-benchmark-") as name:
        directory = Path(name)
        public = directory / "public.der"
        public.write_bytes(verifying("RS256"))
        signer = Signer(directory / "secret.key")
        foreign = Signer(directory / "foreign.key", b"a secret that the broker does not know at all")
        settings = signer.settings(superusers="load", token_public_key=str(public))
        claims = {"sub": "load"}
        kinds = {
            "none": [],
            "HS256": [foreign.token("load", number=number) for number in range(100)],
            "RS256": [signed("RS256", claims | {"n": n}, pair("RS256", 1).private).decode() for n in range(100)],
        }
        with BrokerProcess(directory / "data", environment=settings) as broker:
            token = signer.token("load")
            _publish(broker, token, 2)
            for kind, tokens in kinds.items():
                ended, refused = context.Event(), context.Queue()
                attacker = context.Process(target=_attack, args=(broker.http_url, tokens, rate, ended, refused))
                began = time.monotonic()
                if tokens:
                    attacker.start()
                found = _publish(broker, token, seconds)
                number = 0
                if tokens:
                    ended.set()
                    number = refused.get()
                    attacker.join()
                a_second = number / (time.monotonic() - began)
                table.add_row(kind, f"{a_second:,.0f}", f"{found.p50:.1f} / {found.p99:.1f}", f"{found.processor:.0%}")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
