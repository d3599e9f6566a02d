"""A durable subscription held for the time of a job: it keeps what is not done yet stored, and others away."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import _pulsar
import pulsar

from .connection import ask_admin, topic_path
from .errors import JobError, PulsarSourceError, named
from .options import Connection
from .positions import Position

#: A run that was killed may be connected for a moment longer, seconds.
_BUSY_FOR_S = 15.0


class Hold:
    """Holds a subscription exclusively on partitions; it is made, at the beginning, where there is none."""

    def __init__(self, client: pulsar.Client, subscription: str) -> None:
        self._client = client
        self._subscription = subscription
        self._consumers: dict[str, pulsar.Consumer] = {}

    def hold(self, partitions: Iterable[str]) -> None:
        """Hold these, too. Raises :class:`JobError` if another consumer has the subscription."""
        for partition in partitions:
            if partition not in self._consumers:
                with named(f"subscribing {self._subscription} to {partition}"):
                    self._consumers[partition] = self._subscribed(partition)

    def _subscribed(self, partition: str) -> pulsar.Consumer:
        deadline = time.monotonic() + _BUSY_FOR_S
        while True:
            try:
                return self._client.subscribe(
                    partition,
                    self._subscription,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=1,
                )
            except _pulsar.ConsumerBusy as error:
                if time.monotonic() > deadline:
                    raise JobError(
                        f"{partition}: another consumer has the subscription {self._subscription}; only one job can"
                        " use it at a time"
                    ) from error
                time.sleep(0.5)

    def acknowledge(self, done: Mapping[str, Position]) -> None:
        """Acknowledge everything up to these positions, in whole entries."""
        self.hold(topic for topic, position in done.items() if position.entry >= 0)
        for topic, position in done.items():
            if position.entry >= 0:
                with named(f"acknowledging {topic} up to {position} for {self._subscription}"):
                    whole = pulsar.MessageId(-1, position.ledger, position.entry, -1)
                    self._consumers[topic].acknowledge_cumulative(whole._msg_id)

    def close(self) -> list[str]:
        """Send what was acknowledged and let others have the subscription; returns the partitions it was held on."""
        partitions = sorted(self._consumers)
        while self._consumers:
            partition, consumer = self._consumers.popitem()
            with named(f"closing {self._subscription} of {partition}"):
                consumer.close()
        return partitions


def backlog(connection: Connection, partitions: Iterable[str], subscription: str) -> int:
    """Return the number of unacknowledged messages of a subscription on these partitions, by the broker's count.

    Raises :class:`PulsarSourceError` if a partition, or its subscription, is gone.
    """
    total = 0
    for partition in partitions:
        stats = ask_admin(connection, f"{topic_path(partition)}/stats")
        if stats is None:
            raise PulsarSourceError(f"there is no topic {partition}")
        if subscription not in stats["subscriptions"]:
            raise PulsarSourceError(f"{partition} has no subscription {subscription}: nothing holds what is not read")
        total += stats["subscriptions"][subscription]["msgBacklog"]
    return total
