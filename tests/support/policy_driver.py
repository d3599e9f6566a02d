"""Drives the real core and the policy oracle through one history and compares them after every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph_api.policies.policies import BacklogQuota, Policies, Retention
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import TenantRecord
from heliograph_broker.messaging.topic.truncation import truncate

from .core import Client
from .policy_client_steps import ClientSteps
from .policy_history import Step
from .policy_modelled_broker import NAMESPACES, TOPICS, HistoryResult, same
from .policy_oracle_state import (
    Disagreement,
    Letter,
    OracleTopic,
    require,
)


class Failed(AssertionError):
    """A history in which both sides do not agree; ``at`` is the number of the step."""

    def __init__(self, at: int, output: str) -> None:
        super().__init__(f"after step {at + 1}: {output}")
        self.at = at


class PolicyDriver(ClientSteps):
    """One history. :meth:`run` raises :class:`Failed`."""

    def run(self, steps: Sequence[Step]) -> HistoryResult:
        try:
            for at, step in enumerate(steps):
                try:
                    self._step(step)
                except Disagreement as error:
                    raise Failed(at, str(error)) from error
                except Exception as error:
                    raise Failed(at, f"{type(error).__name__}: {error}") from error
                self.result.steps += 1
            for name, count in self.oracle.totals.items():
                setattr(self.result, name, count)
            return self.result
        finally:
            self.core.close()

    def _step(self, step: Step) -> None:
        ends = {name: len(topic.entries) for name, topic in self.oracle.topics.items()}
        self._evicted.clear()
        letters: list[Letter] | None = getattr(self, "_do_" + step.name.replace(" ", "_"))(**step.arguments)
        self.core.commit()
        self._receive_letters(letters or [])
        self._note_sent()
        ticked = step.name == "wait"
        if ticked:
            self._evict()
        self._deliveries(ends)
        for name, topic in self.oracle.topics.items():
            if topic.held:
                self.oracle.answered(topic, name in self._resumed, ticked)
        self.oracle.just_sent.clear()
        for name in TOPICS:
            oracle = self.oracle.topics[name]
            self.oracle.note_quotas(oracle)
            first = self._topic(name).log.first_offset
            self.result.trimmed += max(0, first - oracle.first)
            self.oracle.trimmed(oracle, first, ticked)
        self._compare()

    # -- by hand ---------------------------------------------------------------------------------------------------

    def _do_seek(self, topic: str, subscription: int, entry: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        oracle, subscribed = found
        kept = self.oracle.topics[topic].kept()
        number = kept[entry].number if entry < len(kept) else len(self.oracle.topics[topic].entries)
        outcome, done = self._done()
        subscribed.seek(number, None, done)
        self.core.commit()
        require(outcome == [None], f"seek: {outcome}")
        self._ignore(subscribed)
        for consumer in list(oracle.permits):
            self._gone(topic, oracle, consumer)
        oracle.returned.clear()
        oracle.unacked = {at.number: set(range(len(at.messages))) for at in kept if at.number >= number}

    def _do_clear(self, topic: str, subscription: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        outcome, done = self._done()
        found[1].acks.clear_backlog(done)
        self.core.commit()
        require(outcome == [None], f"clear: {outcome}")
        for number in list(found[0].unacked):
            found[0].forget(number)

    def _do_skip(self, topic: str, subscription: int, messages: int) -> None:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return
        outcome, done = self._done()
        found[1].acks.skip(messages, done)
        self.core.commit()
        require(outcome == [None], f"skip: {outcome}")
        for _ in range(messages):
            if found[0].unacked:
                oldest = min(found[0].unacked)
                found[0].unacked[oldest].remove(min(found[0].unacked[oldest]))
                if not found[0].unacked[oldest]:
                    found[0].forget(oldest)

    def _do_expire_by_age(self, topic: str, subscription: int, ms: int) -> list[Letter]:
        found = self._find(topic, subscription)
        if found is None or not found[0].durable:
            return []
        outcome, done = self._done()
        found[1].expiry.expire_older_than(ms, done)
        self.core.commit()
        require(outcome == [None], f"expire by age: {outcome}")
        oracle = self.oracle.topics[topic]
        young = [entry.number for entry in oracle.kept() if entry.received >= self.oracle.now - ms]
        return self.oracle.expire_by_hand(oracle, found[0], min(young, default=len(oracle.entries)))

    def _do_expire_up_to(self, topic: str, subscription: int, entry: int) -> list[Letter]:
        found = self._find(topic, subscription)
        number = self._number(topic, entry)
        if found is None or number is None or not found[0].durable:
            return []
        outcome, done = self._done()
        found[1].expiry.expire_up_to(*self._topic(topic).log.position(number), done)
        self.core.commit()
        require(outcome == [None], f"expire up to: {outcome}")
        return self.oracle.expire_by_hand(self.oracle.topics[topic], found[0], number + 1)

    def _do_truncate(self, topic: str) -> None:
        outcome, done = self._done()
        truncate(self._topic(topic), done)
        self.core.commit()
        require(outcome == [None], f"truncate: {outcome}")
        self.oracle.topics[topic].first = len(self.oracle.topics[topic].entries)
        for subscription in self.oracle.topics[topic].subscriptions.values():
            for number in list(subscription.unacked):
                subscription.forget(number)

    # -- policies and time -------------------------------------------------------------------------------------------

    def _do_policy(self, level: str, name: str, value: Any) -> None:
        levels = self.oracle.levels
        levels.setdefault(level, {}).pop(name, None)
        if value is not None:
            levels[level][name] = value
        policies = _policies(levels[level])
        broker = self.core.broker
        kind, _, which = level.partition(":")
        for topic in self.oracle.topics.values():
            if which in ("", topic.name, NAMESPACES[topic.name]):
                # With new quotas the producers are tried again.
                topic.wanted = 0
        if kind == "topic":
            broker.policies.set_topic(TopicName.parse(TOPICS[which]), policies)
        elif kind == "namespace":
            broker.namespaces.set_policies(f"acme/{which}", policies)
        elif level == "tenant limits":
            record = TenantRecord(allowed_clusters=[self.core.config.cluster_name], limits=policies)
            broker.tenants.update("acme", record)
        else:
            self._set_broker_policies()

    def _set_broker_policies(self) -> None:
        defaults = _policies(self.oracle.levels.get("broker", {}))
        limits = _policies(self.oracle.levels.get("broker limits", {}))
        self.core.broker.policies.set_broker(defaults, limits)

    def _do_blink(self, ms: int) -> None:
        """Time passes, and no tick has seen it yet."""
        self.core.clock.advance_ms(ms)
        self.oracle.now += ms

    def _do_wait(self, ms: int) -> list[Letter]:
        self.oracle.tick(ms)
        self.core.advance(ms)
        self._delete_unused()
        self._note_sent()
        letters: list[Letter] = []
        for topic in self.oracle.topics.values():
            letters += self.oracle.expire(topic)
        return letters

    def _delete_unused(self) -> None:
        """A topic that expired is recreated, as by a client that names it."""
        for name, full in TOPICS.items():
            now_there = self.core.broker.directory.topics.get(full)
            gone = now_there is not self.seen[name]
            same(f"{name}: expired as a whole", gone, self.oracle.expires_now(self.oracle.topics[name]))
            if gone:
                if now_there is None:
                    self.core.broker.topics.create(TopicName.parse(full))
                # Otherwise a dead letter recreated it in the same tick.
                self.seen[name] = self._topic(name)
                self.oracle.topics[name] = OracleTopic(name, used=self.oracle.now)
                self.oracle.levels.pop(f"topic:{name}", None)
                self.producers.pop(name, None)
                self.result.deleted += 1

    def _evict(self) -> None:
        for topic in self.oracle.topics.values():
            before = {subscription.name: set(subscription.unacked) for subscription in topic.durable()}
            missing: dict[str, set[int]] = {}
            for name, numbers in before.items():
                cursor = self._topic(topic.name).subscription(name).acks.cursor
                missing[name] = {number for number in numbers if cursor.is_acked(number)}
            self.oracle.evict(topic, missing)
            for subscription in topic.durable():
                gone = before[subscription.name] - set(subscription.unacked)
                self._evicted[topic.name, subscription.name] = gone

    def _do_restart(self) -> None:
        self.core.restart()
        self.seen = {name: self._topic(name) for name in TOPICS}
        self.producers.clear()
        self.consumers.clear()
        self.client = Client()
        for topic in self.oracle.topics.values():
            topic.refused_size = topic.refused_age = topic.evicted_size = topic.evicted_age = 0
            topic.wanted = topic.producers = 0
            topic.held = topic.overdue_answer = False
            topic.used = self.oracle.now
            topic.restarted = True
            for subscription in list(topic.subscriptions.values()):
                if not subscription.durable:
                    del topic.subscriptions[subscription.name]
                subscription.held.clear()
                subscription.permits.clear()
                subscription.returned.clear()
                subscription.kind = None
                subscription.expired = subscription.dead_lettered = subscription.loops = 0


def _policies(level: dict[str, Any]) -> Policies:
    policies = Policies()
    for name, value in level.items():
        if name == "retention":
            value = Retention(*value)
        elif name.startswith("backlog_quota"):
            value = BacklogQuota(*value)
        elif name == "dead_letter_topic":
            value = TOPICS[value]
        setattr(policies, name, value)
    return policies
