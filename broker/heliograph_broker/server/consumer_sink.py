"""The consumers of one client, and the messages and commands sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .connection import MessageSink

if TYPE_CHECKING:
    from heliograph_broker.messaging.clients.consumer import Consumer
    from heliograph_broker.messaging.delivery.subscription import Subscription
    from heliograph_broker.storage.base.entry import Entry

    from .output import Output


class SessionConsumers(MessageSink):
    """A :class:`ConsumerSink`: the consumers of one session, and the output that messages go to."""

    __slots__ = ("_encoder", "_output", "open", "sought_readers")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._encoder = output.encoder
        self.writable = True
        self.open: dict[int, Consumer] = {}
        #: Subscriptions that are not durable, kept over a seek for the reader (by consumer id) that is to come back.
        self.sought_readers: dict[int, Subscription] = {}

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

    def send_active_change(self, consumer: Consumer, active: bool) -> None:
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

    def stays_away(self, consumer_id: int) -> None:
        """Delete the subscription kept for a reader that did not return after a seek, unless others use it."""
        subscription = self.sought_readers.pop(consumer_id, None)
        if subscription is not None and not subscription.consumers and not subscription.closed:
            subscription.topic.drop_subscription(subscription)
