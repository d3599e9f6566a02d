"""Every subscription that delivers nothing has its one reason for it, whatever has happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lmdb
from heliograph_broker.messaging.delivery.delivery_reasons import DeliveryReason
from heliograph_broker.messaging.topic.topic_explanation import explain_consumer, explain_delivery

from .model import Violation

if TYPE_CHECKING:
    from heliograph_broker.messaging.topic.directory import AnySubscription

    from .world import World

#: Time (ms) in which a subscription without a reason must have delivered something.
_SOON_MS = 1000


class IdleReasons:
    """Remembers the subscriptions that had no reason, and how much they had delivered by then."""

    def __init__(self) -> None:
        self._without: dict[AnySubscription, tuple[int, int]] = {}

    def check(self, world: World) -> None:
        """Ask every subscription. Raises :class:`Violation` for one that had no reason and delivered nothing since."""
        now = world.machine.clock.passed_ms
        before, self._without = self._without, {}
        for name, topic in sorted(world.machine.broker.directory.topics.items()):
            for subscription in topic.subscriptions.values():
                try:
                    found = explain_delivery(subscription)
                    for consumer in subscription.consumers:
                        explain_consumer(subscription, consumer, found)
                except lmdb.Error as error:
                    if not world.machine.disk.reads_failed:
                        raise Violation("an exception that nobody contained", f"{error!r}") from error
                    continue
                if found.reason is not DeliveryReason.NONE:
                    continue
                delivered = sum(consumer.msg_out for consumer in subscription.consumers)
                since, count = before.get(subscription, (now, delivered))
                if count != delivered:
                    since = now
                if now - since >= _SOON_MS:
                    raise Violation("nothing is delivered for no reason", f"{name}/{subscription.name}: {found.text}")
                self._without[subscription] = since, delivered
