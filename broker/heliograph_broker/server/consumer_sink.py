"""The consumers of one client, and the messages and commands sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .connection import MessageSink

if TYPE_CHECKING:
    import asyncio

    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.messaging.delivery.subscription import Subscription
    from heliograph_broker.storage.base.entry import Entry

    from .output import Output
    from .role_clients import RoleRates


class SoughtReader:
    """A reader that was asked to reconnect by its seek, and its subscription, which is not durable but kept for it.

    ``timer`` ends that once the reader was closed.
    """

    __slots__ = ("subscription", "timer")

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.timer: asyncio.TimerHandle | None = None


class SessionConsumers(MessageSink):
    """A :class:`ConsumerSink`: the consumers of one session, and the output that messages go to."""

    __slots__ = ("_encoder", "_output", "open", "rates", "sought_readers", "unnotified")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._encoder = output.encoder
        self.writable = True
        self.unwritable_since_ms = 0
        self.held_until_ms = 0
        #: The rates of the client's role; None without authentication.
        self.rates: RoleRates | None = None
        self.open: dict[int, Consumer] = {}
        #: Readers, by consumer id, that are to come back after a seek.
        self.sought_readers: dict[int, SoughtReader] = {}
        #: By the id of each consumer that its client may not know yet: whether it is active, None if nobody asks.
        self.unnotified: dict[int, bool | None] = {}

    def send_message(self, consumer: Consumer, entry: Entry, redelivery_count: int, remaining: int | None) -> None:
        frame = entry.frame
        output = self._output
        output.frames.append(
            self._encoder.message_head(
                consumer.consumer_id,
                entry.ledger_id,
                entry.entry_id,
                consumer.subscription.topic.name.partition,
                redelivery_count,
                consumer.epoch,
                remaining,
                len(frame),
            )
        )
        output.write(frame)
        rates = self.rates
        if rates is not None and rates.dispatch is not None:
            rates.dispatched(entry.messages, len(frame))

    def notify_active(self, consumer_id: int) -> None:
        """Send whether a consumer is active, if that was held back: its client knows the consumer now."""
        active = self.unnotified.pop(consumer_id, None)
        if active is not None and consumer_id in self.open:
            self.send_active_change(self.open[consumer_id], active)

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
        if consumer.consumer_id in self.unnotified:
            self.unnotified[consumer.consumer_id] = active
            return
        self._output.write(self._encoder.active_consumer_change(consumer.consumer_id, active=active))

    def send_close_consumer(self, consumer: Consumer) -> None:
        if self.open.get(consumer.consumer_id) is consumer:
            del self.open[consumer.consumer_id]
            self._output.write(self._encoder.close_consumer(consumer.consumer_id))

    def send_end_of_topic(self, consumer: Consumer) -> None:
        self._output.write(self._encoder.end_of_topic(consumer.consumer_id))

    def may_dispatch(self) -> None:
        for consumer in list(self.open.values()):
            consumer.subscription.notify()

    def returned(self, consumer_id: int) -> None:
        """A consumer of this id is open: nothing is kept for a reader any more, whose subscription it may not use."""
        reader = self.sought_readers.get(consumer_id)
        if reader is not None:
            self.stays_away(consumer_id, reader)

    def stays_away(self, consumer_id: int, reader: SoughtReader) -> None:
        """Delete the subscription kept for a reader that did not return after its seek, unless others use it."""
        if self.sought_readers.get(consumer_id) is not reader:
            return
        del self.sought_readers[consumer_id]
        if reader.timer is not None:
            reader.timer.cancel()
        subscription = reader.subscription
        if not subscription.consumers and not subscription.closed:
            subscription.topic.drop_subscription(subscription)
