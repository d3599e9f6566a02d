"""``heliograph backup`` and ``heliograph restore`` with a running broker and the official client."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
from heliograph_broker.http.policies.kept_settings import KEPT

from tests.support.broker_process import BrokerProcess
from tests.support.clients import (
    DEADLINE_MS,
    backlog,
    connect,
    ignore_receipt,
    payloads,
    receive_available,
    receive_many,
)
from tests.support.polling import eventually
from tests.support.rest import call

SEGMENTS = {"HELIOGRAPH_SEGMENT_BYTES": str(1 << 20), "HELIOGRAPH_LEDGER_MAX_ENTRIES": "500"}


def heliograph(*arguments: str | Path, broker: BrokerProcess | None = None) -> subprocess.CompletedProcess[str]:
    url = ["--http-url", broker.http_url] if broker is not None else []
    command = [sys.executable, "-m", "heliograph_broker", *map(str, arguments), *url]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


class Traffic:
    """Publishes and acknowledges in threads until it is stopped, and knows what had a receipt when."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = connect(broker.service_url)
        self._consumer = self._client.subscribe("busy", "acked", consumer_type=pulsar.ConsumerType.Shared)
        self._client.subscribe("busy", "idle").close()
        self._producer = self._client.create_producer("busy", batching_enabled=False)
        self.receipted = 0
        self.acknowledged: list[int] = []
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._publish), threading.Thread(target=self._acknowledge)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        number = 0
        while not self._ending.is_set():
            self._producer.send(b"%d" % number + b" " * 2000)
            number += 1
            self.receipted = number

    def _acknowledge(self) -> None:
        while not self._ending.is_set():
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            number = int(message.data().split()[0])
            # One in seven stays, so that the cursor has holes.
            if number % 7:
                self._consumer.acknowledge(message)
                self.acknowledged.append(number)

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._client.close()


