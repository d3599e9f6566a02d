"""The point of recovery: every message with a receipt from before ``pointInTime`` is in the backup.

`scripts/test integration -- -k recovery_point -s` prints how many there were, and how much more the backup has.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pulsar

from tests.support.broker_process import BrokerProcess
from tests.support.clients import backlog, connect, payloads, publish, receive_many
from tests.support.polling import eventually

TOPIC = "numbered"
#: Messages that wait for their receipts at the same time.
WINDOW = 50
#: Bytes and number of the messages that make a backup take a while: it has several parts.
LARGE, LARGE_COUNT = 1_000_000, 48


class Publisher:
    """Publishes the numbers from 0 on without a pause, and keeps the time at which the client got each receipt."""

    def __init__(self, client: pulsar.Client) -> None:
        #: By number; wall-clock ms. Receipts come in the order of the messages.
        self.receipts_ms: list[float] = []
        self.errors: list[object] = []
        self._producer = client.create_producer(TOPIC, batching_enabled=False)
        self._ending = threading.Event()
        self._window = threading.Semaphore(WINDOW)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._producer.flush()

    def _run(self) -> None:
        number = 0
        while not self._ending.is_set() and not self.errors:
            self._window.acquire()
            self._producer.send_async(b"%d" % number, self._receipted)
            number += 1

    def _receipted(self, result: object, _id: object) -> None:
        if result == pulsar.Result.Ok:
            self.receipts_ms.append(time.time() * 1000)
        else:
            self.errors.append(result)
        self._window.release()


def run(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "heliograph_broker", "backup", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def numbers_in(broker: BrokerProcess) -> list[int]:
    """Return the numbers that a restored broker has, in their order."""
    with closing(connect(broker.service_url)) as client:
        count = backlog(broker, TOPIC, "reader")
        return [int(each) for each in payloads(receive_many(client.subscribe(TOPIC, "reader"), count))]


def test_all_messages_with_a_receipt_from_before_the_point_in_time_are_restored(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory("data")
    broker.start()
    store = f"file://{tmp_path / 'backups'}"
    results: list[dict[str, int]] = []
    with closing(connect(broker.service_url)) as client:
        publish(client, "large", (bytes(LARGE) for _ in range(LARGE_COUNT)))
        client.subscribe(TOPIC, "reader").close()
        with Publisher(client) as publisher:
            receipts = publisher.receipts_ms
            for at in range(3):
                before = len(receipts)
                eventually(lambda: len(receipts) > before + 500, within_s=120, what="traffic")  # noqa: B023
                result = tmp_path / "result.json"
                run("push", store, f"backup-{at}", "--http-url", broker.http_url, "--result", result)
                results.append({**json.loads(result.read_text()), "begun": before + 500, "ended": len(receipts)})
    assert not publisher.errors
    broker.terminate()
    for at, found in enumerate(results):
        point_ms = found["pointInTimeMs"]
        run("pull", store, f"backup-{at}", "--data-dir", tmp_path / f"restored-{at}")
        restored = broker_factory(f"restored-{at}")
        restored.start()
        numbers = numbers_in(restored)
        restored.terminate()
        promised = bisect_left(receipts, point_ms)
        assert found["begun"] <= promised < found["ended"], "publishing goes on before and after it"
        # Nothing is missing in between, and there may be more.
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= promised
        last_ms = receipts[len(numbers) - 1] - point_ms
        print(
            f"\nbackup {at}: {promised} messages with a receipt from before pointInTime, all restored;"
            f" {len(numbers) - promised} more, the last receipt {last_ms:.0f} ms after it;"
            f" {found['ended'] - len(numbers)} published later, until the end of the upload, are not in it"
        )
