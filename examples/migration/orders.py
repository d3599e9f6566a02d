"""An application on Pulsar's official client: publishes orders, and bills them.

``orders.py publish URL COUNT [--from N]`` publishes COUNT orders, numbered from N, with their customer as the key.
``orders.py bill URL`` receives orders on the subscription "billing" and prints the number of each one that it has
billed, until Ctrl-C or SIGTERM ends it. The URL is the service URL of a broker, of whichever kind. What the client logs
goes to the standard error.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading

import pulsar

TOPIC = "persistent://shop/payments/orders"
CUSTOMERS = 7


def publish(client: pulsar.Client, first: int, count: int) -> None:
    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_type=pulsar.BatchingType.KeyBased,
        compression_type=pulsar.CompressionType.LZ4,
        properties={"application": "shop"},
    )
    for number in range(first, first + count):
        order = {"number": number, "amount": 10 * number}
        producer.send_async(
            json.dumps(order).encode(),
            lambda *_: None,
            properties={"kind": "order"},
            partition_key=f"c{number % CUSTOMERS}",
        )
    producer.flush()
    producer.close()


def bill(client: pulsar.Client) -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    consumer = client.subscribe(
        TOPIC,
        "billing",
        consumer_type=pulsar.ConsumerType.KeyShared,
        initial_position=pulsar.InitialPosition.Earliest,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(3),
    )
    while not ended.is_set():
        try:
            # While it waits, no signal is handled.
            message = consumer.receive(timeout_millis=500)
        except pulsar.Timeout:
            continue
        print(json.loads(message.data())["number"], flush=True)
        consumer.acknowledge(message)
    # Closing sends the acknowledgments that the client still groups.
    consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish orders, or bill them.")
    commands = parser.add_subparsers(dest="command", required=True)
    publishing = commands.add_parser("publish", help="publish COUNT orders")
    publishing.add_argument("url")
    publishing.add_argument("count", type=int)
    publishing.add_argument("--from", dest="first", type=int, default=0, help="number of the first order")
    billing = commands.add_parser("bill", help="bill orders until it is ended")
    billing.add_argument("url")
    given = parser.parse_args()
    # The client's console logger writes to the standard output, among the numbers.
    client = pulsar.Client(given.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/stderr"))
    try:
        if given.command == "publish":
            publish(client, given.first, given.count)
        else:
            bill(client)
    finally:
        client.close()


if __name__ == "__main__":
    main()
