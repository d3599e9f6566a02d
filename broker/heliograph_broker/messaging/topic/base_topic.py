"""The part that persistent and non-persistent topics share: clients, counters, policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from heliograph_api.policies.policies import DEFAULTS, Policies
from heliograph_api.values.names import TopicName

from heliograph_broker.clock import monotonic_ms
from heliograph_broker.messaging.base.errors import PreconditionFailed, SubscriptionNotFound
from heliograph_broker.messaging.clients.consumer import ConsumedTopic, SubscriptionBase
from heliograph_broker.messaging.clients.producer import ProducerRegistry, PublishTarget
from heliograph_broker.messaging.policies.rate_limits import TopicLimits

from .topic_statistics import TopicStatistics

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.errors import Done
    from heliograph_broker.messaging.base.log_host import LogHost
    from heliograph_broker.messaging.messages.entry_rules import EntryRules


#: The subscriptions that a kind of topic has.
S = TypeVar("S", bound=SubscriptionBase)


class BaseTopic(PublishTarget, ConsumedTopic, Generic[S]):
    """A topic in memory. Subclasses take published entries, and deliver them."""

    __slots__ = (
        "closed",
        "created_ms",
        "effective",
        "entry_rules",
        "host",
        "last_used_ms",
        "limits",
        "name",
        "policies",
        "producer_registry",
        "properties",
        "statistics",
        "subscriptions",
        "subscriptions_changed_ms",
    )

    host: LogHost
    subscriptions: dict[str, S]

    def __init__(
        self,
        name: TopicName,
        created_ms: int,
        statistics: TopicStatistics,
        *,
        properties: dict[str, str] | None = None,
        policies: Policies | None = None,
        epoch: int = -1,
    ) -> None:
        """``created_ms`` is wall-clock time, ``epoch`` the topic's epoch of exclusive producers. Set ``host`` first."""
        self.name = name
        self.created_ms = created_ms
        self.properties = {} if properties is None else properties
        #: The policies set at the topic itself, and those in force: of all levels together.
        self.policies = policies
        self.effective = DEFAULTS
        self.producer_registry = ProducerRegistry(epoch)
        self.subscriptions = {}
        self.closed = False
        self.statistics = statistics
        #: The policies' limits for each entry of a client, None without.
        self.entry_rules: EntryRules | None = None
        self.limits = TopicLimits()
        #: When a client last came or left or the topic was declared, at least since the start (monotonic).
        self.last_used_ms = self.subscriptions_changed_ms = monotonic_ms(self.host.clock)

    def used(self) -> None:
        """Note that somebody uses the topic now."""
        self.last_used_ms = monotonic_ms(self.host.clock)

    def count_throttled(self) -> None:
        self.limits.publish_throttled += 1

    def configure(self, effective: Policies) -> None:
        """Apply the policies in force."""
        self.effective = effective

    # -- subscriptions ---------------------------------------------------------------------------------------

    def subscription(self, name: str) -> S:
        """Return the subscription of that name. Raises :class:`SubscriptionNotFound`."""
        found = self.subscriptions.get(name)
        if found is None:
            raise SubscriptionNotFound(f"Subscription {name} not found")
        return found

    def delete_subscription(self, name: str, force: bool = False, done: Done | None = None) -> None:
        """Delete a subscription. Raises if it is unknown, or has consumers and not ``force``."""
        raise NotImplementedError

    def disconnect_consumers(self, subscription: SubscriptionBase, *, force: bool) -> None:
        """Ask the consumers to reconnect. Raises :class:`PreconditionFailed` if there are any, and not ``force``."""
        if subscription.consumers and not force:
            raise PreconditionFailed("Subscription has active connected consumers")
        subscription.disconnect_all()

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Disconnect everybody; the topic is going away."""
        self.closed = True
        self.disconnect_clients()

    def disconnect_clients(self) -> None:
        """Ask everybody to reconnect."""
        self.close_producers()
        for subscription in list(self.subscriptions.values()):
            subscription.disconnect_all()

    def close_producers(self) -> None:
        """Ask every producer to reconnect."""
        self.used()
        for producer in [*self.producers.values(), *self.producer_registry.waiting]:
            producer.sink.send_close_producer(producer)
        self.producer_registry = ProducerRegistry(self.producer_registry.topic_epoch)

    def delete(self) -> None:
        """Remove everything the topic has, after :meth:`close`."""
        raise NotImplementedError
