"""A durable subscription of one partition, held to keep what was not read yet; nothing is delivered to it."""

from __future__ import annotations

import logging
import time
from types import TracebackType

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.ack_sets import ack_set_of

from heliograph_spark.plan.errors import JobError
from heliograph_spark.plan.positions import Position

from .brokers import Brokers, tried
from .failures import Passing, PassingRefusal, Refused, refusal
from .link import Link
from .receiver import Receiver
from .stream import Address

log = logging.getLogger(__name__)

#: A run that was killed may be connected for a moment longer, seconds.
BUSY_FOR_S = 15.0


class HeldSubscription:
    """Holds ``name`` on a partition exclusively; it is made, at the beginning of the topic, if it is not there.

    It connects when it is first used, and again where a broker or a connection has gone: at first to the broker at
    ``address`` if one is given, and after that to the one that a lookup finds. Its methods raise
    :class:`JobError` if another consumer has the subscription for longer than ``busy_for_s`` seconds, and
    :class:`PulsarSourceError` for other errors of the broker.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        name: str,
        *,
        busy_for_s: float = BUSY_FOR_S,
        address: Address | None = None,
    ) -> None:
        self._brokers = brokers
        self._topic = topic
        self._name = name
        self._busy_for_s = busy_for_s
        self._address = address
        self._consumer: tuple[Link, int, Receiver] | None = None

    def __enter__(self) -> HeldSubscription:
        self.hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def hold(self) -> None:
        """Connect, if it is not connected."""
        busy_until = time.monotonic() + self._busy_for_s
        try:
            tried(lambda: self._held(busy_until), time.monotonic() + self._brokers.answered_within_s)
        except Refused as error:
            if error.code != wire.ConsumerBusy:
                raise
            raise JobError(
                f"{self._topic}: another consumer has the subscription {self._name}; only one job can use it at a time"
            ) from error

    def acknowledge(self, position: Position, batch_messages: int | None = None) -> None:
        """Acknowledge everything up to a position; the broker has stored that when this returns.

        For a position inside a batch the number of its messages is needed to acknowledge a part of it: without it the
        entries before are acknowledged. A position of a topic that was deleted and created again acknowledges nothing.
        """
        remaining = 0
        if position.batch >= 0:
            if batch_messages is None:
                position = Position(position.ledger, position.entry - 1)
            else:
                remaining = (1 << batch_messages) - (1 << (position.batch + 1))
        if position.entry < 0:
            return
        what = f"acknowledging {self._topic} up to {position} for {self._name}"

        def acknowledged() -> None:
            link, consumer_id = self._connected()
            body = wire.CommandAck(consumer_id=consumer_id, ack_type=wire.CommandAck.Cumulative)
            place = body.message_id.add(ledgerId=position.ledger, entryId=position.entry)
            if remaining > 0:
                place.ack_set.extend(ack_set_of(remaining))
            answer = link.request("ack", body, what, self._brokers.answered_within_s)
            if answer.error == wire.NotAllowedError:
                log.warning("%s: %s", what, answer.message)
            elif answer.HasField("error"):
                raise refusal(f"{what}: {link.address}", answer.error, answer.message)

        tried(acknowledged, time.monotonic() + self._brokers.answered_within_s)

    def close(self) -> None:
        """Let others have the subscription; what it holds stays stored."""
        if self._consumer is None:
            return
        (link, consumer_id, receiver), self._consumer = self._consumer, None
        if receiver.closed:
            return
        what = f"closing {self._name} of {self._topic}"
        try:
            body = wire.CommandCloseConsumer(consumer_id=consumer_id)
            link.request("close_consumer", body, what, self._brokers.answered_within_s)
        except Passing:
            # A connection that is gone leaves nothing open; a broker that does not answer notices it later.
            pass
        finally:
            link.detach(consumer_id)

    def _connected(self) -> tuple[Link, int]:
        self.hold()
        assert self._consumer is not None
        return self._consumer[0], self._consumer[1]

    def _held(self, busy_until: float) -> None:
        if self._consumer is not None:
            if not self._consumer[2].closed:
                return
            self._consumer = None
        address, self._address = self._address, None
        link = self._brokers.owner(self._topic) if address is None else self._brokers.link(address)
        consumer_id = link.attach(receiver := Receiver(0))
        body = wire.CommandSubscribe(
            topic=self._topic,
            subscription=self._name,
            subType=wire.CommandSubscribe.Exclusive,
            consumer_id=consumer_id,
            consumer_name="heliograph-spark",
            durable=True,
            initialPosition=wire.CommandSubscribe.Earliest,
            force_topic_creation=False,
        )
        try:
            link.request(
                "subscribe", body, f"subscribing {self._name} to {self._topic}", self._brokers.answered_within_s
            )
        except Refused as error:
            link.detach(consumer_id)
            if error.code == wire.ConsumerBusy and time.monotonic() < busy_until:
                raise PassingRefusal(f"subscribing {self._name} to {self._topic}", error.code, error.reason) from error
            raise
        except BaseException:
            link.leave(consumer_id)
            raise
        self._consumer = link, consumer_id, receiver
