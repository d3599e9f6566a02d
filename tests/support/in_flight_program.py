"""The Python client that sends numbers in bursts, many in flight, while a test does something to the broker.

``python -m tests.support.in_flight_program SERVICE-URL TOPIC``, until its input ends. It prints a line for each
receipt, as those in Java and Go do.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import pulsar

_WINDOW = 1000
_BURST = 200
_SIZE = 50
_PAUSE_S = 0.02


def _run(url: str, topic: str) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    client = pulsar.Client(url, operation_timeout_seconds=3, logger=logger)
    producer = client.create_producer(
        topic,
        producer_name="p",
        send_timeout_millis=0,
        batching_enabled=False,
        max_pending_messages=_WINDOW,
        block_if_queue_full=True,
    )
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    def answered(number: int, result: pulsar.Result) -> None:
        if result != pulsar.Result.Ok:
            print(f"{number}: {result}", file=sys.stderr, flush=True)
            os._exit(1)
        print("sent", number, flush=True)

    threading.Thread(target=wait_for_end, daemon=True).start()
    number = 0
    while not ended.is_set():
        content = b"%d %s" % (number, b"." * _SIZE)
        producer.send_async(content, lambda result, _, number=number: answered(number, result))
        number += 1
        if number % _BURST == 0:
            time.sleep(_PAUSE_S)
    producer.flush()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _run(*sys.argv[1:])
