"""The policy oracle's judgment of deliveries: those that are right, and those that are missing."""

from __future__ import annotations

from .policy_oracle import Oracle
from .policy_oracle_state import IN_ORDER, Disagreement, OracleSubscription, OracleTopic, StoredEntry, require


class DeliveryOracle(Oracle):
    """Judges what the broker sends: each message by itself, and after a step that nothing was left out."""

    def deliverable(
        self, topic: OracleTopic, subscription: OracleSubscription, entry: StoredEntry, fresh: int, *, must: bool = True
    ) -> set[int]:
        """The messages of an entry that a consumer must be sent now, or only may be if not ``must``."""
        number = entry.number
        if number < topic.first or number in subscription.held or number not in subscription.unacked:
            return set()
        delayed = self.policy(topic.name, "delayed_delivery") or (must and self.delayed_at_tick[topic.name])
        waits = delayed and entry.deliver_at > (self.ticked if must else self.now)
        if waits and subscription.kind in ("Shared", "Key_Shared"):
            return set()
        return subscription.unacked[number] - self.expired(topic, subscription, entry, fresh)

    def delivered(
        self,
        topic: OracleTopic,
        subscription: OracleSubscription,
        event: tuple[int, int, int, set[int]],
        fresh: int,
    ) -> None:
        """The broker sent (consumer, entry, redeliveries so far, messages): say whether it may."""
        consumer, number, redeliveries, sent = event
        where = f"{topic.name}/{subscription.name}: entry {number} to consumer {consumer}"
        require(consumer in subscription.permits, f"{where}, which is gone")
        require(subscription.permits[consumer] > 0, f"{where} without permits")
        may = self.deliverable(topic, subscription, topic.entries[number], fresh, must=False)
        require(bool(may), f"{where}, which is not deliverable now")
        require(sent == may, f"{where}: messages {sorted(sent)} of it, not {sorted(may)}")
        earlier = [
            other.number
            for other in topic.kept()
            if other.number < number and self.deliverable(topic, subscription, other, fresh)
        ]
        if subscription.kind in IN_ORDER:
            require(consumer == next(iter(subscription.permits)), f"{where}, which is not the active one")
            require(not earlier, f"{where} before entries {earlier}")
        elif subscription.kind == "Key_Shared":
            key = topic.entries[number].key
            if key is not None:
                # A delayed entry that has become due does not come before those that were delivered meanwhile.
                same = [other for other in earlier if topic.entries[other].key == key]
                require(not same, f"{where} before {same} of its key")
                holders = {held for at, held in subscription.held.items() if topic.entries[at].key == key}
                require(holders <= {consumer}, f"{where}, but consumers {holders} hold entries of its key")
        if subscription.kind in ("Shared", "Key_Shared"):
            expected = subscription.returned.get(number, 0)
            require(redeliveries == expected, f"{where} as redelivery {redeliveries}, not {expected}")
        subscription.held[number] = consumer
        subscription.sent[number] = sent
        subscription.permits[consumer] -= len(sent)

    def nothing_left(self, topic: OracleTopic, subscription: OracleSubscription, fresh: int) -> None:
        """No consumer that could take something is left without something it should get."""
        ready = {consumer for consumer, permits in subscription.permits.items() if permits > 0}
        for entry in topic.kept():
            if self.expired(topic, subscription, entry, fresh):
                self.passed_over.add((topic.name, subscription.name, entry.number))
        if subscription.kind == "Failover":
            # The others stand by.
            ready &= {next(iter(subscription.permits), -1)}
        if not ready:
            return
        for entry in topic.kept():
            if not self.deliverable(topic, subscription, entry, fresh):
                continue
            if (topic.name, subscription.name, entry.number) in self.passed_over:
                continue
            if subscription.kind == "Key_Shared" and len(subscription.permits) > 1:
                # The broker chooses the owner of a key: only if all of them are ready nothing may be left.
                if ready != set(subscription.permits):
                    continue
                if any(topic.entries[at].key == entry.key for at in subscription.held):
                    continue
            raise Disagreement(
                f"{topic.name}/{subscription.name}: entry {entry.number} was not delivered to any of {sorted(ready)}"
            )

    def give_back(self, subscription: OracleSubscription, consumer: int, *, count: bool) -> None:
        """Mark a consumer's messages to be delivered again."""
        for number in [number for number, holder in subscription.held.items() if holder == consumer]:
            del subscription.held[number]
            subscription.spent.add(number)
            if count:
                subscription.returned[number] = subscription.returned.get(number, 0) + 1
