"""A client of its own process that a test stops with SIGSTOP: the official library, as applications use it.

``python -m tests.faults.stopped_client SERVICE_URL TOPIC`` opens a producer and a consumer of a Shared and of a
Failover subscription, prints ``ready``, and then a line for each message it receives. It acknowledges none.
"""

from __future__ import annotations

import sys

import pulsar

PRODUCER_NAME = "mine"


def show(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
    print(consumer.subscription_name(), message.data()[:20].decode().strip(), flush=True)


def main(service_url: str, topic: str) -> None:
    client = pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
    producer = client.create_producer(topic, producer_name=PRODUCER_NAME)
    consumers = [
        client.subscribe(
            topic,
            name,
            consumer_type=kind,
            consumer_name="a",
            receiver_queue_size=10_000,
            message_listener=show,
        )
        for name, kind in (("shared", pulsar.ConsumerType.Shared), ("failover", pulsar.ConsumerType.Failover))
    ]
    print("ready", flush=True)
    sys.stdin.read()
    for consumer in consumers:
        consumer.close()
    producer.close()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
