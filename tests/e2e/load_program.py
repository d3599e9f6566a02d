"""Runs in a pod, not in pytest: publishes numbered messages, consumes them, and tells what became of them.

Arguments: service URL, topic, subscription, messages a second. Each line on standard input is answered by one of JSON:
``status`` by the counts so far; ``stop`` ends publishing, waits until what was receipted is received, and ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulsar

#: Time (s) that receipted messages have to come after the last was published.
RECEIVED_WITHIN_S = 180.0
PAYLOAD = b"." * 1000
#: File with the token that is shown to the broker; empty: none is.
TOKEN_FILE = os.environ.get("HELIOGRAPH_TOKEN_FILE", "")


def token() -> str:
    """Return the token as it is now: the operator renews it."""
    return Path(TOKEN_FILE).read_text(encoding="utf-8").strip()


class Load:
    """One producer and one consumer of Pulsar's official client, which never give up."""

    def __init__(self, url: str, topic: str, subscription: str, rate: float) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/stderr")
        shown = {"authentication": pulsar.AuthenticationToken(token)} if TOKEN_FILE else {}
        self._client = pulsar.Client(url, logger=logger, **shown)
        self._consumer = self._client.subscribe(
            topic, subscription, consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=1000
        )
        self._producer = self._client.create_producer(topic, send_timeout_millis=0, block_if_queue_full=True)
        self._pause_s = 1 / rate
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ended = threading.Event()
        self.sent = 0
        self.receipted: set[int] = set()
        self.refused: list[str] = []
        self.received: dict[int, int] = {}
        self._threads = [threading.Thread(target=each) for each in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def _publish(self) -> None:
        while not self._stop.wait(self._pause_s):
            number = self.sent
            self.sent += 1

            def answered(result: Any, _: Any, number: int = number) -> None:
                with self._lock:
                    if result == pulsar.Result.Ok:
                        self.receipted.add(number)
                    else:
                        self.refused.append(f"{number}: {result}")

            self._producer.send_async(b"%d %b" % (number, PAYLOAD), answered)

    def _consume(self) -> None:
        while not self._ended.is_set():
            try:
                message = self._consumer.receive(500)
            except pulsar.Timeout:
                continue
            number = int(message.data().split()[0])
            with self._lock:
                self.received[number] = self.received.get(number, 0) + 1
            self._consumer.acknowledge(message)

    def status(self) -> dict[str, Any]:
        with self._lock:
            return {
                "sent": self.sent,
                "receipted": len(self.receipted),
                "received": len(self.received),
                "again": sum(self.received.values()) - len(self.received),
                "refused": self.refused[:20],
                "lost": sorted(self.receipted - self.received.keys())[:20],
            }

    def stop(self) -> dict[str, Any]:
        """End, and return the last status: ``lost`` are receipted messages that never came."""
        self._stop.set()
        self._threads[0].join()
        self._producer.flush()
        deadline = time.monotonic() + RECEIVED_WITHIN_S
        while self.status()["lost"] and time.monotonic() < deadline:
            time.sleep(0.1)
        self._ended.set()
        self._threads[1].join()
        self._client.close()
        return self.status()


def main() -> None:
    url, topic, subscription, rate = sys.argv[1:]
    load = Load(url, topic, subscription, float(rate))
    for line in sys.stdin:
        output = load.stop() if line.strip() == "stop" else load.status()
        print(json.dumps(output), flush=True)
        if line.strip() == "stop":
            return


if __name__ == "__main__":
    main()