def test_a_restored_broker_serves_everything_receipted_before_the_backup(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data", environment=SEGMENTS)
    broker.start()
    traffic = Traffic(broker)
    try:
        eventually(lambda: traffic.receipted > 1500 and len(traffic.acknowledged) > 800, within_s=240, what="traffic")
        before = traffic.receipted
        done = heliograph("backup", "-o", tmp_path / "b.tar.gz", broker=broker)
        assert done.returncode == 0, done.stderr
        during = traffic.receipted
    finally:
        traffic.stop()
    assert during > before, "publishing goes on meanwhile"
    acknowledged = set(traffic.acknowledged)

    done = heliograph("restore", tmp_path / "b.tar.gz", "--data-dir", tmp_path / "restored")
    assert done.returncode == 0, done.stderr
    restored = broker_factory("restored", environment=SEGMENTS)
    restored.start()
    counts = {name: backlog(restored, "busy", name) for name in ("idle", "acked")}
    with closing(connect(restored.service_url)) as client:
        idle = client.subscribe("busy", "idle")
        numbers = [int(each.split()[0]) for each in payloads(receive_many(idle, counts["idle"], acknowledge=False))]
        assert numbers == list(range(len(numbers)))
        assert before <= len(numbers) <= traffic.receipted
        acked = client.subscribe("busy", "acked", consumer_type=pulsar.ConsumerType.Shared)
        left = {int(each.data().split()[0]) for each in receive_many(acked, counts["acked"], acknowledge=False)}
        assert len(left) == counts["acked"]
        assert receive_available(idle) == receive_available(acked) == []
        # The restored cursor has acknowledged only acknowledged messages; the others are still there.
        assert set(numbers) - left <= acknowledged
        assert {number for number in numbers if number % 7 == 0} <= left
        producer = client.create_producer("busy")
        producer.send(b"goes on")
        assert bytes(idle.receive(DEADLINE_MS).data()) == b"goes on"


def test_what_is_acknowledged_without_a_receipt_is_in_a_backup_too(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    with closing(connect(broker.service_url)) as client:
        consumer = client.subscribe("orders", "billing")
        producer = client.create_producer("orders")
        for number in range(100):
            producer.send_async(b"%d" % number, ignore_receipt)
        producer.flush()
        receive_many(consumer, 60)
        eventually(lambda: backlog(broker, "orders", "billing") == 40, what="60 acknowledged")
        done = heliograph("backup", "-o", tmp_path / "b.tar", broker=broker)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{tmp_path / 'b.tar'}: ")
    heliograph("restore", tmp_path / "b.tar", "--data-dir", tmp_path / "restored")
    restored = broker_factory("restored")
    restored.start()
    assert backlog(restored, "orders", "billing") == 40
    with closing(connect(restored.service_url)) as client:
        left = payloads(receive_many(client.subscribe("orders", "billing"), 40))
    assert left == [b"%d" % number for number in range(60, 100)]


def test_settings_that_are_only_kept_are_in_a_backup_too(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    topic, namespace = "persistent/public/default/orders", "namespaces/public/default"
    call(f"{broker.http_url}/admin/v2/{topic}", "PUT")
    settings = {
        **{
            f"{namespace}/{each.namespace}": (each.verbs[0], json.loads(each.example))
            for each in KEPT
            if each.namespace
        },
        **{f"{topic}/{each.topic}": (each.verbs[1], json.loads(each.example)) for each in KEPT if each.topic},
        "resourcegroups/group": ("PUT", {"publishRateInMsgs": 5}),
        f"{namespace}/permissions/ops": ("POST", ["produce"]),
        "brokers/configuration/dispatcherMaxReadBatchSize/50": ("POST", None),
    }
    for path, (verb, value) in settings.items():
        call(f"{broker.http_url}/admin/v2/{path}", verb, value)
    shown = [path for path, (_, value) in settings.items() if value is not None and "permissions" not in path]
    shown += [namespace, f"{namespace}/permissions", "brokers/configuration/values"]
    before = {path: call(f"{broker.http_url}/admin/v2/{path}") for path in shown}
    assert before[f"{topic}/persistence"]["bookkeeperEnsemble"] == 3
    done = heliograph("backup", "-o", tmp_path / "b.tar", broker=broker)
    assert done.returncode == 0, done.stderr
    heliograph("restore", tmp_path / "b.tar", "--data-dir", tmp_path / "restored")
    restored = broker_factory("restored")
    restored.start()
    assert {path: call(f"{restored.http_url}/admin/v2/{path}") for path in shown} == before


def test_a_backup_cut_short_leaves_nothing_behind_and_says_so(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    assert heliograph("backup", "-o", tmp_path / "b.tar", broker=broker).returncode == 0
    whole = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    done = heliograph("restore", tmp_path / "cut.tar", "--data-dir", tmp_path / "r")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cut.tar is" in done.stderr
    assert "cut short" in done.stderr
    assert not (tmp_path / "r").exists()
    done = heliograph("restore", tmp_path / "b.tar", "--data-dir", broker.data_dir)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    done = heliograph("backup", "-o", tmp_path / "none" / "b.tar", broker=broker)
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert list(tmp_path.glob(".*")) + list(tmp_path.glob("*.partial")) == []


def test_a_client_that_takes_nothing_keeps_others_out_and_ends_with_the_broker(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    with closing(connect(broker.service_url)) as client:
        client.subscribe("large", "keeps").close()
        producer = client.create_producer("large", batching_enabled=False)
        for _ in range(20):
            producer.send(bytes(4_000_000))
    url = f"{broker.http_url}/heliograph/v1/backup"
    with urllib.request.urlopen(url, timeout=120) as stalled:
        assert stalled.headers["Content-Type"] == "application/x-tar"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url, timeout=120)
        with refused.value as answer:
            assert answer.code == 409
            assert "one at a time" in json.loads(answer.read())["reason"]
        # Long before it is given up for taking nothing.
        assert broker.terminate() == 0
    broker.start()
    done = heliograph("backup", "-o", tmp_path / "b.tar", broker=broker)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b.tar").stat().st_size > 80_000_000
